"""fedrepro: federated-learning papers, reproduced to the bit.

from fedrepro import Run, train, rounds, build
"""

from importlib import import_module

__version__ = "0.1.0"
_HOME = {
    "Run": "simulation.run",
    "Result": "simulation.session",
    "train": "simulation.session",
    "rounds": "simulation.session",
    "sweep": "simulation.sweep",
    "build": "methods",
    "BadInput": "errors",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    """Import torch only when something that needs it is asked for: `fedrepro --help` stays quick."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedrepro' has no attribute {name!r}")
    return getattr(import_module(f"fedrepro.{_HOME[name]}"), name)

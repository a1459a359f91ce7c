"""fedrepro: federated-learning papers, reproduced bit for bit.

from fedrepro import Run, train, rounds, build
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors; at run time each is imported when it is first used
    from fedrepro import data, methods, models
    from fedrepro.errors import BadInput, Diverged, Failure
    from fedrepro.methods import FedAvg, Local, Round, Upload, build, hp, method
    from fedrepro.models import model
    from fedrepro.simulation.result import Result
    from fedrepro.simulation.run import Run
    from fedrepro.simulation.session import rounds, serve, train
    from fedrepro.simulation.sweep import sweep

__version__ = "0.1.0"
__all__ = [
    "BadInput",
    "Diverged",
    "Failure",
    "FedAvg",
    "Local",
    "Result",
    "Round",
    "Run",
    "Upload",
    "build",
    "data",
    "hp",
    "method",
    "methods",
    "model",
    "models",
    "rounds",
    "serve",
    "sweep",
    "train",
]
_HOME = dict.fromkeys(("data", "methods", "models"), "") | {
    **dict.fromkeys(("BadInput", "Diverged", "Failure"), "errors"),
    **dict.fromkeys(("FedAvg", "Local", "Round", "Upload", "build", "hp", "method"), "methods"),
    "model": "models",
    "Result": "simulation.result",
    "Run": "simulation.run",
    **dict.fromkeys(("rounds", "serve", "train"), "simulation.session"),
    "sweep": "simulation.sweep",
}


def __getattr__(name: str) -> Any:
    """Import torch only when it is needed, so that `fedrepro --help` stays fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedrepro' has no attribute {name!r}")
    return getattr(import_module(f"fedrepro.{_HOME[name]}"), name) if _HOME[name] else import_module(f"fedrepro.{name}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

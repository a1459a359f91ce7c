"""The architecture: who may import whom, and how long modules and functions may be."""

import ast
import inspect
import subprocess
import sys
import tomllib
import typing
from pathlib import Path

import pytest

import fedrepro
from fedrepro.methods import FedAvg, Local, registry

HOME = Path(fedrepro.__file__).parent
ABOVE = {  # package -> what it must not know
    "simulation": ("fedrepro.evidence", "fedrepro.lessons"),
    "data": ("fedrepro.evidence", "fedrepro.lessons"),
    "models": ("fedrepro.evidence", "fedrepro.lessons"),
    "methods": ("fedrepro.evidence", "fedrepro.lessons"),
    "evidence": ("fedrepro.lessons",),
}


def imported(path: Path) -> set[str]:
    """The full names of everything a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("package", ABOVE)
def test_a_package_knows_only_what_is_below_it(package):
    modules = sorted((HOME / package).rglob("*.py"))
    assert modules
    for path in modules:
        assert not [name for name in imported(path) if name.startswith(ABOVE[package])], path


HOOKS = [name for name, member in vars(FedAvg).items() if inspect.isfunction(member) and not name.startswith("_")]


@pytest.mark.parametrize("method", registry())
def test_hooks_are_annotated_and_in_the_order_in_which_a_round_calls_them(method):
    own = [name for name in vars(registry()[method]) if name in HOOKS]
    assert own == sorted(own, key=HOOKS.index)
    for name in own:
        hook, base = (inspect.signature(getattr(cls, name)) for cls in (registry()[method], FedAvg))
        assert [*hook.parameters] == [*base.parameters]
        unknown = [key for key, value in hook.parameters.items() if key != "self" and value.annotation is value.empty]
        assert not unknown and hook.return_annotation is not hook.empty, name


def test_local_declares_and_explains_every_field():
    """What a visit gives a method, by the assignments of its code."""
    tree = ast.parse(inspect.getsource(Local)).body[0]
    declared = {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    assigned = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not node.attr.startswith("_")
    }
    assert assigned <= declared
    assert declared - assigned == {"client", "grads"}  # set by the worker
    from fedrepro.simulation.client import Worker

    assert typing.get_type_hints(Local, {"Worker": Worker} | vars(sys.modules[Local.__module__]))["worker"] is Worker


def test_the_api_is_what_editors_see():
    """The lazy names, those for type checkers, __all__ and dir() are one list; nothing of it imports torch early."""
    block = next(node for node in ast.parse(Path(fedrepro.__file__).read_text()).body if isinstance(node, ast.If))
    shown = sorted(alias.name for node in block.body for alias in node.names)
    assert shown == sorted(fedrepro._HOME) == fedrepro.__all__ == sorted(set(dir(fedrepro)) - {"__version__"})
    for name in fedrepro.__all__:
        getattr(fedrepro, name)
    script = "import sys, fedrepro; dir(fedrepro); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"
    with pytest.raises(AttributeError, match="'fedrepro' has no attribute 'nope'"):
        fedrepro.nope  # noqa: B018


def test_types_are_packaged():
    settings = tomllib.loads((HOME.parent / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert (HOME / "py.typed").exists() and "py.typed" in settings["fedrepro"]

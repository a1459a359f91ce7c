"""The house: who may import whom, and how long a thing may be."""

import ast
from pathlib import Path

import pytest

import fedrepro

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

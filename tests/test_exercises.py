"""Every exercise of a method notebook: as it stands the check says "Not yet", with the hidden solution "Right"."""

import re

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from fedrepro.evidence.spec import NOTEBOOKS
from fedrepro.lessons.exercises import compare

METHOD_NOTEBOOKS = sorted(NOTEBOOKS.glob("*/method.ipynb"))
SOLUTION = re.compile(r"<details>\s*<summary>Solution.*?```python\n(.*?)```", re.S)


def exercises(notebook) -> list[tuple[int, str]]:
    """(cell to edit, its solution) for every exercise: the solution is the next one after the cell."""
    found, waiting = [], None
    for i, cell in enumerate(notebook.cells):
        if "exercise" in cell.metadata.get("tags", []):
            assert waiting is None, f"cell {waiting} has no solution"
            waiting = i
        if waiting is not None and (solution := SOLUTION.search(cell.source)):
            found.append((waiting, solution[1]))
            waiting = None
    assert waiting is None, f"cell {waiting} has no solution"
    return found


def answers(notebook, folder) -> list[str]:
    """What every check of the executed notebook says."""
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    texts = [out.get("data", {}).get("text/plain", "") for cell in notebook.cells for out in cell.get("outputs", [])]
    return [text for text in texts if text.startswith(("✓ Right", "✗ Not yet"))]


@pytest.mark.parametrize("path", METHOD_NOTEBOOKS, ids=lambda path: path.parent.name)
def test_solutions_are_right_and_stubs_are_not(path, monkeypatch):
    monkeypatch.setenv("FEDREPRO_SCALE", "smoke")
    notebook = nbformat.read(path, as_version=4)
    found = exercises(notebook)
    assert 3 <= len(found) <= 5
    stubs = answers(nbformat.read(path, as_version=4), path.parent)
    assert len(stubs) == len(found) and all(text.startswith("✗") for text in stubs), stubs
    for i, solution in found:
        notebook.cells[i].source = solution
    solved = answers(notebook, path.parent)
    assert len(solved) == len(found) and all(text.startswith("✓") for text in solved), solved


def test_compare_says_what_is_off():
    assert compare([1.0, 2.0], torch.tensor([1.0, 2.0])).right
    assert "empty" in compare(..., 1.0).message
    assert "shape (1,); expected (2,)" in compare([1.0], [1.0, 2.0]).message
    assert "off by up to 0.5" in compare([1.0, 2.5], [1.0, 2.0]).message
    assert "expected numbers" in compare("two", 2.0).message
    assert "not finite" in compare(float("nan"), 2.0).message

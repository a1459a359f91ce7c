"""Every exercise of a method notebook: as it stands the check says "Not yet", with the hidden solution "Right"."""

import itertools
import re

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from fedrepro.evidence.spec import NOTEBOOKS
from fedrepro.lessons.exercises import difference

METHOD_NOTEBOOKS = sorted(NOTEBOOKS.glob("*/method.ipynb"))
SOLUTION = re.compile(r"<details>\s*<summary>Solution.*?```python\n(.*?)```", re.S)


def with_solutions(notebook) -> int:
    """Puts behind every exercise its solution and the check again -> how many exercises there are.

    An exercise is a cell tagged so, the check right behind it, and the first solution after that."""
    cells, solved = notebook.cells, []
    starts = [i for i, cell in enumerate(cells) if "exercise" in cell.metadata.get("tags", [])]
    for start, end in itertools.pairwise([*starts, len(cells)]):
        check = next(cell for cell in cells[start + 1 : end] if cell.cell_type == "code")
        solution = next(found[1] for cell in cells[start:end] if (found := SOLUTION.search(cell.source)))
        solved.append((end, [nbformat.v4.new_code_cell(solution), nbformat.v4.new_code_cell(check.source)]))
    for end, added in reversed(solved):
        cells[end:end] = added
    return len(solved)


@pytest.mark.parametrize("path", METHOD_NOTEBOOKS, ids=lambda path: path.parent.name)
def test_stubs_are_not_right_and_solutions_are(path, monkeypatch):
    monkeypatch.setenv("FEDREPRO_SCALE", "smoke")
    notebook = nbformat.read(path, as_version=4)
    count = with_solutions(notebook)
    assert 3 <= count <= 5
    where = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    texts = [out.get("data", {}).get("text/plain", "") for cell in notebook.cells for out in cell.get("outputs", [])]
    answers = [text[:1] for text in texts if text.startswith(("✓ Right", "✗ Not yet"))]
    assert answers == ["✗", "✓"] * count, answers


def test_a_difference_is_described():
    assert not difference([1.0, 2.0], torch.tensor([1.0, 2.0]), "it")
    assert "empty" in difference(..., 1.0, "it")
    assert "shape (1,); expected (2,)" in difference([1.0], [1.0, 2.0], "it")
    assert "off by up to 0.5" in difference([1.0, 2.5], [1.0, 2.0], "it")
    assert "expected numbers" in difference("two", 2.0, "it")
    assert "not finite" in difference(float("nan"), 2.0, "it")

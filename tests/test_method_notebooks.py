"""What every method notebook must be: short cells, the library's own source, assertions, marked cells to edit."""

import re

import nbformat
import pytest

from fedrepro.evidence.spec import HOME, NOTEBOOKS

METHOD_NOTEBOOKS = sorted(NOTEBOOKS.glob("*/method.ipynb"))
LINES = 12


def tagged(cells, tag: str) -> list:
    return [cell for cell in cells if tag in cell.metadata.get("tags", [])]


@pytest.mark.parametrize("path", METHOD_NOTEBOOKS, ids=lambda path: path.parent.name)
def test_a_method_notebook_builds_the_method_in_short_cells(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    long = [cell.source.splitlines()[0] for cell in code if len(cell.source.splitlines()) > LINES]
    assert not long, f"cells of more than {LINES} lines: {long}"
    source = "\n".join(cell.source for cell in code)
    assert "inspect.getsource(" in source
    assert len(re.findall(r"^\s*assert ", source, re.M)) >= 3  # loss and gradient, a visit, a round
    assert 'os.environ.get("FEDREPRO_SCALE")' in source
    assert "from fedrepro.lessons.drawing import " in source  # colours by what they mean


@pytest.mark.parametrize("path", METHOD_NOTEBOOKS, ids=lambda path: path.parent.name)
def test_cells_to_edit_say_so(path):
    cells = nbformat.read(path, as_version=4).cells
    assert tagged(cells, "edit")
    assert all("Edit me" in cell.source for cell in tagged(cells, "edit"))


@pytest.mark.parametrize("path", METHOD_NOTEBOOKS, ids=lambda path: path.parent.name)
def test_links_lead_somewhere_and_errata_are_known(path):
    text = "\n".join(c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "markdown")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert any(link.startswith("../explore/") for link in links)
    missing = [link for link in links if not (path.parent / link).exists()]
    assert not missing
    errata = (HOME / "docs" / "errata.md").read_text()
    named = set(re.findall(r"\b(?:FB|KA|AM|DF|ML|X)-\d\d\b", text))
    assert named and all(f"**{name}." in errata for name in named)

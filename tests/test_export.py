"""An executed notebook as a web page: formulas are drawn without any network."""

import os
import re

import nbformat
import pytest

from fedrepro.evidence.export import mathml, web_page

CELLS = [
    "The loss $\\mathcal{L}_{KL}$ of\n\n$$\\frac{1}{M-1}\\sum_{m=1}^{M-1} \\mathrm{KL}(q_m \\| q_L)$$",
    "\\begin{align}a &= b \\\\ c &< d\\end{align}\n\nand <b>bold</b>.",
]


@pytest.fixture
def notebook(tmp_path):
    path = tmp_path / "table.ipynb"
    cells = [nbformat.v4.new_markdown_cell(cell) for cell in CELLS] + [nbformat.v4.new_code_cell("1 + 1")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_formulas_are_mathml_and_nothing_comes_from_elsewhere(notebook):
    text = web_page(notebook).read_text()
    assert text.count("<math") == 3 and text.count('display="block"') == 2
    assert "<mfrac>" in text and "<mtable" in text and "<b>bold</b>" in text
    assert "<script" not in text and not re.search(r"""(?:src|href)=["']https?:""", text)
    assert "jp-Notebook" in text  # JupyterLab's own look


def test_it_is_made_once(notebook):
    page = web_page(notebook)
    page.write_text("kept")
    assert web_page(notebook).read_text() == "kept"
    os.utime(notebook, (page.stat().st_mtime + 1,) * 2)
    assert web_page(notebook).read_text() != "kept"
    assert web_page(notebook.with_name("other.ipynb")) is None


def test_a_formula_that_cannot_be_parsed_is_unchanged():
    assert mathml("\\frac{1}{", "inline") == "<code>\\frac{1}{</code>"
    assert mathml("a < b", "inline").startswith("<math")

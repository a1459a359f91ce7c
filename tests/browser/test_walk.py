"""Every method notebook as a student uses it: run all, edit a marked cell, answer an exercise wrongly, then rightly."""

import re

import nbformat
import pytest
from conftest import Notebook
from test_exercises import SOLUTION

from fedrepro.evidence.spec import NOTEBOOKS

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make setup").expect
WALKS = {  # paper: an edit of a marked cell that draws, a wrong answer to the first exercise, what the check says to it
    "fedmlb": (("lambda2 = 3.0", "lambda2 = 0.5"), "M * M", "again for every path"),
    "fedbr": (("pay = 0.01", "pay = 1.0"), "list(range(1, alpha + 1))", "these are the first blocks"),
    "kapc": (("(0.2, 0.4, 0.6)", "(0.1, 0.9)"), "sum(r < mu for r in own)", "the number of layers, not of bytes"),
    "ama": (("final, p = 0.6, 0.5", "final, p = 0.9, 0.0"), "1 / rounds", "starts at α₀"),
    "dfl": (("T, split, rounds = 0.6,", "T, split, rounds = 0.0,"), "int((1 - T) * R) + 1", "one round late"),
}


class Walk(Notebook):
    """Cell by cell, as in its file."""

    def __init__(self, page, server, pictures, paper: str):
        super().__init__(page, server, pictures, f"{paper}/method")
        self.file = nbformat.read(NOTEBOOKS / f"{self.name}.ipynb", as_version=4).cells

    def place(self, test) -> int:
        return next(i for i, cell in enumerate(self.file) if test(cell))

    def cell(self, i: int):
        return self.page.locator(".jp-Notebook .jp-Cell").nth(i)

    def run(self, i: int, source: str | None = None) -> None:
        """Shift+Enter in a cell, with another text or as it is, until the number at its left is a new one."""
        prompt, editor = self.cell(i).locator(".jp-InputPrompt"), self.cell(i).locator(".cm-content")
        before = prompt.text_content()
        editor.scroll_into_view_if_needed()
        editor.fill(source) if source else editor.click()
        editor.press("Shift+Enter")
        expect(prompt).not_to_have_text(before)
        expect(prompt).to_have_text(re.compile(r"\[\d+\]:"))

    def drawn(self, i: int) -> str:
        """The figure below a cell."""
        return self.cell(i).locator(".jp-OutputArea img").last.get_attribute("src")

    def errors(self) -> int:
        return self.page.locator("[data-mime-type='application/vnd.jupyter.error']").count()


@pytest.mark.parametrize("paper", WALKS)
def test_a_student_runs_edits_and_answers(page, server, pictures, paper):
    (old, new), wrong, said = WALKS[paper]
    walk = Walk(page, server, pictures, paper)
    edited = walk.place(lambda cell: "edit" in cell.metadata.get("tags", []) and old in cell.source)
    exercise = walk.place(lambda cell: "exercise" in cell.metadata.get("tags", []))
    stub, check = walk.file[exercise].source, exercise + 1
    solution = next(found[1] for cell in walk.file[exercise:] if (found := SOLUTION.search(cell.source)))
    walk.run_all()
    expect(page.locator(".jp-InputPrompt", has_text="*")).to_have_count(0)
    answer = walk.cell(check).locator(".jp-OutputArea-output").last
    expect(answer).to_contain_text("Not yet")
    assert walk.errors() == 0
    before = walk.drawn(edited)
    walk.picture("-run")
    walk.run(edited, walk.file[edited].source.replace(old, new))
    assert walk.drawn(edited) != before
    walk.picture("-edited")
    for text, found in ((re.sub(r"return \.\.\..*|\.\.\.", f"return {wrong}", stub), said), (solution, "Right")):
        walk.run(exercise, text)
        walk.run(check)
        expect(answer).to_contain_text(found)
        walk.picture("-right" if found == "Right" else "-wrong")
    assert walk.errors() == 0


def test_every_method_notebook_is_walked():
    assert set(WALKS) == {path.parent.name for path in NOTEBOOKS.glob("*/method.ipynb")}

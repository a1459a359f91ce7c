"""What every table notebook must be: short cells, the paper's own layout, something to try at every scale."""

from collections import defaultdict

import nbformat
import pytest

from fedrepro.evidence import spec, trial
from fedrepro.evidence.sections import SCALES
from fedrepro.evidence.study import Plan, Study

TABLES = [f"{paper}/{table.name}" for paper in spec.papers() for table in spec.tables(paper)]


def code_cells(table: str) -> list:
    notebook = nbformat.read(spec.NOTEBOOKS / f"{table}.ipynb", as_version=4)
    nbformat.validate(notebook)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


class Planned(Study):
    """A study whose trials are planned and not trained."""

    def vary(self, hp=None, cells=None, seeds=None, column=None, **settings):
        self.chosen = trial.plan(self, hp or {}, cells or {}, seeds or self.seeds[:1], settings)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_notebook_invites_experiments(table):
    cells = code_cells(table)
    sources = [cell.source for cell in cells]
    assert any("study.paper_table(" in source for source in sources) == bool(spec.find(table).reported)
    (edit,) = [i for i, cell in enumerate(cells) if "edit" in cell.metadata.get("tags", [])]
    assert sources[edit].startswith("# Edit me: ") and "study.vary(" in sources[edit]
    assert "try" in cells[edit].metadata.tags  # the driver leaves it out
    assert sources.index("study.evidence()") > edit


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("scale", SCALES)
def test_what_is_tried_is_another_run_at_every_scale(table, scale):
    """At most two runs, which differ from all of the table's: nobody waits for a grid."""
    (edit,) = [cell.source for cell in code_cells(table) if "edit" in cell.metadata.get("tags", [])]
    study = Planned(table, scale)
    exec(edit, {"study": study})
    runs = {run.id for _, run in study.chosen}
    assert 1 <= len(study.chosen) <= 2
    assert not runs & {run.id for run in Plan(table, scale).runs()}


def test_hardly_a_code_cell_is_copied():
    """Except for the parameters and the end, no code is in two notebooks."""
    where = defaultdict(set)
    for table in TABLES:
        for cell in code_cells(table):
            where[cell.source.replace(f'"{table}"', "...")].add(table)
    copied = {source.splitlines()[0] for source, tables in where.items() if len(tables) > 1}
    assert copied == {"table = ...", "study.evidence()"}

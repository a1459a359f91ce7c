"""The driver executes notebooks, goes on after a failure, and refuses what a notebook does not take."""

import json
import shutil

import nbformat
import pandas as pd
import pytest

from fedrepro.cli import main
from fedrepro.errors import BadInput
from fedrepro.evidence import driver, spec
from fedrepro.evidence.study import Study

TABLE = "table2_temperature"


@pytest.fixture
def paper(tmp_path, monkeypatch):
    """FedBR's Table II under a folder of our own, where notebooks and results may be spoilt."""
    (tmp_path / "reproduce/fedbr").mkdir(parents=True)
    (tmp_path / "notebooks/fedbr").mkdir(parents=True)
    for name in ("_base.toml", f"{TABLE}.toml"):
        shutil.copy(spec.REPRODUCE / "fedbr" / name, tmp_path / "reproduce/fedbr" / name)
    shutil.copytree(spec.REPRODUCE / "fedbr/reported", tmp_path / "reproduce/fedbr/reported")
    shutil.copy(spec.NOTEBOOKS / f"fedbr/{TABLE}.ipynb", tmp_path / f"notebooks/fedbr/{TABLE}.ipynb")
    monkeypatch.setattr(spec, "REPRODUCE", tmp_path / "reproduce")
    monkeypatch.setattr(spec, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(spec, "HOME", tmp_path)
    monkeypatch.setenv("FEDREPRO_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("FEDREPRO_STORE", str(tmp_path / "runs"))
    monkeypatch.setenv("FEDREPRO_WORKERS", "1")
    return tmp_path


def change(path, edit):
    notebook = nbformat.read(path, as_version=4)
    edit(notebook.cells)
    nbformat.write(notebook, path)


def test_a_failing_notebook_does_not_stop_the_others(paper, capsys):
    broken = paper / "notebooks/fedbr/a_broken.ipynb"
    shutil.copy(paper / f"notebooks/fedbr/{TABLE}.ipynb", broken)
    shutil.copy(paper / f"reproduce/fedbr/{TABLE}.toml", paper / "reproduce/fedbr/a_broken.toml")
    change(broken, lambda cells: cells.insert(2, nbformat.v4.new_code_cell("raise OSError('spoilt')")))
    assert main(["reproduce", "fedbr", "--scale", "smoke"]) == 1
    out = capsys.readouterr()
    assert "a_broken: FAILED: OSError: spoilt" in out.out
    assert f"{TABLE}: done" in out.out
    assert "FAILED: a_broken" in out.err

    folder = paper / "results/smoke/fedbr"
    made = {p.name for p in folder.iterdir() if p.name.startswith(TABLE)}
    assert made == {
        f"{TABLE}{s}"
        for s in (".ipynb", ".html", ".csv", "_values.csv", "_verdicts.csv", "_effects.csv", ".png", ".svg")
    }
    values = pd.read_csv(folder / f"{TABLE}_values.csv")
    assert set(values["scale"]) == {"smoke"}
    for run in values["run"]:
        assert json.loads((paper / "runs" / run / "result.json").read_text())["id"] == run
    verdicts = pd.read_csv(folder / f"{TABLE}_verdicts.csv")
    assert set(verdicts["claim"]) == {"fedbr-c30", "fedbr-c31"}


def test_a_parameter_the_notebook_does_not_take_is_refused(paper):
    def forget_seeds(cells):
        cells[1].source = "\n".join(line for line in cells[1].source.splitlines() if not line.startswith("seeds"))

    change(paper / f"notebooks/fedbr/{TABLE}.ipynb", forget_seeds)
    with pytest.raises(BadInput, match="parameters cell lacks seeds"):
        driver.execute(Study(f"fedbr/{TABLE}", "smoke"), 2, 1, False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reproduce", "fedbx"], "paper: 'fedbx' is not valid"),
        (["reproduce", "fedbr", "--scale", "tiny"], "scale: 'tiny' is not valid"),
        (["reproduce", "fedbr", "--table", "table9"], "table: 'table9' is not valid"),
        (["reproduce", "fedbr", "--seeds", "0"], "seeds: 0 is not valid"),
        (["reproduce", "fedbr", "--scale", "smoke", "--workers", "0"], "workers: 0 is not valid"),
    ],
)
def test_bad_words(paper, capsys, words, message):
    assert main(words) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (paper / "results").exists()


def test_fresh_computes_again(paper):
    study = Study(f"fedbr/{TABLE}", "smoke").run()
    first = [p.stat().st_mtime_ns for p in sorted((paper / "runs").glob("*/result.json"))]
    Study(f"fedbr/{TABLE}", "smoke").run()
    assert [p.stat().st_mtime_ns for p in sorted((paper / "runs").glob("*/result.json"))] == first
    before = study.values
    again = Study(f"fedbr/{TABLE}", "smoke", fresh=True).run()
    assert [p.stat().st_mtime_ns for p in sorted((paper / "runs").glob("*/result.json"))] != first
    pd.testing.assert_frame_equal(before, again.values)


def test_the_same_results_are_the_same_notebook(paper):
    """No clock, address or random name is left in an executed notebook."""
    made = paper / f"results/smoke/fedbr/{TABLE}.ipynb"
    seen = []
    for _ in range(3):
        assert main(["reproduce", "fedbr", "--scale", "smoke"]) == 0
        seen.append(made.read_text())
    assert seen[1] == seen[2]
    assert str(paper) not in seen[0]
    assert seen[0].count("run/s]") + seen[0].count("s/run]") <= 1  # of the bar of the first, which trained

"""The driver executes notebooks, continues after a failure, and refuses unknown parameters."""

import json
import shutil

import nbformat
import pandas as pd
import pytest

import results
from fedrepro.cli import main
from fedrepro.errors import BadInput
from fedrepro.evidence import driver, spec
from fedrepro.evidence.notebook import open_study
from fedrepro.evidence.study import Plan

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

    folder = paper / "results/local/smoke/fedbr"
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
        driver.execute(Plan(f"fedbr/{TABLE}", "smoke"), paper / "results/local/smoke/fedbr")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reproduce", "fedbx"], "paper: 'fedbx' is not valid"),
        (["reproduce", "fedbr", "--scale", "tiny"], "scale: 'tiny' is not valid"),
        (["reproduce", "fedbr", "--table", "table9"], "table: 'table9' is not valid"),
        (["reproduce", "fedbr", "--seeds", "0"], "seeds: 0 is not valid"),
        (["reproduce", "fedbr", "--seeds", "1,1"], "seeds: [1, 1] is not valid"),
        (["reproduce", "fedbr", "--seeds", ","], "seeds: [] is not valid"),
        (["reproduce", "fedbr", "--scale", "smoke", "--workers", "0"], "workers: 0 is not valid"),
    ],
)
def test_bad_arguments(paper, capsys, words, message):
    assert main(words) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (paper / "results").exists()


def test_fresh_computes_again(paper, capsys):
    def results():
        return [path.stat().st_mtime_ns for path in sorted((paper / "runs").glob("*/result.json"))]

    study = open_study(f"fedbr/{TABLE}", "smoke")
    first = results()
    open_study(f"fedbr/{TABLE}", "smoke")
    assert results() == first
    again = open_study(f"fedbr/{TABLE}", "smoke", fresh=True)
    assert results() != first
    pd.testing.assert_frame_equal(study.values, again.values)
    printed = capsys.readouterr().out
    assert printed.count("4 trained now") == 2 and printed.count("4 from the store") == 1
    open_study(f"fedbr/{TABLE}", "smoke", missing="leave")
    assert capsys.readouterr().out.endswith("4 runs at smoke scale: 4 trained\n")
    assert not (paper / "results").exists()  # a notebook that a person runs writes no results


def test_own_runs_leave_what_is_committed_alone(paper, capsys, monkeypatch):
    """Fewer seeds than committed: results in a folder of their own, shown beside, equal bit by bit."""
    command = ["reproduce", "fedbr", "--scale", "smoke"]
    committed = results.make(paper, f"fedbr/{TABLE}")
    before = {path: path.read_bytes() for path in committed.iterdir()}
    assert main([*command, "--seeds", "1"]) == 0
    assert {path: path.read_bytes() for path in committed.iterdir()} == before
    printed = capsys.readouterr().out
    assert "claims at smoke scale with 1 seed: " in printed and "committed at smoke scale with 2 seeds: " in printed
    assert "4 of 4 runs equal the committed record, bit by bit" in printed
    own = paper / "results/local/smoke/fedbr"
    assert set(pd.read_csv(own / f"{TABLE}_values.csv")["seed"]) == {0}
    shutil.rmtree(paper / "runs")  # the record alone is enough
    monkeypatch.setattr(driver, "sweep", lambda runs, **options: pytest.fail("trained") if runs else None)
    assert main([*command, "--seeds", "2"]) == 0
    assert "8 of 8 runs are the committed record's" in capsys.readouterr().out
    for path in committed.glob("*.csv"):
        assert (own / path.name).read_bytes() == path.read_bytes()
    assert main(["verify", str(own)]) == 0


def test_another_table_joins_the_record(tmp_path, capsys):
    """One table with one seed, then a second with two: the first stays, and all of it follows from the record."""
    folder = results.make(tmp_path, "fedbr/table3_loss_weights", seeds=1)
    before = {path.name: path.read_bytes() for path in folder.glob("table3*")}
    results.make(tmp_path, f"fedbr/{TABLE}")
    assert {path.name: path.read_bytes() for path in folder.glob("table3*")} == before
    named = json.loads((folder / "manifest.json").read_text())["tables"]
    assert {name: len(runs) for name, runs in named.items()} == {TABLE: 8, "table3_loss_weights": 8}
    assert main(["verify", str(folder)]) == 0
    runs = json.loads((folder / "runs.json").read_text())
    results.make(tmp_path, f"fedbr/{TABLE}", seeds=1)
    assert len(json.loads((folder / "runs.json").read_text())) < len(runs)
    assert main(["verify", str(folder)]) == 0


def test_the_same_results_are_the_same_notebook(paper):
    """No clock, address or random name is left in an executed notebook."""
    made = paper / f"results/local/smoke/fedbr/{TABLE}.ipynb"
    seen = []
    for _ in range(2):
        assert main(["reproduce", "fedbr", "--scale", "smoke"]) == 0
        seen.append(made.read_text())
    assert seen[0] == seen[1]
    assert str(paper) not in seen[0]
    assert "study.evidence()" in seen[0] and "study.vary(" not in seen[0]  # what is tried is never saved

"""`make lab`: a student's own copy and its reset, and saving that leaves git clean."""

import importlib.util
import json
import shutil
import subprocess
import sys

import nbformat
import pytest

from fedrepro.errors import BadInput, Failure
from fedrepro.evidence.spec import NOTEBOOKS
from fedrepro.lessons import index, lab

LESSON = "explore/first_round.ipynb"


@pytest.fixture
def classes(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "CLASSES", tmp_path / "class")
    return tmp_path / "class"


def test_a_student_keeps_a_copy_and_can_reset_it(classes):
    folder = lab.student("ada")
    lesson = folder / LESSON
    assert lesson.read_bytes() == (NOTEBOOKS / LESSON).read_bytes()
    lesson.write_text("ada's work")
    assert lab.student("ada") == folder
    assert lesson.read_text() == "ada's work"
    assert (lab.student("bob") / LESSON).read_bytes() == (NOTEBOOKS / LESSON).read_bytes()
    for n in (1, 2):
        assert lab.student("ada", reset=True) == folder
        assert lesson.read_bytes() == (NOTEBOOKS / LESSON).read_bytes()
        assert (classes / f"ada.before-reset-{n}").is_dir()
    assert (classes / "ada.before-reset-1" / LESSON).read_text() == "ada's work"
    assert sorted(path.name for path in classes.iterdir()) == ["ada", "ada.before-reset-1", "ada.before-reset-2", "bob"]


@pytest.mark.parametrize("name", ["", "../ada", ".ada", "a/b", "-reset"])
def test_a_name_that_is_no_folder_is_refused(classes, name):
    with pytest.raises(BadInput, match=r"CLASS: .* letters, digits"):
        lab.student(name)
    assert not classes.exists()


def test_what_is_wrong_is_reported_in_one_line(monkeypatch):
    asked = subprocess.run([sys.executable, "-m", lab.__name__, "--class", "../ada"], capture_output=True, text=True)
    assert asked.returncode == 1
    assert asked.stderr == "lab: CLASS: '../ada' is not valid; allowed: a name of letters, digits, and any of . _ -\n"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Failure, match="make lab APP=1"):
        lab.app()


def test_only_the_repositorys_notebooks_are_saved_without_outputs(classes):
    assert any("without_outputs" in word for word in lab.command(NOTEBOOKS))
    assert not any("without_outputs" in word for word in lab.command(lab.student("ada")))


@pytest.mark.parametrize("name", [*(f"explore/{name}" for name in index.LESSONS), "index"])
def test_a_lesson_that_was_run_is_saved_as_it_was(name, tmp_path):
    """As JupyterLab hands it over after a run, through Jupyter's own contents manager."""
    from jupyter_server.services.contents.filemanager import FileContentsManager

    path = tmp_path / "lesson.ipynb"
    shutil.copy(NOTEBOOKS / f"{name}.ipynb", path)
    before = path.read_bytes()
    manager = FileContentsManager(root_dir=str(tmp_path), pre_save_hook="fedrepro.lessons.lab.without_outputs")
    model = manager.get("lesson.ipynb")
    model["content"]["metadata"]["language_info"].update(version="3.11.7", file_extension=".py")
    model["content"]["metadata"]["kernelspec"]["display_name"] = "Python 3 (ipykernel)"
    model["content"]["metadata"]["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    for cell in model["content"]["cells"]:
        if cell["cell_type"] == "code":
            cell["execution_count"] = 1
            cell["outputs"] = [nbformat.v4.new_output("stream", text="a result")]
    manager.save(json.loads(json.dumps(model, default=str)), "lesson.ipynb")
    assert path.read_bytes() == before


def test_make_index_writes_notebooks_as_jupyterlab_saves_them(tmp_path, monkeypatch):
    path = tmp_path / "paper/table.ipynb"
    path.parent.mkdir()
    cell = {"cell_type": "markdown", "id": "first", "metadata": {}, "source": "# A title\n\nand text"}
    path.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    monkeypatch.setattr(index, "NOTEBOOKS", tmp_path)
    index.tidy()
    written = path.read_bytes()
    assert json.loads(written)["cells"][0]["source"] == ["# A title\n", "\n", "and text"]
    nbformat.write(nbformat.read(path, as_version=4), path)
    assert path.read_bytes() == written

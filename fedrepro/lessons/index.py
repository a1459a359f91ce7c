"""notebooks/index.ipynb: a link to every notebook, with the notebook's own title."""

import json
from pathlib import Path

from fedrepro.evidence.spec import NOTEBOOKS

LESSONS = (
    "first_round",
    "partitions",
    "paths",
    "gmbs",
    "cube",
    "mixing",
    "soft_targets",
    "live",
)  # in the order of a course
START = """# fedrepro

Five papers on federated learning, reproduced, and lessons on what is inside. Open a notebook and choose
*Run → Run All Cells*."""
PAPERS = "Each trains what is missing, puts the paper's numbers beside ours and judges the paper's claims."


def title(path: Path) -> str:
    """The first heading of a notebook."""
    first = json.loads(path.read_text())["cells"][0]["source"]
    return "".join(first).splitlines()[0].removeprefix("# ")


def text() -> str:
    lines = [
        START,
        "",
        "## Lessons",
        "",
        "Nothing to program: move the controls. None takes longer than a few minutes.",
        "",
    ]
    lines += [_link(NOTEBOOKS / "explore" / f"{name}.ipynb") for name in LESSONS]
    lines += ["", "## The papers' tables and figures", "", PAPERS]
    for folder in sorted(path for path in NOTEBOOKS.iterdir() if path.is_dir() and path.name != "explore"):
        if paths := sorted(folder.glob("*.ipynb")):
            lines += ["", *map(_link, paths)]
    return "\n".join(lines)


def _link(path: Path) -> str:
    return f"- [{title(path)}]({path.relative_to(NOTEBOOKS)})"


def notebook() -> str:
    cell = {"cell_type": "markdown", "id": "index", "metadata": {}, "source": text()}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": [cell], "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
               "nbformat": 4, "nbformat_minor": 5}  # fmt: skip
    return json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    (NOTEBOOKS / "index.ipynb").write_text(notebook())

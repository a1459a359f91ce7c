"""notebooks/index.ipynb: a map of all notebooks, with what each teaches and how long it takes."""

import io
import sys
from pathlib import Path

import nbformat
from PIL import Image

from fedrepro.evidence.spec import NOTEBOOKS, natural
from fedrepro.lessons.lab import METADATA

LESSONS = {  # in the order of a course: minutes, what one learns, the papers
    "first_round": (15, "what a round is, FedAvg, and why clients drift apart", ()),
    "partitions": (10, "how a split makes clients differ, and how to measure it", ()),
    "paths": (15, "hybrid paths of local and global blocks, and what they really cost", ("fedmlb", "fedbr")),
    "gmbs": (15, "how a bandit explores, and when its rewards are too small to matter", ("fedbr",)),
    "cube": (15, "personal models: who learns from whom, in which layer", ("kapc",)),
    "mixing": (15, "what to do with updates that arrive late", ("ama",)),
    "soft_targets": (15, "what clients can teach each other with outputs instead of weights", ("dfl",)),
    "live": (20, "to compare two methods fairly, and to distrust a single run", ()),
}
PAPERS = {  # name, what its notebooks build
    "fedmlb": ("FedMLB", "local features judged by frozen global blocks"),
    "fedbr": ("FedBR", "send only the last blocks, and let a bandit choose how many"),
    "dfl": ("DFL", "learn from hard labels and from everyone's mean outputs"),
    "ama": ("AMA-FES", "mix old, new and late models; weak devices train the classifier only"),
    "kapc": ("KAPC + BLS", "coach personal models layer by layer; send only layers that matter"),
    "arena": ("The arena", "the methods of all five in one federation, tuned alike"),
}
WIDTH = 168  # pixels of a thumbnail
START = """# fedrepro

Five papers on federated learning, reproduced, with lessons on how they work. Open a notebook and choose
*Run → Run All Cells*. New to federated learning? Begin with [A first round](explore/first_round.ipynb)."""
ABOUT_LESSONS = "Move the controls and watch; no code, no waiting."
ABOUT_PAPERS = """**Method** notebooks build the algorithm in plain PyTorch, with exercises: 20 to 30 minutes to read,
about a minute to run. **Tables** put the paper's numbers beside ours and judge its claims: 5 to 10 minutes to read;
what is not trained yet takes up to 3 minutes per notebook and seed on two cores."""


def title(path: Path) -> str:
    """The first heading of a notebook."""
    return nbformat.read(path, as_version=4).cells[0].source.splitlines()[0].removeprefix("# ")


def link(path: Path, text: str = "") -> str:
    return f"[{text or title(path)}]({path.relative_to(NOTEBOOKS)})"


def lesson(name: str) -> Path:
    return NOTEBOOKS / "explore" / f"{name}.ipynb"


def _lessons() -> list[str]:
    lines = ["| | lesson | you learn | minutes |", "| --- | --- | --- | ---: |"]
    for name, (minutes, learned, _) in LESSONS.items():
        picture = f"![{name}]({thumbnail(name).relative_to(NOTEBOOKS)})"
        lines.append(f"| {link(lesson(name), picture)} | {link(lesson(name))} | {learned} | {minutes} |")
    return lines


def _papers() -> list[str]:
    lines = ["| paper | method | tables and figures | lessons |", "| --- | --- | --- | --- |"]
    for paper, (name, learned) in PAPERS.items():
        method = NOTEBOOKS / paper / "method.ipynb"
        tables = sorted(set((NOTEBOOKS / paper).glob("*.ipynb")) - {method}, key=lambda path: natural(path.name))
        shown = "<br>".join(link(path, title(path).partition(", ")[2]) for path in tables)
        built = link(method, "build it") if method.exists() else ""
        lessons = "<br>".join(link(lesson(key), key.replace("_", " ")) for key in LESSONS if paper in LESSONS[key][2])
        lines.append(f"| **{name}**: {learned} | {built} | {shown} | {lessons} |")
    return lines


def text() -> str:
    own = [f"- {link(path)}" for path in sorted(NOTEBOOKS.glob("*.ipynb")) if path.name != "index.ipynb"]
    lessons = ["## Lessons", "", ABOUT_LESSONS, "", *_lessons()]
    papers = ["## Papers", "", ABOUT_PAPERS, "", *_papers()]
    return "\n".join([START, "", *lessons, "", *papers, "", "## Your own", "", *own])


def notebook() -> str:
    cell = nbformat.v4.new_markdown_cell(text(), id="index")
    return nbformat.writes(nbformat.v4.new_notebook(cells=[cell], metadata=METADATA)) + "\n"


def tidy() -> None:
    """Write every notebook exactly as JupyterLab saves it, so that opening one changes no file."""
    for path in NOTEBOOKS.rglob("*.ipynb"):
        saved = nbformat.writes(nbformat.read(path, as_version=4)) + "\n"
        if saved != path.read_text():
            path.write_text(saved)


def thumbnail(name: str) -> Path:
    return NOTEBOOKS / "explore" / "thumbnails" / f"{name}.png"


def draw_thumbnails() -> None:
    """The lessons' figures as they open, small and in few colours; a few kB each."""
    from fedrepro.lessons import live, widgets
    from fedrepro.lessons.drawing import png

    for name in LESSONS:
        panel = getattr(widgets, name)()
        if name == "first_round":
            panel.controls["moment"].value = 8
        picture = Image.open(io.BytesIO(png(live.draw(live.example(10))) if name == "live" else panel.picture.png))
        small = picture.resize((WIDTH, WIDTH * picture.height // picture.width), Image.Resampling.LANCZOS)
        thumbnail(name).parent.mkdir(exist_ok=True)
        small.quantize(32).save(thumbnail(name), optimize=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--thumbnails"]:
        draw_thumbnails()
    (NOTEBOOKS / "index.ipynb").write_text(notebook())
    tidy()

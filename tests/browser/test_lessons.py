"""Every lesson as a person uses it: open, Run All Cells, move a control, look at the figure and the numbers."""

import base64
import itertools
import re
import statistics

import pytest
from conftest import PROJECTOR, SCREEN, Notebook

from fedrepro import rounds as train_rounds
from fedrepro.evidence.spec import NOTEBOOKS
from fedrepro.lessons import cube, first_round, gmbs, live, mixing, partitions, paths, soft_targets
from fedrepro.lessons.drawing import png
from fedrepro.lessons.index import LESSONS

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make setup").expect
READ = """async image => {
    const bytes = new Uint8Array(await (await fetch(image.src)).arrayBuffer());
    return btoa(Array.from(bytes, b => String.fromCharCode(b)).join(''));
}"""

CLOCK = """() => {  // the times of the last key and of the picture that it brought
    window.addEventListener('keydown', () => { window.pressed = performance.now(); window.loaded = 0; }, true);
    document.addEventListener('load', event => {
        if (event.target.matches('img.explore-figure')) window.loaded = performance.now();
    }, true);
}"""


class Lesson(Notebook):
    def run_all(self) -> None:
        super().run_all()
        self.page.locator("img.explore-figure").wait_for()
        self.page.locator(".explore-controls").evaluate("controls => controls.scrollIntoView()")
        self.numbers.filter(has_text=re.compile(".")).wait_for()

    @property
    def numbers(self):
        return self.page.locator(".explore-numbers .widget-html-content")

    @property
    def problem(self):
        return self.page.locator(".explore-problem .widget-html-content")

    @property
    def table(self):
        return self.page.locator(".explore-table .widget-html-content")

    def figure(self) -> bytes:
        return base64.b64decode(self.page.locator("img.explore-figure").evaluate(READ))

    def control(self, text: str):
        named = self.page.locator(".widget-label", has_text=re.compile(f"^{re.escape(text)}$"))
        return self.page.locator(".jupyter-widgets.widget-inline-hbox", has=named).locator("visible=true")

    def press(self, text: str, key: str) -> None:
        self.control(text).locator(".noUi-handle").press(key)

    def timed(self, text: str, key: str) -> float:
        """Seconds from a key on a slider to the new picture, by the browser's clock, after CLOCK was started."""
        self.press(text, key)
        self.page.wait_for_function("window.loaded")
        return self.page.evaluate("(window.loaded - window.pressed) / 1000")

    def choose(self, text: str, option: str) -> None:
        self.control(text).locator("select").select_option(option)

    def button(self, text: str):
        return self.page.locator("button.widget-button", has_text=text)

    def waits(self, seconds: float = 3) -> bool:
        """Whether the progress bar comes to rest: at most the rounds that were under way end."""
        bar, seen = self.page.locator(".progress-bar"), []
        while len(seen) < 4:
            seen.append(bar.get_attribute("style"))
            self.page.wait_for_timeout(1000 * seconds)
            if bar.get_attribute("style") == seen[-1]:
                return True
        return False


@pytest.fixture
def opened(page, server, pictures):
    def open(name: str) -> Lesson:
        lesson = Lesson(page, server, pictures, f"explore/{name}")
        lesson.run_all()
        return lesson

    return open


def plain(numbers: str) -> str:
    return re.sub("<.*?>", "", numbers)


def shows(lesson: Lesson, view: tuple) -> None:
    """The page shows this figure, to the byte, and these numbers."""
    figure, numbers = view
    expect(lesson.numbers).to_have_text(plain(numbers))
    expected, tries = png(figure), 20
    while lesson.figure() != expected and (tries := tries - 1):  # the picture comes a moment after the numbers
        lesson.page.wait_for_timeout(250)
    assert lesson.figure() == expected


def in_view(lesson: Lesson) -> None:
    """On a laptop and on a projector, by day and by night: everything on one screen, nothing over anything else."""
    for screen in (PROJECTOR, SCREEN):
        lesson.page.set_viewport_size(screen)
        lesson.page.wait_for_timeout(500)
        lesson.page.locator(".explore-controls").evaluate("controls => controls.scrollIntoView()")
        figure, controls = (
            lesson.page.locator(part).bounding_box() for part in ("img.explore-figure", ".explore-controls")
        )
        assert controls["x"] + controls["width"] <= figure["x"]
        assert figure["x"] + figure["width"] <= screen["width"]
        for part in (figure, controls):
            assert part["y"] >= 0
            assert part["y"] + part["height"] <= screen["height"]
        assert figure["width"] > 540  # texts of 11 points are still 15 pixels high
        lesson.picture(f"-{screen['width']}")
    lesson.page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    assert "invert" in lesson.page.locator("img.explore-figure").evaluate("image => getComputedStyle(image).filter")
    lesson.page.evaluate("document.body.dataset.jpThemeLight = 'true'")


SPLIT = {"name": "digits", "split": "dirichlet:0.3", "clients": 10, "seed": 0}
PATHS = {"method": "fedbr", "model": "small", "alpha": 2, "tau": 1, "lambda1": 1.0, "lambda2": 1.0}
CUBE = {"t": cube.TRAINED.rounds, "client": 0, "mu": 0.5, **cube.SETTINGS}
SOFT = {"t": 10, "owner": soft_targets.SERVER, "label": 8, "strategy": "threshold", "threshold": 0.6, "ratio": 0.6,
        "rounds": 100, "r": 30}  # fmt: skip
MOVES = [  # lesson, its view, at first, the slider, what it changes
    ("first_round", first_round.view, {"moment": 0}, "moment (3 per round)", {"moment": 1}),
    ("partitions", partitions.view, SPLIT, "clients", {"clients": 11}),
    ("paths", paths.view, PATHS, "α: blocks sent", {"alpha": 3}),
    ("gmbs", gmbs.view, {"t": 12, "client": "plain"}, "round", {"t": 13}),
    ("cube", cube.view, CUBE, "client", {"client": 1}),
    ("mixing", mixing.view, {}, "extra update 1: rounds late", {"late1": 1}),
    ("soft_targets", soft_targets.view, SOFT, "true label", {"label": 9}),
]


@pytest.mark.parametrize(("name", "view", "start", "slider", "change"), MOVES, ids=[move[0] for move in MOVES])
def test_a_moved_control_changes_the_figure_in_time(opened, redraw_budget, name, view, start, slider, change):
    lesson = opened(name)
    shows(lesson, view(**start))
    in_view(lesson)
    before = lesson.figure()
    lesson.picture()
    lesson.page.evaluate(CLOCK)
    seconds = [lesson.timed(slider, "ArrowRight")]
    shows(lesson, view(**{**start, **change}))
    assert lesson.figure() != before
    lesson.picture("-moved")
    seconds += [lesson.timed(slider, key) for key in ("ArrowLeft", "ArrowRight") * 3]
    print(f"\n{name}: from key to picture", *(f"{s:.3f}" for s in seconds), "s")
    assert statistics.median(seconds) < redraw_budget


def test_every_lesson_is_tried():
    assert {move[0] for move in MOVES} | {"live"} == set(LESSONS)


def test_what_is_refused_is_said_in_the_page(opened):
    lesson = opened("partitions")
    lesson.choose("split", "writers")
    expect(lesson.problem).to_contain_text(
        "This cannot be done. split: 'writers' is not valid; allowed: data with writers"
    )
    expect(lesson.page.locator("img.explore-figure")).to_be_hidden()
    expect(lesson.control("concentration")).to_have_count(0)
    lesson.picture("-refused")
    lesson.choose("split", "iid")
    shows(lesson, partitions.view(**{**SPLIT, "split": "iid"}))
    assert lesson.problem.inner_text() == ""


def test_live_runs_pauses_stops_and_starts_again(opened):
    lesson = opened("live")
    expect(lesson.numbers).to_have_text("ready: press Run")
    in_view(lesson)
    empty = lesson.figure()
    lesson.press("rounds", "End")
    expect(lesson.control("rounds").locator(".widget-readout")).to_have_text("100")  # more than this test takes
    lesson.button("Run").click()
    expect(lesson.numbers).to_have_text(re.compile("training: A round"))
    expect(lesson.button("Run")).to_be_disabled()
    lesson.button("Pause").click()
    expect(lesson.numbers).to_contain_text("paused:")
    assert lesson.waits()
    lesson.picture("-paused")
    lesson.button("Resume").click()
    expect(lesson.numbers).to_have_text(re.compile("training: A round ([4-9]|[0-9]{2}) of 100"))
    lesson.button("Stop").click()
    expect(lesson.numbers).to_contain_text("stopped: A round")
    expect(lesson.table).to_contain_text("last accuracy")
    assert lesson.figure() != empty
    rounds = [int(n) for n in re.findall(r"round (\d+) of 100", lesson.numbers.inner_text())]
    run = live.describe({**live.DEFAULTS, "rounds": 100}, "fedavg", {})
    shown = re.findall(r"accuracy ([\d.]+)", lesson.numbers.inner_text())
    *_, last = itertools.islice(train_rounds(run, workers=1), rounds[0])
    assert shown[0] == f"{last['accuracy']:.3f}"  # what the page says is what the engine computes
    assert 4 <= rounds[0] < 100
    lesson.picture("-stopped")
    lesson.button("Reset").click()
    expect(lesson.numbers).to_have_text("ready: press Run")
    assert lesson.figure() == empty
    assert lesson.table.inner_text() == ""
    lesson.page.get_by_role("tab", name="B", exact=True).click()
    lesson.choose("method B", "fedprox")
    lesson.page.get_by_role("tab", name="Clients").click()
    lesson.press("rounds", "End")
    lesson.button("Run").click()
    expect(lesson.numbers).to_have_text(re.compile(r"training: A round \d+ of 100"))
    lesson.button("Stop").click()
    expect(lesson.table).to_contain_text("fedprox")


def test_the_index_leads_to_the_notebooks(page, server, pictures):
    index = Notebook(page, server, pictures, "index")
    links = page.locator(".jp-RenderedMarkdown td a")
    expect(links.first).to_be_visible()
    assert links.count() >= len([p for p in NOTEBOOKS.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts]) - 1
    assert page.locator(".jp-RenderedMarkdown td img").evaluate_all("all => all.every(image => image.naturalWidth > 0)")
    index.picture()
    page.get_by_role("link", name="Splits: who has which images").click()
    expect(page.locator(".jp-RenderedMarkdown h1", has_text="Splits: who has which images")).to_be_visible()
    assert index.page.url.endswith("explore/partitions.ipynb")

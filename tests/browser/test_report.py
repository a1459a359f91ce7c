"""The report at four widths, light and dark, from the file system; search, forest plot and keyboard."""

import re

import pytest

import results
from fedrepro.cli import main
from fedrepro.evidence.record import Record
from fedrepro.evidence.study import Study

WIDTHS = (1400, 1366, 1024, 390)


@pytest.fixture(scope="module")
def report(tmp_path_factory, smoke, as_cpu_scale):
    """FedMLB's Table 2 with made-up numbers, FedBR's Tables IV and V with those of smoke scale."""
    folder = tmp_path_factory.mktemp("report") / "results"
    as_cpu_scale(folder / "cpu/fedbr")
    levels = {"fedavg": 0.5, "fedmlb": 0.52}
    made = results.Made(Record(smoke / "results/smoke/fedbr"), lambda run: levels.get(run.method, 0.51))
    results.write(folder / "cpu/fedmlb", Study("fedmlb/table2_local_objectives", "cpu", 3, made))
    assert main(["report", str(folder)]) == 0
    return folder


@pytest.fixture
def open_page(report, window):
    pages = []

    def open_(name, width=1366, scheme="light"):
        page = window.new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.on("pageerror", lambda error: pytest.fail(str(error)))
        page.goto((report / f"{name}.html").as_uri())
        return page

    yield open_
    for page in pages:
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["index", "fedmlb"])
def test_the_page_fits_the_screen(open_page, pictures, name, width, scheme):
    page = open_page(name, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.screenshot(path=pictures / f"report-{name}-{width}-{scheme}.png")
    for badge in page.locator(".claim > div > .badge").all():  # not over the claim's words
        assert badge.evaluate("found => found.scrollWidth <= found.parentElement.clientWidth")
    assert page.locator("svg.row").first.is_visible()


def shown(page):
    return set(page.locator(".claim:visible").evaluate_all("found => found.map(claim => claim.textContent)"))


def test_search_takes_all_words_and_any_hyphen(open_page):
    page = open_page("fedmlb")
    search = page.get_by_role("searchbox")
    page.keyboard.press("/")
    search.fill("fedmlb kd")  # both words, wherever they stand
    texts = shown(page)
    assert texts and all("fedmlb" in text.lower() and "kd" in text.lower() for text in texts)
    count = int(re.match(r"\d+", page.locator("#shown").inner_text()).group())
    assert count == len(texts) and not page.locator("#note").is_visible()  # what was found comes first
    found = []
    for words in ("FedMLB − FedAvg", "FedMLB - FedAvg", "fedmlb – fedavg"):  # minus, hyphen, dash
        search.fill(words)
        found.append(shown(page))
    assert found[0] and found[0] == found[1] == found[2]
    for words in ("FedLS-NTD", "fedlsntd", "fedls ntd"):
        search.fill(words)
        assert any("FedLS-NTD" in text for text in shown(page))
    search.fill("no such words")
    assert not shown(page)
    page.keyboard.press("Escape")
    assert len(shown(page)) > len(found[0])


def test_buttons_leave_the_claims_of_their_state(open_page):
    page = open_page("fedbr")
    page.get_by_role("button", name="not testable").click()
    claims = page.locator(".claim:visible")
    assert int(re.match(r"\d+", page.locator("#shown").inner_text()).group()) == claims.count() > 0
    assert set(claims.evaluate_all("found => found.map(claim => claim.dataset.verdict)")) == {"not-testable"}


def test_the_forest_plot_leads_to_claim_and_runs(open_page):
    page = open_page("index")
    row = page.locator("#fedmlb .forest tbody tr").filter(has_text="FedMLB − FedAvg").first
    row.get_by_role("link").first.click()
    assert page.url.endswith("fedmlb.html#fedmlb-c08-cpu") and page.locator("#fedmlb-c08-cpu").is_visible()
    page.locator(".forest tbody tr").first.get_by_role("link").nth(1).click()
    box = page.get_by_role("dialog")
    assert box.locator("tbody tr").count() == 6 and re.search(r"fedmlb, seed 2: accuracy \d+\.\d\d%", box.inner_text())
    box.get_by_role("link").first.click()
    box.get_by_text("digest").first.wait_for()  # the run is shown a moment after the click
    page.keyboard.press("Escape")
    page.wait_for_url(lambda url: "#run" not in url)  # the browser tells of the closing a moment later
    assert not box.is_visible()


def test_it_prints_without_controls_and_with_what_is_folded(open_page, pictures):
    page = open_page("fedmlb")
    page.emulate_media(media="print")
    assert not page.locator(".filter").is_visible() and not page.locator("aside").is_visible()
    page.evaluate("window.onbeforeprint()")
    assert page.locator("main details:not([open])").count() == 0
    sizes = [
        f"parseFloat(getComputedStyle(document.querySelector('{part}')).fontSize)"
        for part in (".claim p", ".claim .soft")
    ]
    assert page.evaluate(" > ".join(sizes))  # what is said stands out from what explains it
    page.pdf(path=pictures / "report-fedmlb.pdf")

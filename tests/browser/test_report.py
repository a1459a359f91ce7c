"""The report on a wide and on a narrow screen, from the file system."""

import re

import pytest

from fedrepro.cli import main


@pytest.fixture(scope="module")
def report(tmp_path_factory, as_cpu_scale):
    results = tmp_path_factory.mktemp("report") / "results"
    as_cpu_scale(results / "cpu/fedbr")
    assert main(["report", str(results)]) == 0
    return (results / "index.html").as_uri()


@pytest.mark.parametrize(("name", "width"), [("wide", 1500), ("narrow", 390)])
def test_the_page_fits_the_screen(report, window, pictures, name, width):
    page = window.new_page()
    page.set_viewport_size({"width": width, "height": 1000})
    page.goto(report)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.screenshot(path=pictures / f"report-{name}.png")
    page.get_by_role("button", name="not testable").click()
    shown = page.locator(".claim:visible")
    count = int(re.match(r"\d+", page.locator("#shown").inner_text()).group())
    assert count == shown.count() > 0
    assert set(shown.evaluate_all("found => found.map(claim => claim.dataset.verdict)")) == {"not-testable"}
    page.close()

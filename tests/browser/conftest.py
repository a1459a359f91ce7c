"""One JupyterLab on a copy of the notebooks and one headless Chromium for all the lessons."""

import shutil
import time

import pytest

from fedrepro.evidence.spec import HOME, NOTEBOOKS
from fedrepro.lessons import lab

SCREEN = {"width": 1366, "height": 768}  # a laptop
PROJECTOR = {"width": 1024, "height": 768}
PATIENCE = 180_000  # milliseconds until something that should appear is missed


class Notebook:
    """A notebook that is open in JupyterLab."""

    def __init__(self, page, server, pictures, name: str):
        self.page, self.pictures, self.name = page, pictures, name
        page.goto(f"{server.url}/doc/tree/{name}.ipynb?reset&token={server.token}")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for()

    def run_all(self) -> None:
        self.page.locator("#jp-main-statusbar", has_text="(ipykernel) | Idle").wait_for()
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()

    def picture(self, note: str = "") -> None:
        self.page.screenshot(path=self.pictures / f"{self.name.replace('/', '-')}{note}.png")


@pytest.fixture
def clock():
    """The clock on the wall: a person waits for browser, server and kernel, on a machine that may be busy."""
    return time.perf_counter


@pytest.fixture(scope="session")
def pictures():
    """Where the screenshots go, for a person to look at."""
    folder = HOME / ".cache/browser"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory, pictures):
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(NOTEBOOKS, folder / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDREPRO_SCALE", "smoke")  # for the method notebooks: seconds instead of a minute
        for name in ("SETTINGS", "WORKSPACES"):  # nothing of this person's JupyterLab is read or changed
            patch.setenv(f"JUPYTERLAB_{name}_DIR", str(folder / name.lower()))
        with lab.serve(folder / "notebooks", pictures / "server.log") as running:
            yield running


@pytest.fixture(scope="session")
def window():
    """One profile for all, so that JupyterLab's scripts are read and compiled once."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make setup")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        context = browser.new_context(viewport=SCREEN)
        context.set_default_timeout(PATIENCE)
        playwright.expect.set_options(timeout=PATIENCE)
        yield context
        browser.close()


@pytest.fixture
def page(window, server):
    page = window.new_page()
    yield page
    page.close()
    for session in server.sessions():  # one kernel per lesson is enough for two cores
        server.ask(f"/api/sessions/{session}", "DELETE")

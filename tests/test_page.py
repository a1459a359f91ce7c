"""The report page: all that is committed is on it, every link leads somewhere, nothing comes from elsewhere."""

import base64
import csv
import hashlib
import json
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser

import pandas as pd
import pytest

from fedrepro import page, spec
from fedrepro.cli import main
from fedrepro.report import Study

PLACE = "reduced/fedbr"
COMMITTED = spec.HOME / "results" / PLACE
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "img", "input"}


class Reader(HTMLParser):
    """Elements with their attributes; fails where a tag is closed that is not open."""

    def __init__(self, text: str):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, name):
        return [attributes[name] for _, attributes in self.found if name in attributes]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """FedBR's committed results without their notebooks, Fig. 4 left out, another small scale beside it."""
    results = tmp_path_factory.mktemp("page") / "results"
    shutil.copytree(COMMITTED, results / PLACE, ignore=shutil.ignore_patterns("*.ipynb", "*.html", "fig4*"))
    (results / "cpu/fedbr").mkdir(parents=True)
    for file in COMMITTED.glob("table2*.*"):
        if file.suffix in (".csv", ".svg"):
            shutil.copy(file, results / "cpu/fedbr" / file.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spec, "papers", lambda: ["fedbr"])
        assert main(["report", str(results)]) == 0
    return results / "index.html"


@pytest.fixture(scope="module")
def text(built):
    return built.read_text()


@pytest.fixture(scope="module")
def reader(text):
    return Reader(text)


def verdicts(table=""):
    for path in COMMITTED.glob(f"{table}*_verdicts.csv"):
        if not path.name.startswith("fig4"):
            with open(path, newline="") as file:
                yield from csv.DictReader(file)


def test_every_claim_with_its_verdict(text, reader):
    with open(spec.REPRODUCE / "fedbr/claims.csv", newline="") as file:
        claims = [line["id"] for line in csv.DictReader(file)]
    judged = {line["claim"]: line["verdict"] for line in verdicts()}
    for claim in claims:
        classes = set(re.findall(rf'data-verdict="([\w-]+)">(?:(?!data-verdict).)*?· {claim}<', text, re.S))
        assert page._class(judged.get(claim, page.NOT_RUN)) in classes
    counts = Counter(judged.get(claim, page.NOT_RUN) for claim in claims)
    assert counts[page.NOT_RUN] == 3  # those of Fig. 4
    shown = re.search(r"At reduced scale.*?legend(.*?)</div>", text, re.S)[1]
    assert dict(re.findall(r"<strong>(\d+)</strong> ([\w ]+)<", shown)) == {
        str(number): page._short(name) for name, number in counts.items()
    }


def test_links(built, text, reader):
    ids = reader.all("id")
    assert len(ids) == len(set(ids))
    runs = json.loads(re.search(r'id="runs">(.*?)</script>', text, re.S)[1])
    for link in reader.all("href") + reader.all("src"):
        if link.startswith("#run-"):
            assert runs[link[5:]]["digest"]
        elif link.startswith("#"):
            assert link[1:] in ids
        else:
            assert (built.parent / link).exists(), link
    assert set(runs) == set(json.loads((COMMITTED / "runs.json").read_text()))
    assert not re.search(r"(?:src|href|url|@import)[^\n]{0,3}https?:", text)
    assert not reader.open or reader.open == ["html"]


def test_every_number_leads_to_its_runs(text):
    with open(COMMITTED / "fig3_convergence.csv", newline="") as file:
        for line in csv.DictReader(file):
            row = re.search(rf"<tr><th>{line['method']}</th>(.*?)</tr>", text)[1]  # Fig. 3 comes first
            assert f"{float(line['measured']):.4g} ±" in row
            for run in line["runs"].split():
                assert f'href="#run-{run}"' in row


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The CSV files of FedBR's Table II at smoke scale."""
    home = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDREPRO_RESULTS", str(home / "results"))
        patch.setenv("FEDREPRO_STORE", str(home / "runs"))
        Study("fedbr/table2_temperature", "smoke", seeds=2, workers=1).run().save()
    return home / "results"


@pytest.fixture
def smoke(trained, tmp_path, monkeypatch):
    """Results of which every file may be spoilt, at a scale that the page otherwise leaves to CI."""
    monkeypatch.setattr(spec, "papers", lambda: ["fedbr"])
    monkeypatch.setattr(page, "SCALES", ("smoke",))
    monkeypatch.setitem(page.EXPLAINED, "smoke", "for CI")
    return shutil.copytree(trained, tmp_path / "results")


def test_the_policy_lets_only_this_style_and_script_in(smoke):
    """Each inline style and script has its hash in the policy, and nothing else could run, load or be styled."""
    text = page.build(smoke).read_text()
    reader = Reader(text)
    (policy,) = (found["content"] for _, found in reader.found if found.get("http-equiv") == "Content-Security-Policy")
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split("; ")}
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        digest = hashlib.sha256(inline.encode()).digest()
        assert rules[rule] == [f"'sha256-{base64.b64encode(digest).decode()}'"]
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == ["'none'"]
    assert rules["img-src"] == ["'self'", "file:"]
    assert text.index("Content-Security-Policy") < text.index("<style>")
    for tag, attributes in reader.found:
        assert not [name for name in attributes if name == "style" or name.startswith("on")], tag


EVIL = '"><script>alert(1)</script>'


@pytest.mark.parametrize(
    ("file", "column"), [("table2_temperature_verdicts.csv", "claim"), ("table2_temperature.csv", "runs")]
)
def test_ids_are_escaped_as_texts_are(smoke, file, column):
    path = smoke / "smoke/fedbr" / file
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    table.loc[0, column] = EVIL
    table.to_csv(path, index=False)
    made = page.build(smoke).read_text()
    assert "<script>alert" not in made
    assert "&lt;script&gt;alert(1)" in made


@pytest.mark.parametrize("content", [b"run,seed\n\xff\xfe,0\n", b"", b"a\n1\n", b'run,seed\n"x'])
def test_a_file_that_cannot_be_read_is_said_in_one_line(smoke, capsys, content):
    (smoke / "smoke/fedbr/table2_temperature_values.csv").write_bytes(content)
    assert main(["report", str(smoke)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "table2_temperature_values.csv cannot be read" in line or "is not as it was made" in line


def test_deviations_lead_to_errata(reader):
    assert {"FB-01", "FB-02"} <= set(reader.all("id"))
    assert "#FB-01" in reader.all("href")
    for paper in ("fedbr", "kapc", "ama", "dfl", "fedmlb"):
        assert len(page.errata()[paper]) > 5


@pytest.mark.parametrize(
    ("evidence", "tones"),
    [
        ("a − b: +0.2 ± 0.1; a − c: -0.2 ± 0.1; a − d: +1e-05 ± 0.1", ["reproduced", "contradicted", "inconclusive"]),
        ("a − b: +0.2 (one seed); a − c: -0.1 (one seed)", []),
        (
            "a − b: +0.2 ± 0.1; a − c: target not reached with 2 of 3 seeds; b − c: -1 ± 0.1",
            ["reproduced", "contradicted"],
        ),
        ("a summary; its parts are judged one by one", []),
        ("an absolute number, judged at paper scale only", []),
        ("", []),
    ],
)
def test_intervals_are_drawn_against_zero(evidence, tones):
    drawn = page._evidence(evidence)
    assert re.findall(r'class="ci (\w+)"', drawn) == tones
    for item in filter(None, evidence.split("; ")):
        assert item.split(": ")[-1] in drawn
    if tones:  # the first lies right of zero, the second left of it
        zero = float(re.search(r'zero" d="M([\d.]+)', drawn)[1])
        ends = [tuple(map(float, pair)) for pair in re.findall(r'<path d="M([\d.]+) 7H([\d.]+)"', drawn)]
        assert ends[0][0] > zero > ends[1][1]


def test_no_results_is_said(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "results: " in capsys.readouterr().err


def open_run():
    run, known = next(iter(json.loads((COMMITTED / "runs.json").read_text()).items()))
    return f"#run-{run}", "", rf"<dialog[^>]* open.*Run {run}.*{known['digest']}.*{known['commit']}"


def only_inconclusive():
    number = sum(line["verdict"] == "inconclusive" for line in verdicts())
    number += sum(line["verdict"] == "inconclusive" for line in verdicts("table2"))  # of the other scale
    return "", "document.querySelector('nav [data-verdict=inconclusive]').click()", f">{number} claims shown<"


def only_cpu():
    number = len(list(verdicts("table2"))) + 3  # those of Fig. 4, which has not run at any scale
    return "", "scales.value = 'cpu'; scales.onchange()", f">{number} claims shown<"


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("case", [open_run, only_inconclusive, only_cpu])
def test_in_a_browser(built, text, case):
    """From the file system: a run's window opens, the filters count what the CSV files say."""
    address, script, expected = case()
    copy = built.with_name("tried.html")
    allowed = f"script-src {page._source(script)} "
    copy.write_text(text.replace("script-src ", allowed, 1).replace("</html>", f"<script>\n{script}</script></html>"))
    seen = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000",
                           "--dump-dom", f"{copy.as_uri()}{address}"], capture_output=True, text=True,
                          timeout=120).stdout  # fmt: skip
    assert re.search(expected, seen, re.S)

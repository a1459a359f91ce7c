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

from fedrepro.cli import main
from fedrepro.evidence import page, spec
from fedrepro.evidence.verdict import MARKS, Effect, word

TABLE = "table4_5_interval"
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
def scales():
    """The page of this test has the smoke scale, which is made in seconds, and calls it so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "SCALES", ("cpu", "smoke"))
        patch.setitem(page.EXPLAINED, "smoke", "generated images")
        patch.setattr(spec, "papers", lambda: ["fedbr"])
        yield


@pytest.fixture(scope="module")
def committed(smoke):
    return smoke / "results/smoke/fedbr"


@pytest.fixture(scope="module")
def built(tmp_path_factory, committed, scales, as_cpu_scale):
    """FedBR's Tables IV and V at two scales, without their notebooks; its other tables have not run."""
    results = tmp_path_factory.mktemp("page") / "results"
    shutil.copytree(committed, results / "smoke/fedbr", ignore=shutil.ignore_patterns("*.ipynb", "*.html"))
    as_cpu_scale(results / "cpu/fedbr")
    assert main(["report", str(results)]) == 0
    return results / "index.html"


@pytest.fixture(scope="module")
def text(built):
    return built.read_text()


@pytest.fixture(scope="module")
def reader(text):
    return Reader(text)


@pytest.fixture(scope="module")
def verdicts(committed):
    """claim -> state, by the CSV file."""
    found = pd.read_csv(committed / f"{TABLE}_verdicts.csv").set_index("claim")["verdict"]
    states = {word(state, "smoke"): state for state in MARKS}
    return {claim: states[verdict] for claim, verdict in found.items()}


def test_every_claim_with_its_verdict(text, verdicts):
    claims = [claim.id for table in spec.tables("fedbr") for claim in table.claims()]
    states = {claim: verdicts.get(claim, page.NOT_RUN) for claim in claims}
    for claim, state in states.items():
        classes = set(re.findall(rf'data-verdict="([\w-]+)">(?:(?!data-verdict).)*?· {claim}<', text, re.S))
        assert classes == {page._class(state)}
    for scale in ("smoke", "cpu"):  # each has totals of its own, in its own words
        counts = Counter(word(state, scale) for state in states.values())
        for shown in re.findall(rf"<b>At {scale} scale.*?legend(.*?)</div>", text, re.S):
            found = re.findall(r"<strong>(\d+)</strong> ([^<]+)<", shown)
            assert {name: int(number) for number, name in found} == counts
    assert "reproduced</" not in re.sub(r"<(h1|title)>.*?</\1>", "", text)


def test_every_effect_is_drawn(text, committed, verdicts):
    effects = pd.read_csv(committed / f"{TABLE}_effects.csv")
    assert len(effects) > 1 and set(effects["claim"]) <= set(verdicts)
    drawn = re.findall(r'<svg class="ci (\w+)"', text)
    assert Counter(drawn) == Counter(2 * effects["state"].tolist())  # at both scales
    for effect in effects.itertuples():
        assert f"<span>{effect.what}</span><svg" in text
        assert f"{effect.mean:+.3g} ± {effect.half:.3g}" in text


def test_links(built, text, reader, committed):
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
    assert set(runs) == set(json.loads((committed / "runs.json").read_text()))
    assert not re.search(r"(?:src|href|url|@import)[^\n]{0,3}https?:", text)
    assert not reader.open or reader.open == ["html"]


def test_every_number_leads_to_its_runs(text, committed):
    with open(committed / f"{TABLE}.csv", newline="") as file:
        for line in csv.DictReader(file):
            row = re.search(rf"<tr><th>{line['reading']}</th><th>{line['tau']}</th>(.*?<a href.*?)</tr>", text)[1]
            for run in line["runs"].split():
                assert f'href="#run-{run}"' in row
            shown = float(line["measured"])
            assert f">{shown:.4g}" in text


def test_the_policy_lets_only_this_style_and_script_in(text, reader):
    """Each inline style and script has its hash in the policy, and nothing else could run, load or be styled."""
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
    ("suffix", "column"),
    [("_verdicts", "claim"), ("_verdicts", "reason"), ("_effects", "what"), ("_effects", "state"), ("", "runs")],
)
def test_ids_are_escaped_as_texts_are(tmp_path, scales, as_cpu_scale, suffix, column):
    place, file = tmp_path / "cpu/fedbr", f"{TABLE}{suffix}.csv"
    as_cpu_scale(place)
    table = pd.read_csv(place / file, dtype=str, keep_default_na=False)
    table[column] = EVIL
    table.to_csv(place / file, index=False)
    made = page.build(tmp_path).read_text()
    assert "<script>alert" not in made
    assert "&lt;script&gt;alert(1)" in made or "&lt;scri" in made


@pytest.mark.parametrize("content", [b"run,seed\n\xff\xfe,0\n", b"", b"a\n1\n", b'run,seed\n"x'])
def test_a_file_that_cannot_be_read_is_said_in_one_line(tmp_path, scales, as_cpu_scale, capsys, content):
    place = tmp_path / "cpu/fedbr"
    as_cpu_scale(place)
    (place / f"{TABLE}_values.csv").write_bytes(content)
    assert main(["report", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{TABLE}_values.csv cannot be read" in line or "is not as it was made" in line


def test_deviations_lead_to_errata(reader):
    assert {"FB-01", "FB-02"} <= set(reader.all("id"))
    assert "#FB-01" in reader.all("href")
    for paper in ("fedbr", "kapc", "ama", "dfl", "fedmlb"):
        assert len(page.errata()[paper]) > 5


def test_intervals_are_drawn_against_what_is_claimed():
    def effect(mean, half, low=0.0, high=float("inf"), state="open", bound=""):
        return Effect("a − b", mean, half, low, high, bound, 2.0, 0.1, 1.0, state, 3, None, "s")

    drawn = page._drawn([effect(0.2, 0.1, state="holds"), effect(-0.2, 0.1, state="opposite"), effect(1e-5, 0.1)])
    assert re.findall(r'class="ci (\w+)"', drawn) == ["holds", "opposite", "open"]
    zero = float(re.search(r'zero" d="M([\d.]+)', drawn)[1])
    ends = [tuple(map(float, pair)) for pair in re.findall(r'<path d="M([\d.]+) 7H([\d.]+)"', drawn)]
    assert ends[0][0] > zero > ends[1][1]  # the first lies right of zero, the second left of it
    assert ends[2][0] < zero < ends[2][1]
    assert "<span>+0.2 ± 0.1 s</span>" in drawn

    near = page._drawn([effect(0.5, 0.1, -1.0, 1.0, "holds")])
    assert near.count('class="zero"') == 2 and "within ±1" in near
    alone = page._drawn([effect(0.2, None), effect(float("nan"), None), effect(3.0, 1.0, bound="at least")])
    assert alone.count("<svg") == 1
    for words in ("+0.2 s", "target not reached", "at least +3 ± 1 s"):
        assert f"<span>{words}</span>" in alone
    assert page._drawn([]) == ""


def test_no_results_is_said(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "results: " in capsys.readouterr().err


def open_run(committed, verdicts):
    run, known = next(iter(json.loads((committed / "runs.json").read_text()).items()))
    return f"#run-{run}", "", rf"<dialog[^>]* open.*Run {run}.*{known['digest']}.*{known['commit']}"


def only_not_testable(committed, verdicts):
    number = 2 * list(verdicts.values()).count("not testable")  # at two scales
    return "", "document.querySelector('nav [data-verdict=not-testable]').click()", f">{number} claims shown<"


def only_cpu(committed, verdicts):
    number = sum(len(table.claims()) for table in spec.tables("fedbr"))  # what has not run is shown for every scale
    return "", "scales.value = 'cpu'; scales.onchange()", f">{number} claims shown<"


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("case", [open_run, only_not_testable, only_cpu])
def test_in_a_browser(built, text, committed, verdicts, case):
    """From the file system: a run's window opens, the filters count what the CSV files say."""
    address, script, expected = case(committed, verdicts)
    copy = built.with_name("tried.html")
    allowed = f"script-src {page._source(script)} "
    copy.write_text(text.replace("script-src ", allowed, 1).replace("</html>", f"<script>\n{script}</script></html>"))
    seen = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000",
                           "--dump-dom", f"{copy.as_uri()}{address}"], capture_output=True, text=True,
                          timeout=120).stdout  # fmt: skip
    assert re.search(expected, seen, re.S)

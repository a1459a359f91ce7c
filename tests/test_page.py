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
from fedrepro.evidence import fragments, page, spec
from fedrepro.evidence.claims import Claim
from fedrepro.evidence.record import RUNS
from fedrepro.evidence.verdict import MARKS, Effect, Verdict, word
from fedrepro.simulation.store import checksum, write_json

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
    shutil.copytree(committed, results / "smoke/fedbr")
    as_cpu_scale(results / "cpu/fedbr")
    for path in results.rglob("*.ipynb"):
        path.unlink()
    assert main(["report", str(results)]) == 0
    return results / "index.html"


@pytest.fixture(scope="module")
def text(built):
    return built.read_text()


@pytest.fixture(scope="module")
def reader(text):
    return Reader(text)


@pytest.fixture(scope="module")
def verdicts(built):
    """scale -> claim -> state, by the CSV files."""
    found = {}
    for scale in ("smoke", "cpu"):
        words = pd.read_csv(built.parent / scale / f"fedbr/{TABLE}_verdicts.csv").set_index("claim")["verdict"]
        states = {word(state, scale): state for state in MARKS}
        found[scale] = {claim: states[verdict] for claim, verdict in words.items()}
    return found


def test_every_claim_with_its_verdict(text, verdicts):
    claims = [claim.id for table in spec.tables("fedbr") for claim in table.claims()]
    for claim in claims:
        states = {found.get(claim, fragments.NOT_RUN) for found in verdicts.values()}
        classes = set(re.findall(rf'data-verdict="([\w-]+)">(?:(?!data-verdict).)*?· {claim}<', text, re.S))
        assert classes == {fragments.css_class(state) for state in states}
    for scale, found in verdicts.items():  # each has totals of its own, in its own words
        counts = Counter(word(found.get(claim, fragments.NOT_RUN), scale) for claim in claims)
        for shown in re.findall(rf"<b>At {scale} scale.*?legend(.*?)</div>", text, re.S):
            numbers = re.findall(r"<strong>(\d+)</strong> ([^<]+)<", shown)
            assert {name: int(number) for number, name in numbers} == counts
    assert "reproduced</" not in re.sub(r"<(h1|title)>.*?</\1>", "", text)


def test_every_effect_is_drawn(built, text, verdicts):
    tables = [pd.read_csv(built.parent / scale / f"fedbr/{TABLE}_effects.csv") for scale in verdicts]
    effects = pd.concat(tables).dropna(subset="half")
    assert len(effects) > 1 and set(effects["claim"]) <= set(verdicts["smoke"])
    drawn = re.findall(r'<svg class="ci (\w+)"', text)
    assert Counter(drawn) == Counter(effects["state"])
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
    recorded = [json.loads(path.read_text()) for path in built.parent.rglob("runs.json")]
    assert len(recorded) == 2 and set(runs) == {run for known in recorded for run in known}
    assert not re.search(r"(?:src|href|url|@import)[^\n]{0,3}https?:", text)
    assert not reader.open or reader.open == ["html"]


def test_every_number_leads_to_its_runs(text, committed):
    with open(committed / f"{TABLE}.csv", newline="") as file:
        for line in csv.DictReader(file):
            rows = re.findall(rf"<tr><th>{line['reading']}</th><th>{line['tau']}</th>(.*?<a href.*?)</tr>", text)
            links = [f'href="#run-{run}"' for run in line["runs"].split()]
            assert any(all(link in row for link in links) for row in rows)
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


def test_what_a_record_says_is_escaped(tmp_path, scales, as_cpu_scale):
    """A run's description may hold anything; it is data in the page, never a part of it."""
    folder = tmp_path / "cpu/fedbr"
    as_cpu_scale(folder)
    runs = json.loads((folder / RUNS).read_text())
    for run in runs.values():
        run["machine"] = {"cpu": EVIL, "instructions": EVIL}
        run["checksum"] = checksum(run)
    write_json(folder / RUNS, runs)
    made = page.build(tmp_path).read_text()
    assert "<script>alert" not in made
    assert r"\u003cscript>alert(1)" in made


def test_words_of_a_claim_are_escaped():
    claim = Claim(EVIL, EVIL, EVIL, EVIL, False, ())
    effect = Effect(EVIL, 0.1, 0.1, 0.0, 1.0, "", 2.0, 0.1, 1.0, EVIL, 3, None, EVIL)
    for verdict in (None, Verdict("holds", "cpu", (effect,), why=EVIL)):
        made = fragments.claims([(claim, verdict)])
        assert "<script>" not in made and "&lt;script&gt;alert(1)" in made


def test_a_damaged_record_is_said_in_one_line(tmp_path, scales, as_cpu_scale, capsys):
    folder = tmp_path / "cpu/fedbr"
    as_cpu_scale(folder)
    whole = (folder / RUNS).read_text()
    for content in ("[]", "{", whole.replace('"seed": 1', '"seed": 2')):
        (folder / RUNS).write_text(content)
        assert main(["report", str(tmp_path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{folder / RUNS}" in line
    (folder / RUNS).write_text(whole)
    (folder / f"{TABLE}.ipynb").write_text("no notebook")
    assert main(["report", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{TABLE}.ipynb cannot be read" in line


def test_deviations_lead_to_errata(reader):
    assert {"FB-01", "FB-02"} <= set(reader.all("id"))
    assert "#FB-01" in reader.all("href")
    for paper in ("fedbr", "kapc", "ama", "dfl", "fedmlb"):
        assert len(page.errata()[paper]) > 5


def test_intervals_are_drawn_against_what_is_claimed():
    def effect(mean, half, low=0.0, high=float("inf"), state="open", bound=""):
        return Effect("a − b", mean, half, low, high, bound, 2.0, 0.1, 1.0, state, 3, None, "s")

    three = [effect(0.2, 0.1, state="holds"), effect(-0.2, 0.1, state="opposite"), effect(1e-5, 0.1)]
    drawn = fragments.intervals(three)
    assert re.findall(r'class="ci (\w+)"', drawn) == ["holds", "opposite", "open"]
    zero = float(re.search(r'zero" d="M([\d.]+)', drawn)[1])
    ends = [tuple(map(float, pair)) for pair in re.findall(r'<path d="M([\d.]+) 7H([\d.]+)"', drawn)]
    assert ends[0][0] > zero > ends[1][1]  # the first lies right of zero, the second left of it
    assert ends[2][0] < zero < ends[2][1]
    assert "<span>+0.2 ± 0.1 s</span>" in drawn

    near = fragments.intervals([effect(0.5, 0.1, -1.0, 1.0, "holds")])
    assert near.count('class="zero"') == 2 and "within ±1" in near
    alone = fragments.intervals([effect(0.2, None), effect(float("nan"), None), effect(3.0, 1.0, bound="at least")])
    assert alone.count("<svg") == 1
    for words in ("+0.2 s", "target not reached", "at least +3 ± 1 s"):
        assert f"<span>{words}</span>" in alone
    assert fragments.intervals([]) == ""


def test_no_results_is_said(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "results: " in capsys.readouterr().err


def open_run(committed, verdicts):
    run, known = next(iter(json.loads((committed / "runs.json").read_text()).items()))
    return f"#run-{run}", "", rf"<dialog[^>]* open.*Run {run}.*{known['digest']}.*{known['commit']}"


def only_not_testable(committed, verdicts):
    number = sum(list(found.values()).count("not testable") for found in verdicts.values())
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

"""The report's pages: all that is committed is on them, every link works, nothing is loaded from outside."""

import base64
import csv
import hashlib
import html
import json
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser

import pandas as pd
import pytest

from fedrepro.cli import main
from fedrepro.evidence import contrasts, fragments, note, page, papers, spec
from fedrepro.evidence.claims import Claim
from fedrepro.evidence.contrasts import Contrast
from fedrepro.evidence.measures import Final
from fedrepro.evidence.record import RUNS
from fedrepro.evidence.statements import Best
from fedrepro.evidence.verdict import MARKS, NOT_RUN, Effect, Verdict, word
from fedrepro.simulation.store import checksum, write_json

TABLE = "table4_5_interval"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "img", "input", "br"}


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
        patch.setattr(papers, "SCALES", ("cpu", "smoke"))
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
    return results / "fedbr.html"


@pytest.fixture(scope="module")
def text(built):
    return built.read_text()


@pytest.fixture(scope="module")
def overview(built):
    return built.with_name("index.html").read_text()


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


def test_every_claim_with_its_verdict(text, overview, verdicts):
    claims = [claim for table in spec.tables("fedbr") for claim in table.claims()]
    testable = [claim.id for claim in claims if not claim.untestable]
    for claim in testable:
        states = {found.get(claim, NOT_RUN) for found in verdicts.values()}
        classes = set(re.findall(rf'id="{claim}(?:-cpu|-smoke)?" data-verdict="([\w-]+)">', text))
        assert classes == {fragments.css_class(state) for state in states}
        (listed,) = re.findall(
            rf'<li class="claim" data-verdict="([^"]+)">(?:(?!<li).)*?<span class="soft">{claim}<', overview
        )
        assert set(listed.split()) == classes
    for scale, found in verdicts.items():  # each has totals of its own, in its own words
        counts = Counter(fragments.words(found.get(claim, NOT_RUN), scale) for claim in testable)
        for page_ in (text, overview):
            for shown in re.findall(rf"<b>At {scale} scale.*?legend(.*?)</div>", page_, re.S):
                numbers = re.findall(r"<strong>(\d+)</strong> ([^<]+)<", shown)
                assert {name: int(number) for number, name in numbers} == counts
    assert "reproduced</" not in re.sub(r"<(h1|title)>.*?</\1>", "", text)


def test_untestable_claims_are_listed_separately(text):
    apart = re.search(r'<section id="untestable">(.*?)</section>', text, re.S)[1]
    claims = [claim for table in spec.tables("fedbr") for claim in table.claims() if claim.untestable]
    assert {"fedbr-c03", "fedbr-c31"} <= {claim.id for claim in claims}
    for claim in claims:
        assert f'id="{claim.id}"' in apart and text.count(f'id="{claim.id}"') == 1
        assert html.escape(claim.untestable) in apart


def test_every_effect_is_drawn(built, text, verdicts):
    tables = [pd.read_csv(built.parent / scale / f"fedbr/{TABLE}_effects.csv") for scale in verdicts]
    effects = pd.concat(tables).dropna(subset="half")
    assert len(effects) > 1 and set(effects["claim"]) <= set(verdicts["smoke"])
    drawn = re.findall(r'<svg class="ci (\w+)"', text)
    assert Counter(drawn) == Counter(effects["state"])
    for effect in effects.itertuples():
        assert f"<span>{effect.what}</span><svg" in text
        assert any(contrasts.with_interval(k * effect.mean, k * effect.half, "+") in text for k in (1, 100))


def check_links(built, reader, runs):
    """Inside a page, and to files and places of pages beside it."""
    ids = reader.all("id")
    assert len(ids) == len(set(ids))
    for link in reader.all("href") + reader.all("src"):
        file, _, place = link.partition("#")
        if link.startswith("https://"):
            assert ("a", "external") in [
                (tag, found.get("rel")) for tag, found in reader.found if link in found.values()
            ]
        elif file:
            assert (built.parent / file).exists(), link
            assert not place or place.startswith("run") or f'id="{place}"' in (built.parent / file).read_text(), link
        elif place.startswith(("run-", "runs-")):
            assert all(runs[id_]["digest"] for id_ in place.partition("-")[2].split("."))
        else:
            assert place in ids, link
    assert not reader.open or reader.open == ["html"]


def test_links(built, text, reader, overview):
    runs = json.loads(re.search(r'id="runs">(.*?)</script>', text, re.S)[1])
    check_links(built, reader, runs)
    check_links(built, Reader(overview), {})
    recorded = [json.loads(path.read_text()) for path in built.parent.rglob("runs.json")]
    assert len(recorded) == 2 and set(runs) == {run for known in recorded for run in known}
    for page_ in (text, overview):
        assert not re.search(r"(?:src|url|@import)[^\n]{0,3}https?:", page_)


def test_the_note_comes_first_and_its_headline_is_on_the_overview(text, overview, built):
    written = (built.parent / "fedbr.md").read_text()
    question, headline = note.headline(written.partition("-->")[2]).removeprefix("**").split("** ", 1)
    assert question == "Does FedBR beat FedAvg?" and headline.startswith("We cannot say yet")  # Fig. 3 has not run
    assert f"<dd><strong>{question}</strong>" in overview
    shown = text.index('<div class="note">')
    assert html.escape(headline, quote=False) in re.sub(r"\s+", " ", text[shown:]) and shown < text.index(
        'id="verdicts"'
    )
    assert html.escape(headline, quote=False) in re.sub(r"\s+", " ", overview)
    assert "{{" not in written


def test_every_number_leads_to_its_runs(text, committed):
    with open(committed / f"{TABLE}.csv", newline="") as file:
        for line in csv.DictReader(file):
            rows = re.findall(rf"<tr><th>{line['reading']}</th><th>{line['tau']}</th>(.*?<a href.*?)</tr>", text)
            links = [f'href="#run-{run}"' for run in line["runs"].split()]
            assert any(all(link in row for link in links) for row in rows)
            unit = "%" if "accuracy" in line["measure"] else line["unit"]  # accuracy as papers print it
            times, half = 100 if unit == "%" else 1, line["interval"] and float(line["interval"])
            shown = contrasts.with_interval(times * float(line["measured"]), half and times * half)
            assert any(f'<td class="ours{more}">{shown}' in row for row in rows for more in ("", " alone"))
            assert f"{line['measure']} ({unit})" in text


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
    made = page.build(tmp_path).with_name("fedbr.html").read_text()
    assert "<script>alert" not in made
    assert r"\u003cscript>alert(1)" in made


def contrast(effect):
    claim = Claim(EVIL, EVIL, EVIL, EVIL, False, ())
    statement = Best(id="c", measure=("m",), axis="method", winner="a")
    measure = Final(name="m", column="round", unit="s")
    return Contrast(claim, statement, measure, {}, effect.what, None, effect.mean, effect)


def test_words_of_a_claim_are_escaped():
    effect = Effect(EVIL, 0.1, 0.1, 0.0, 1.0, "", 2.0, 0.1, 1.0, EVIL, 3, None, EVIL)
    one = contrast(effect)
    for verdict in (None, Verdict("holds", "cpu", (effect,), why=EVIL)):
        made = fragments._claim(one.claim, verdict, [one])
        assert "<script>" not in made and "&lt;script&gt;alert(1)" in made
    listed = fragments.listed_claim(one.claim, {"cpu": "holds"}, "x.html")
    assert "<script>" not in listed and "&lt;script&gt;alert(1)" in listed


def test_one_seed_is_a_state_of_its_own_and_badges_carry_the_scale():
    badges = [fragments.badge(state, "cpu") for state in MARKS]
    assert len(set(badges)) == len(badges) and all("<small>cpu</small>" in badge for badge in badges)
    assert "1 one seed only" in fragments.badge("one seed", "cpu")
    assert "✓ reproduced" in fragments.badge("holds", "paper") and "✓ holds <" in fragments.badge("holds", "cpu")


def test_a_damaged_record_is_reported_in_one_line(tmp_path, scales, as_cpu_scale, capsys):
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
        assert len(papers.errata()[paper]) > 5


def test_intervals_are_drawn_against_what_is_claimed():
    def effect(mean, half, low=0.0, high=float("inf"), state="open", bound=""):
        return contrast(Effect("a − b", mean, half, low, high, bound, 2.0, 0.1, 1.0, state, 3, None, "s"))

    three = [effect(0.2, 0.1, state="holds"), effect(-0.2, 0.1, state="opposite"), effect(1e-5, 0.1)]
    drawn = fragments.intervals(three)
    assert re.findall(r'class="ci (\w+)"', drawn) == ["holds", "opposite", "open"]
    zero = float(re.search(r'zero" d="M([\d.]+)', drawn)[1])
    ends = [tuple(map(float, pair)) for pair in re.findall(r'<path d="M([\d.]+) 7H([\d.]+)"', drawn)]
    assert ends[0][0] > zero > ends[1][1]  # the first lies right of zero, the second left of it
    assert ends[2][0] < zero < ends[2][1]
    assert "<span>+0.20 ± 0.10 s</span>" in drawn and "<span>−0.20 ± 0.10 s</span>" in drawn

    many = fragments.intervals([effect(0.2, 0.1)] * (fragments.SHOWN + 1))
    assert many.startswith("<details><summary>All comparisons (9)") and "<details" not in drawn
    assert "(claimed: no difference)" in fragments.intervals([effect(0.0, 0.0, -1e-6, 1e-6)])  # a sum, but for rounding

    near = fragments.intervals([effect(0.5, 0.1, -1.0, 1.0, "holds")])
    assert near.count('class="zero"') == 2 and "within ±1 s" in near
    alone = fragments.intervals([effect(0.2, None), effect(float("nan"), None), effect(3.0, 1.0, bound="at least")])
    assert alone.count("<svg") == 1
    for words in ("+0.2 s", "target not reached", "at least +3.0 ± 1.0 s"):
        assert f"<span>{words}</span>" in alone
    assert fragments.intervals([]) == ""


def test_no_results_is_reported(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "results: " in capsys.readouterr().err


def open_run(committed, verdicts):
    run, known = next(iter(json.loads((committed / "runs.json").read_text()).items()))
    return f"#run-{run}", "", rf"<dialog[^>]* open.*Run {run}.*{known['digest']}.*{known['commit']}"


def open_runs(committed, verdicts):
    first, second, *_ = json.loads((committed / "runs.json").read_text())
    return f"#runs-{first}.{second}", "", rf"<dialog[^>]* open.*#run-{first}.*seed.*#run-{second}.*seed"


def only_not_testable(committed, verdicts):
    number = sum(list(found.values()).count("not testable") for found in verdicts.values())
    return "", "document.querySelector('.filter [data-verdict=not-testable]').click()", f">{number} claims shown<"


def only_cpu(committed, verdicts):
    claims = [claim for table in spec.tables("fedbr") for claim in table.claims() if not claim.untestable]
    return (
        "",
        "scales.value = 'cpu'; scales.onchange()",
        f">{len(claims)} claims shown<",
    )  # what has not run is of every scale


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("case", [open_run, open_runs, only_not_testable, only_cpu])
def test_in_a_browser(built, text, committed, verdicts, case):
    """From the file system: a run's window opens, the filters count what the CSV files say."""
    address, script, expected = case(committed, verdicts)
    copy = built.with_name("tried.html")
    allowed = f"script-src {page._source(script)} "
    copy.write_text(text.replace("script-src ", allowed, 1).replace("</html>", f"<script>\n{script}</script></html>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom"]
    seen = subprocess.run(
        [CHROMIUM, *options, f"{copy.as_uri()}{address}"], capture_output=True, text=True, timeout=120
    )
    assert re.search(expected, seen.stdout, re.S)

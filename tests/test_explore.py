"""The lessons: what they compute is what the library computes, drawing is quick, and bad settings are explained."""

import base64
import html
import importlib
import io
import re
import time

import matplotlib.image
import nbformat
import numpy as np
import pytest
import torch

from fedrepro import data, train
from fedrepro.errors import BadInput
from fedrepro.evidence.spec import HOME, NOTEBOOKS
from fedrepro.lessons import (
    cube,
    drawing,
    first_round,
    gmbs,
    index,
    live,
    mixing,
    partitions,
    paths,
    soft_targets,
    widgets,
)
from fedrepro.lessons.drawing import png
from fedrepro.methods import Round, ama
from fedrepro.methods.dfl import divergence
from fedrepro.methods.kapc_bls import KAPC_BLS
from fedrepro.simulation import cost
from fedrepro.simulation.fleet import Fleet
from fedrepro.simulation.run import Run
from fedrepro.simulation.store import CLOCKS
from fedrepro.simulation.tree import Tree

QUICK = [name for name in index.LESSONS if name != "live"]  # redraw as soon as a control moves
LESSONS = [NOTEBOOKS / "explore" / f"{name}.ipynb" for name in index.LESSONS]


def test_one_local_step_is_gradient_descent_on_all_images():
    """FedAvg with E = 1 (McMahan et al., 2017): the weighted mean of one step each is one step on the weighted loss."""
    setting = first_round.Setting(steps=1, rate=0.3, skew=0.8, size=0.3)
    _, x, labels = first_round.features()
    share = torch.where(labels > 0, 0.3 * 0.8 + 0.7 * 0.2, 0.3 * 0.2 + 0.7 * 0.8)
    share /= torch.where(labels > 0, (labels > 0).sum(), (labels < 0).sum())
    w = torch.tensor(first_round.START, dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad((share * (x @ w - labels) ** 2).sum() / 2, w)
    np.testing.assert_allclose(first_round.course(setting).models[1], (w - 0.3 * gradient).detach(), atol=1e-7)


def test_clients_drift_and_a_pull_keeps_them_together():
    def after(**changes) -> tuple[float, float]:
        setting = first_round.Setting(**changes)
        ways = first_round.course(setting).visits[-1]
        return first_round.distances(setting)[-1], float(np.linalg.norm(ways["A"][-1] - ways["B"][-1]))

    one, _ = after(steps=1)
    ten, drift = after()
    forty, wide = after(steps=40)
    pulled, close = after(steps=40, mu=1.0)
    assert one < ten < forty  # where the server ends: one step each finds the optimum, many do not
    assert drift < wide
    assert close < wide
    assert pulled < forty
    alike, _ = after(steps=40, skew=0.5)
    assert alike < 1e-6


def test_a_client_step_is_that_of_autograd():
    setting = first_round.Setting(steps=2, skew=1.0, mu=0.5)
    _, x, labels = first_round.features()
    start = torch.tensor(first_round.START, dtype=torch.float64)
    w = start.clone().requires_grad_()
    for _ in range(2):
        loss = ((x[labels > 0] @ w - 1) ** 2).mean() / 2 + 0.5 / 2 * (w - start).square().sum()
        (gradient,) = torch.autograd.grad(loss, w)
        w = (w - setting.rate * gradient).detach().requires_grad_()
    np.testing.assert_allclose(first_round.visit(setting, "A", start)[-1], w.detach(), atol=1e-12)


def test_path_m_leaves_the_local_model_after_block_m():
    """As FedMLB's Eq. (4), its method's `paths` and the notebooks count them."""
    names = [name for name, _ in paths.rows(paths.Setting("fedmlb", "resnet18", 1, 1, 1.0, 1.0))]
    assert names == ["starts from", "main path", "path 1", "path 2", "path 3", "path 4", "path 5"]
    for name, blocks in paths.rows(paths.Setting("fedbr", "resnet18", 2, 1, 1.0, 1.0))[2:]:
        assert blocks.index(drawing.GLOBAL) == int(name.removeprefix("path "))


def test_distance_by_hand():
    apart = partitions.Division("digits", "iid", np.array([[4, 0], [0, 4]]), np.empty(0))
    assert apart.distance == 0.5  # each has one of two equal classes: 1 - 1/2
    assert partitions.Division("digits", "iid", np.array([[3, 1], [1, 3]]), np.empty(0)).distance == 0.25
    assert partitions.Division("digits", "iid", np.array([[6, 2], [3, 1]]), np.empty(0)).distance == 0


def test_division_counts_the_parts_of_a_run():
    division = partitions.divide("digits", "dirichlet:0.3", 8, seed=3)
    labels = data.load("digits").train_y
    parts = partitions.partition("dirichlet:0.3", labels, 8, seed=3)
    for cid in range(8):
        assert division.counts[cid].tolist() == labels[parts[cid]].bincount(minlength=10).tolist()
    assert division.samples.shape == (6, 6, 8, 8, 1)


@pytest.mark.parametrize("model", ["small", "lenet", "vgg9"])
def test_counted_computation_is_that_of_a_real_visit(model):
    """One step of real FedAvg and FedMLB clients on images of the same size."""
    run = {"data": "synthetic:channels=3,size=32,train=100,test=10", "clients": 1, "per_round": 1, "model": model,
           "steps": 1, "batch": paths.BATCH}  # fmt: skip
    plain, hybrid = (cost.round_costs(Run(**run, method=method))["visit_flops"] for method in ("fedavg", "fedmlb"))
    main, added = paths.step_flops(model)
    assert (main, main + sum(added)) == (plain, hybrid)
    counted = paths.Setting("fedmlb", model, 1, 1, 1.0, 1.0).costs()
    assert counted["computation"][1] == hybrid / plain
    assert counted["traffic"] == (1, 1)


def test_costs_by_hand():
    """Four equal blocks would be Eq. (4); ResNet-18's are not. tau = 1, alpha = 2 of 6: (2 + 1 + 1/3) / 2 / 2."""
    setting = paths.Setting("fedbr", "resnet18", 2, 1, 1.0, 1.0)
    sizes = list(paths.block_bytes("resnet18").values())
    formula, counted = setting.costs()["traffic"]
    assert formula == pytest.approx((2 + 1 + 2 / 6) / 4)
    assert counted == pytest.approx((3 * sum(sizes) + sum(sizes[-2:])) / (4 * sum(sizes)))
    assert paths.Setting("fedbr", "resnet18", 2, 1, 0.0, 0.0).costs()["computation"][1] == 1
    assert setting.costs()["computation"][0] == pytest.approx((1 + 5 * 6 / 12 + 1 + 2 * 3 / 12) / 2)


def test_bytes_of_the_blocks_are_those_of_the_ledger():
    run = Run(data="synthetic:channels=3,size=32,train=100,test=10", clients=2, per_round=1, model="small", rounds=1,
              steps=1)  # fmt: skip
    (row,) = train(run, workers=1).rows
    assert sum(paths.block_bytes("small").values()) == row["bytes_down"]


def test_bandit_by_hand():
    """After one round of whole models nothing was decided; then p moves by Eqs. (19)-(23), n by one."""
    setting = gmbs.Setting(noise=0.0, tau=2, slow=1.0, far=1.0)
    first, second, third = gmbs.simulate(setting)[:3]
    assert first.sent == [6, 6, 6, 6]
    assert first.p == first.n == [{}, {}, {}, {}]
    for cid in range(4):
        (alpha,) = second.n[cid]
        assert second.sent[cid] == alpha
        assert second.n[cid][alpha] == 1
    cid, alpha = 0, second.sent[0]
    before, after = (2.3 * np.prod([1 - setting.rate * np.exp(-(((a - 3) / 1.5) ** 2)) for a in sent])
                     for sent in ([6], [6, alpha]))  # fmt: skip
    seconds = [[cost(a, 6) for a in second.sent] for cost in (paths.paper_compute, paths.paper_traffic)]
    delays = sum(times[cid] / sum(times) for times in seconds)
    expected = setting.ema * (1 / 4) * (before - after) / np.exp(delays)  # four models at equal distance
    assert second.p[cid][alpha] == pytest.approx(expected, rel=1e-5)
    assert second.V[cid][alpha] == pytest.approx(expected + np.sqrt(np.log(4)) / 2, rel=1e-5)
    assert third.sent[cid] == max(second.V[cid], key=second.V[cid].get)


def test_simulation_goes_on_as_it_began():
    assert gmbs.simulate(gmbs.Setting(), 20) == gmbs.simulate(gmbs.Setting(), 60)[:20]


def test_cube_is_the_servers():
    trained = cube.trained()
    ours = cube.evolve(**cube.SETTINGS)
    np.testing.assert_allclose(ours, torch.stack(trained.cubes).numpy(), atol=1e-10)
    np.testing.assert_allclose(cube.evolve(lam=0.1, beta=0.0, rate=0.0, updates=5), 1 / 6, rtol=1e-12)  # no step


def test_withheld_layers_are_those_that_bls_does_not_send():
    trained, mu = cube.trained(), 0.5
    kept = cube.withheld(trained.cubes[-1].numpy(), mu)
    assert 0 < kept.sum() < kept.size
    method, names = KAPC_BLS(mu=mu), list(trained.layers)
    for cid in range(cube.TRAINED.clients):
        coached = {cid: Tree((name, torch.zeros(1)) for name in names)}
        r = Round(1, cube.TRAINED, list(range(6)), scratch={"kapc/slice": trained.cubes[-1], "kapc/s": coached})
        sent = method.broadcast({"kapc/layers": [[name] for name in names]}, cid, r)["s"]
        assert [name for name in names if name not in sent] == [n for n, k in zip(names, kept[cid], strict=True) if k]


def test_weights_of_the_mixing_add_to_one_and_fade():
    setting = mixing.Setting(late=0.0, at=20, added=(1, 5))
    for t, (alpha, beta, gammas) in enumerate(mixing.weights(setting), start=1):
        assert alpha + beta + sum(gammas) == pytest.approx(1)
        assert beta == pytest.approx(1 - 0.1 - 0.01 * t)
        assert len(gammas) == (2 if t == 20 else 0)
    alpha, _, (one, five) = mixing.weights(setting)[19]
    assert one == pytest.approx(0.6 * alpha)  # b (1 - sigma(1)) beside 1 - sigma(1)
    assert five < one


def test_mixing_course_by_hand():
    """Everyone on time, alpha0 = eta = 0: AMA is FedAvg. The first step by hand."""
    setting = mixing.Setting(alpha0=0.0, eta=0.0, late=0.0)
    ways = {name: mixing.travel(setting, name).models for name in mixing.METHODS}
    np.testing.assert_allclose(ways["ama"], ways["fedavg"], atol=1e-6)
    centres, curves = mixing.bowls()
    cids = Fleet(setting.run("fedavg")).participants(1)
    left = (1 - mixing.LOCAL_RATE * curves[cids]) ** mixing.LOCAL_STEPS
    expected = (centres[cids] + left * (torch.tensor(mixing.START) - centres[cids])).mean(0)
    np.testing.assert_allclose(ways["fedavg"][1], expected, atol=1e-5)
    late = mixing.Setting(late=0.0, added=(3,))
    moved = [mixing.travel(late, name).models[20] for name in ("ama", "naive", "fedavg")]
    clean = [mixing.travel(mixing.Setting(late=0.0), name).models[20] for name in ("ama", "naive", "fedavg")]
    ama, naive, fedavg = (float(np.linalg.norm(a - b)) for a, b in zip(moved, clean, strict=True))
    assert naive == 0 < ama < fedavg


def test_soft_targets_are_the_federations():
    trained = soft_targets.trained()
    assert (trained.tables[0] == 0.1).all()
    result = train(soft_targets.TRAINED, workers=1)
    assert [row["accuracy"] for row in result.rows] == trained.accuracy[1:]
    assert all((result.weights[name] == trained.models[-1][0][name]).all() for name in result.weights)
    table = soft_targets.table(soft_targets.TRAINED.rounds, soft_targets.SERVER)
    np.testing.assert_allclose(table.sum(1), 1, atol=1e-9)


def test_what_a_student_sees_is_the_gradient():
    """rho CE + (1 - rho) KL(Y[y] || p) has the gradient p - target in the logits."""
    table = soft_targets.trained().tables[-1]
    z, y, rho = torch.randn(1, 10, dtype=torch.float64).requires_grad_(), torch.tensor([3]), 0.35
    loss = rho * torch.nn.functional.cross_entropy(z, y) + (1 - rho) * divergence(table, y, z)
    (gradient,) = torch.autograd.grad(loss, z)
    seen = z.softmax(1)[0] - gradient[0]
    np.testing.assert_allclose(soft_targets.target(table.numpy(), 3, rho), seen.detach(), atol=1e-9)


def test_ratio_schedules():
    assert soft_targets.schedule("threshold", 0.6, 0.1, 10) == [0.9, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6]
    assert soft_targets.schedule("dynamic", 0.6, 0.1, 4) == [0.75, 0.5, 0.25, 0]
    assert soft_targets.schedule("fixed", 0.6, 0.1, 3) == [0.1, 0.1, 0.1]


def live_runs(rounds: int) -> list[Run]:
    return [live.describe({**live.DEFAULTS, "rounds": rounds, "clients": 4, "per_round": 2}, method, {})
            for method in ("fedavg", "fedprox")]  # fmt: skip


def same(rows, others) -> bool:
    strip = lambda table: [{k: v for k, v in row.items() if k not in CLOCKS} for row in table]  # noqa: E731
    return strip(rows) == strip(others)


def nothing(session) -> None:
    pass


def test_a_session_is_training_beside_the_notebook():
    threads = torch.get_num_threads()
    session = live.Session(live_runs(3), nothing, nothing)
    session.start()
    session.join(60)
    assert session.finished
    assert session.error is None
    assert all(same(rows, train(run, workers=1).rows) for run, rows in session.curves)
    assert torch.get_num_threads() == threads


def test_a_session_pauses_resumes_and_stops():
    def after(session):
        if len(session.curves[1][1]) == 2 and not stops:
            session.pause()

    stops, ended = [], []
    session = live.Session(live_runs(50), after, ended.append)
    session.start()
    while not session.paused:
        time.sleep(0.01)
    time.sleep(0.3)
    assert [len(rows) for _, rows in session.curves] == [2, 2]
    stops.append(True)
    session.resume()
    while len(session.curves[1][1]) < 4:
        time.sleep(0.01)
    session.stop()
    session.join(60)
    assert not session.finished
    assert ended == [session]
    assert 4 <= len(session.curves[1][1]) < 50


def test_a_session_waits_for_the_one_before_and_keeps_its_error():
    order = []
    first = live.Session(live_runs(3), nothing, order.append)
    writers = live.describe({**live.DEFAULTS, "split": "writers"}, "fedavg", {})
    bad = live.Session([writers], nothing, order.append, before=first)
    first.start()
    bad.start()
    bad.join(60)
    assert order == [first, bad]
    assert "writers" in str(bad.error)


def test_the_live_panel_answers_its_buttons():
    """Run, Pause, Resume, Stop, Reset as clicks, from this thread while another trains."""
    panel = widgets.live()
    panel.common["rounds"].value = 100

    def waits_for(text):
        end = time.monotonic() + 60
        while text not in panel.status.value:
            assert time.monotonic() < end, panel.status.value
            time.sleep(0.01)

    panel.buttons["Run"].click()
    waits_for("training: A round 1 ")
    panel.buttons["Pause"].click()
    assert panel.status.value.startswith("paused:")
    assert panel.buttons["Pause"].description == "Resume"
    panel.buttons["Pause"].click()
    waits_for("training: A round 3 ")
    panel.buttons["Stop"].click()
    waits_for("stopped: A round")
    assert "last accuracy" in panel.table.value
    assert not panel.buttons["Run"].disabled
    panel.buttons["Reset"].click()
    assert panel.status.value == "ready: press Run"
    assert panel.common["rounds"].value == live.DEFAULTS["rounds"]


def test_traffic_and_table_of_a_session():
    run = live_runs(2)[0]
    rows = train(run, workers=1).rows
    sent = sum(row[key] for row in rows for key in ("bytes_up", "bytes_down", "buffer_bytes_up", "buffer_bytes_down"))
    assert live.traffic(rows)[-1] == sent / 2**20
    (line,) = live.summary([(run, rows)])
    assert line["last accuracy"] == f"{rows[-1]['accuracy']:.3f}"
    assert line["rounds"] == "2 of 2"
    assert live.label(live.describe(live.DEFAULTS, "fedprox", {"mu": 0.5})) == "fedprox mu=0.5"


REFUSED = [
    (partitions.view, {"name": "digits", "split": "shards:12", "clients": 10, "seed": 0}, "at most 10 shards"),
    (partitions.view, {"name": "digits", "split": "writers", "clients": 10, "seed": 0}, "data with writers"),
    (paths.Setting, {"method": "fedbr", "model": "lenet", "alpha": 5, "tau": 1, "lambda1": 1.0, "lambda2": 1.0},
     "hp.alpha.*1..4 blocks"),
    (mixing.Setting, {"eta": 0.03, "rounds": 60}, "alpha0 [+] eta [*] rounds must not pass 1"),
    (mixing.Setting, {"at": 3, "added": (5,)}, "rounds late: 5 .* it must have started"),
    (mixing.Setting, {"at": 41}, "round looked at: 41"),
    (soft_targets.view, {"r": 11, "rounds": 10}, "round r: 11"),
    (live.describe, {"common": {**live.DEFAULTS, "per_round": 11}, "method": "fedavg", "hp": {}}, "per_round: 11"),
    (live.describe, {"common": live.DEFAULTS, "method": "fedprox", "hp": {"mu": -1.0}}, "hp.mu"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "settings", "message"), REFUSED)
def test_bad_settings_are_refused_in_words(function, settings, message):
    with pytest.raises(BadInput, match=message):
        function(**settings)


def test_a_panel_explains_what_is_refused_and_recovers():
    panel = widgets.mixing()
    good = panel.picture.png
    panel.controls["eta"].value = 0.03
    assert "alpha0 + eta * rounds must not pass 1" in panel.problem.value
    assert panel.picture.layout.display == "none"
    assert panel.numbers.value == ""
    panel.controls["eta"].value = 0.01
    assert panel.problem.value == ""
    assert panel.picture.layout.display == ""
    assert panel.picture.png == good


def test_only_the_controls_that_count_are_shown():
    panel = widgets.partitions()
    assert shown(panel) == {"data", "kind", "dirichlet", "clients", "seed"}
    panel.controls["kind"].value = "dirichlet_unequal"
    assert shown(panel) == {"data", "kind", "dirichlet", "clients", "seed"}
    panel.controls["kind"].value = "iid"
    assert shown(panel) == {"data", "kind", "clients", "seed"}


def shown(panel) -> set[str]:
    return {name for name, control in panel.controls.items() if control.layout.display != "none"}


@pytest.mark.parametrize("name", QUICK)
def test_every_control_changes_the_page_in_time(name, redraw_budget):
    """Each control is moved a step; computing and drawing stay within the budget."""
    panel = getattr(widgets, name)()
    unseen = []
    for key, control in panel.controls.items():
        if control.layout.display == "none":
            continue
        before, old, taken = (panel.picture.png, panel.numbers.value), control.value, []
        for value in moves(control):
            start = time.process_time()
            control.value = value
            if panel.problem.value == "" and (panel.picture.png, panel.numbers.value) != before:
                taken.append(time.process_time() - start)
            if len(taken) == 2:
                break
        if not taken:
            unseen.append(key)
        control.value = old
        assert (panel.picture.png, panel.numbers.value) == before, f"{key} did not come back"
        assert min(taken, default=0) < redraw_budget, f"{key} takes {min(taken):.2f} s of {redraw_budget:.2f}"
    assert not unseen


@pytest.mark.parametrize("name", QUICK)
def test_a_kept_figure_is_like_a_new_one(name, monkeypatch):
    """Nothing of an earlier picture is left in the axes that lessons reuse."""
    lesson = importlib.import_module(f"fedrepro.lessons.{name}")

    def pictures() -> list[bytes]:
        panel = getattr(widgets, name)()
        seen = []
        for control in reversed(panel.controls.values()):  # what a choice hides is moved before it
            control.value = moves(control)[0]
            seen.append(panel.picture.png)
        return seen

    kept = pictures()
    monkeypatch.setattr(lesson, "layout", lesson.layout.__wrapped__)
    assert len(set(kept)) > len(kept) / 2
    assert kept == pictures()


def moves(control) -> list:
    """A few other values of a control, the nearest first."""
    if hasattr(control, "options"):
        values = [option[1] if isinstance(option, tuple) else option for option in control._options_full]
        return [value for value in values if value != control.value]
    if hasattr(control, "base"):
        return [0.1, 1.0]
    steps = [control.value + n * control.step for n in (1, -1, 3, -3, 8)]
    return [value for value in steps if control.min <= value <= control.max]


@pytest.mark.parametrize("name", index.LESSONS)
def test_the_figure_is_there_without_a_browser(name):
    bundle = getattr(widgets, name)()._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    picture = matplotlib.image.imread(io.BytesIO(base64.b64decode(bundle["image/png"])))
    assert picture.shape[1] == 760
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 50


def test_photos_keep_their_colours_in_the_dark_theme():
    panel = widgets.partitions()
    panel.picture.show(panel.picture.png, "", photos=True)
    assert 'class="explore-figure photos"' in panel.picture.value
    colour = partitions.Division("cifar10", "iid", np.ones((2, 3), int), np.zeros((2, 6, 4, 4, 3), np.uint8))
    grey = partitions.Division("digits", "iid", np.ones((2, 3), int), np.zeros((2, 6, 4, 4, 1), np.uint8))
    assert [partitions.draw(division).get_gid() for division in (colour, grey)] == ["photos", None]


@pytest.mark.parametrize("name", index.LESSONS)
def test_a_figure_has_an_alternative_text(name):
    panel = getattr(widgets, name)()
    (alt,) = re.findall(r'<img class="explore-figure" alt="([^"<>]+)"', panel.picture.value)
    assert html.unescape(alt).startswith(importlib.import_module(f"fedrepro.lessons.{name}").ALT)


def test_live_panel_refuses_and_resets():
    panel = widgets.live()
    panel.common["split"].value = "dirichlet:-1"
    panel.buttons["Run"].click()
    assert "a concentration above 0" in panel.problem.value
    panel.sides[1].method.value = "moon"
    assert set(panel.sides[1].hp) == {"mu", "temperature"}
    panel.buttons["Reset"].click()
    assert panel.problem.value == ""
    assert panel.common["split"].value == live.DEFAULTS["split"]
    assert panel.sides[1].method.value == live.METHODS[1]
    assert panel.sides[1].hp == {f.name: f.default for f in live.hyperparameters(live.METHODS[1])}


def test_live_example():
    curves = live.example(1)
    assert [run.method for run, _ in curves] == list(live.METHODS)
    assert png(live.draw(curves)) != png(live.draw([]))


@pytest.mark.parametrize("path", LESSONS, ids=index.LESSONS)
def test_a_lesson_needs_no_code(path):
    cells = nbformat.read(path, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert all(cell.metadata.jupyter.source_hidden for cell in code)
    assert f"widgets.{path.stem}()" in code[0].source
    opening = cells[0].source
    assert 2 <= len(re.findall(r"^\d\. ", opening.partition("**Try**")[2], re.M)) <= 3
    assert "Run All Cells" in opening
    assert cells[2].source.startswith("**What to see.**")


def test_the_index_links_every_notebook():
    path = NOTEBOOKS / "index.ipynb"
    assert path.read_text() == index.notebook(), "make index"
    every = {str(p.relative_to(NOTEBOOKS)) for p in NOTEBOOKS.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts}
    assert set(re.findall(r"\]\(([\w/]+\.ipynb)\)", index.text())) == every - {"index.ipynb"}
    folders = {path.name for path in NOTEBOOKS.iterdir() if path.is_dir() and not path.name.startswith(".")}
    assert folders == {*index.PAPERS, "explore"}


@pytest.mark.parametrize("name", index.LESSONS)
def test_a_thumbnail_is_small(name):
    file = index.thumbnail(name)
    assert file.stat().st_size < 8000
    assert matplotlib.image.imread(file).shape[1] == index.WIDTH


@pytest.mark.parametrize("name", index.LESSONS)
def test_lessons_and_method_notebooks_link_to_each_other(name):
    written = index.lesson(name).read_text()
    for paper in index.LESSONS[name][2]:
        assert f"(../{paper}/method.ipynb)" in written
        if (method := NOTEBOOKS / paper / "method.ipynb").exists():
            assert f"(../explore/{name}.ipynb)" in method.read_text()


DECIMAL = re.compile(r"\d+\.\d+")


def test_the_teachers_guide_has_the_lessons_answers():
    guide = " ".join((HOME / "docs/teaching.md").read_text().split())
    ends = {steps: first_round.distances(first_round.Setting(steps=steps))[[3, 20]] for steps in (1, 10, 40)}
    splits = {split: partitions.divide("digits", split, 10).distance for split in ("shards:2", "dirichlet:0.1")}
    soft = soft_targets.table(10, soft_targets.SERVER)
    own = cube.evolve(**cube.SETTINGS)[-1].diagonal(axis1=1, axis2=2)
    late = mixing.Setting(late=0.9)
    apart = {name: mixing.distances(late, name)[10:].mean() for name in mixing.METHODS}
    alpha, _, gammas = ama.mixing(0.5, [1, 2, 5], 0.6)
    resnet = paths.Setting("fedbr", "resnet18", 2, 1, 1.0, 1.0).costs()["traffic"]
    for answer in (
        *(f"E = {steps}: {early:.2f} and {last:.2f}" for steps, (early, last) in ends.items()),
        f"shards 2: {splits['shards:2']:.2f}",
        f"dirichlet 0.1: {splits['dirichlet:0.1']:.2f}",
        f"0 is sharpest ({soft[0, 0]:.2f})",
        f"9, 8 and 1 are still blurred ({soft[9, 9]:.2f}, {soft[8, 8]:.2f}, {soft[1, 1]:.2f})",
        f"own weights {own[0].min():.2f} to {own[0].max():.2f}",
        f"In the last they are {own[-1].min():.2f} to {own[-1].max():.2f}",
        f"mean distance {apart['naive']:.2f} from round 10 on; AMA {apart['ama']:.2f}, as if new {apart['fedavg']:.2f}",
        f"{gammas[0] / alpha:.2f}, {gammas[1] / alpha:.2f}, {gammas[2] / alpha:.3f}",
        f"By Eq. (4) {1 - resnet[0]:.0%} of a round's traffic, as counted {1 - resnet[1]:.0%}",
    ):
        pattern = r"(\d+\.\d+)".join(map(re.escape, DECIMAL.split(answer)))
        ours = list(map(float, DECIMAL.findall(answer)))
        stated = [list(map(float, found.groups())) for found in re.finditer(pattern, guide)]
        assert any(theirs == pytest.approx(ours, abs=0.0101) for theirs in stated), answer  # on any processor

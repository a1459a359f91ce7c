import time

import pytest
import torch
from matplotlib.figure import Figure

from fedrepro import Run
from fedrepro.evidence import record
from fedrepro.evidence.study import Study
from fedrepro.lessons.drawing import canvas, png

torch.set_num_threads(1)

BUDGET = 0.3  # seconds from a moved control to its picture,
BARE = 7  # or so many bare figures, where the machine is slow or busy (a free one takes 3 to 5)
SMALL = dict(data="digits", split="dirichlet:0.3", clients=8, per_round=3, model="lenet", rounds=3, epochs=1,
             batch=40, lr=0.1, samples=80)  # fmt: skip


@pytest.fixture
def small():
    """small(method="fedprox", ...) -> a Run that takes a fraction of a second."""
    return lambda **changes: Run(**{**SMALL, **changes})


@pytest.fixture
def redraw_budget() -> float:
    """Seconds that a control of a lesson may take, measured against a picture with nothing but axes."""
    taken = []
    for _ in range(5):
        start = time.process_time()
        figure = canvas(4.2)
        figure.subplots()
        png(figure)
        taken.append(time.process_time() - start)
    return max(BUDGET, BARE * min(taken))


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """FedBR's Tables IV and V at smoke scale, two seeds, recorded: `results` and `runs` below this folder."""
    home = tmp_path_factory.mktemp("smoke")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDREPRO_RESULTS", str(home / "results"))
        patch.setenv("FEDREPRO_STORE", str(home / "runs"))
        study = Study("fedbr/table4_5_interval", "smoke", seeds=2, workers=1).run()
        study.save(Figure())
        (study.folder / f"{study.table.name}.ipynb").write_text("the executed notebook")
        record.write(study.folder, study.store)
    return home


@pytest.fixture(scope="session")
def as_cpu_scale(smoke):
    """as_cpu_scale(place): the smoke results as if they were of cpu scale: tables and figures, no runs."""

    def copy(place):
        place.mkdir(parents=True)
        for file in (smoke / "results/smoke/fedbr").glob("table*.[cs]*v*"):
            content = file.read_bytes()
            (place / file.name).write_bytes(content.replace(b"smoke", b"cpu") if file.suffix == ".csv" else content)

    return copy

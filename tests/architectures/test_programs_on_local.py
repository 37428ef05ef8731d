"""Programs on the cloud on one machine: the fleet's own service command, real RabbitMQ, and processes that are killed."""

import math
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from crossover.experiment import Data, Experiment, Lifetime
from crossover.local.cloud import LocalCloud
from crossover.reports.folder import RunFolder, read
from crossover.reports.spending import BudgetReached
from crossover.running import monitor
from crossover.running.deployed import run_deployed
from crossover.running.inline import run_inline
from tests.architectures.harness import small, standing
from tests.local.victims import programs

pytestmark = pytest.mark.slow

WORKERS = 2
ARCHITECTURES = ["p2p_instance", "p2p_serverless", "gpu"]


def experiment(architecture: str) -> Experiment:
    """Return an experiment of eight epochs with WORKERS workers. Its name contains the architecture, because the stacks of several
    experiments exist at the same time.
    """
    found = small(architecture, workers=WORKERS, epochs=8, batch_size=8)
    return replace(
        found,
        name=f"small-{architecture.replace('_', '-')}",
        data=Data(dataset="digits", limit=41, validation=0.02),
        gpu=replace(found.gpu, instances=WORKERS),
    )


@pytest.fixture(scope="module", params=ARCHITECTURES)
def deployed(
    request: pytest.FixtureRequest, cloud: LocalCloud, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Deploy the stacks of one architecture, yield its name, and delete the stacks afterwards, except the shared ones."""
    architecture: str = request.param
    with standing(cloud, experiment(architecture), tmp_path_factory.mktemp("assembly")):
        yield architecture


def run(cloud: LocalCloud, architecture: str, out: Path) -> RunFolder:
    """Run the experiment on the local cloud, on which it is deployed, and return the run's folder."""
    return run_deployed(experiment(architecture), out, lambda progress: None, session=cloud.session(), where="local")


def test_programs_end_at_their_budget(
    deployed: str, cloud: LocalCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a run of programs without a following command ends by its decision after one epoch if the budget is too small."""
    monkeypatch.setattr(monitor, "BUDGET_POLL_S", math.inf)  # who follows looks at no dollars
    dear = replace(experiment(deployed), lifetime=Lifetime(budget_usd=1e-9))
    with pytest.raises(BudgetReached, match="training until the next evaluation costs up to"):
        run_deployed(dear, tmp_path, lambda progress: None, session=cloud.session(), where="local")
    result = read(tmp_path).result
    assert result["final"]["epochs"] == 1 and result["final"]["reason"].startswith("budget: stopped at $")


def fleet(architecture: str) -> str:
    """Return the name of the fleet that runs the architecture's programs: `crossover-<name of its experiment>-fleet`."""
    return f"crossover-{experiment(architecture).name}-fleet"


def test_a_fleet_ends_with_the_bits_of_the_run_in_one_process(deployed: str, cloud: LocalCloud, tmp_path: Path) -> None:
    """Check that a fleet on the local cloud ends with the bits of the inline run, and that no program is left running."""
    inline = run_inline(experiment(deployed), tmp_path / "inline", lambda progress: None)
    local = run(cloud, deployed, tmp_path / "local")
    assert local.result["final"]["parameters_sha256"] == inline.result["final"]["parameters_sha256"]
    assert local.result["incomplete"] == []
    assert programs(cloud.fleets, fleet(deployed)) == []
    assert all(record["instance_type"] for record in local.records if record["step"].startswith("train_"))


@contextmanager
def killing(cloud: LocalCloud, name: str, seed: int, *, kills: int) -> Iterator[list[int]]:
    """Kill at most `kills` programs with SIGKILL while the block runs: the first as it starts, however short the run is, others at random
    times. Yields the list of the killed programs' process ids.
    """
    rng, over, killed = random.Random(seed), threading.Event(), list[int]()

    def loop() -> None:
        """Kill random programs: the first as soon as one runs, then one every 2 to 5 s."""
        while len(killed) < kills and not over.wait(rng.uniform(2.0, 5.0) if killed else 0.05):
            running = programs(cloud.fleets, name)
            if running:
                victim = rng.choice(running)
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def test_killed_programs_are_replaced_and_change_nothing(deployed: str, cloud: LocalCloud, tmp_path: Path) -> None:
    """Kill programs of a fleet with SIGKILL, and check that the run ends with the bits of the inline run."""
    inline = run_inline(experiment(deployed), tmp_path / "inline", lambda progress: None)
    with killing(cloud, fleet(deployed), seed=1, kills=2) as killed:
        local = run(cloud, deployed, tmp_path / "local")
    assert killed
    assert local.result["final"]["parameters_sha256"] == inline.result["final"]["parameters_sha256"]

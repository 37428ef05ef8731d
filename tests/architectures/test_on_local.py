"""Whole architectures on the cloud on one machine: the synthesized state machine, real functions, real Redis, real RabbitMQ.

The same calls as the tree in this process, the same bits as the single-process reference, also while environments are being killed.
"""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover.experiment import Data, Experiment, Lifetime
from crossover.local.cloud import LocalCloud
from crossover.local.lambdas import Environment, InvocationOutcome
from crossover.reports.folder import RunFolder
from crossover.running.deployed import StateMachineExecution, run_deployed
from crossover.running.inline import run_inline
from crossover.running.preparing import PreparedRun
from tests.architectures.harness import small, standing, tree_architectures
from tests.local.victims import kill_random
from tests.sampling import WHOLE

pytestmark = pytest.mark.slow

# MLLess's supervisor answers whoever asks first, so its polls and removals are no fixed list of calls.
SYNCHRONOUS = tree_architectures("same_calls")
WORKERS = 3


def experiment(architecture: str) -> Experiment:
    """Return an experiment of three workers with ragged minibatches. Its name contains the architecture, because the stacks of several
    experiments exist at the same time.
    """
    found = small(architecture, workers=WORKERS, epochs=2, batch_size=8)
    return replace(
        found,
        name=f"small-{architecture.replace('_', '-')}",
        data=Data(dataset="digits", limit=61, validation=0.02),
    )


@pytest.fixture(scope="module", params=SYNCHRONOUS)
def deployed(
    request: pytest.FixtureRequest, cloud: LocalCloud, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Deploy the stacks of one architecture, yield its name, and delete the stacks afterwards, except the shared ones, which stay for the
    next one.
    """
    architecture: str = request.param
    with standing(cloud, experiment(architecture), tmp_path_factory.mktemp("assembly")):
        yield architecture


def run(cloud: LocalCloud, architecture: str, out: Path) -> RunFolder:
    """Run the experiment on the local cloud, on which it is deployed, and return the run's folder."""
    return run_deployed(experiment(architecture), out, lambda progress: None, session=cloud.session(), where="local")


def calls(records: list[Mapping[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Return how often each (step, worker, epoch, round, minibatch) succeeded; repeated polls count once."""
    found = Counter(
        (r["step"], r["worker"], r["epoch"], r["round"], r["minibatch"]) for r in records if r["outcome"] == "ok"
    )
    return Counter({call: 1 if call[0].startswith("check_") else count for call, count in found.items()})


def order(records: list[Mapping[str, Any]], worker: int) -> list[tuple[int, str]]:
    """Return a worker's (round, step) by time; consecutive equal ones, such as parallel minibatches and repeated polls, count as one."""
    mine = sorted((r for r in records if r["worker"] == worker and r["epoch"]), key=lambda r: float(r["started_at"]))
    listed = [(r["round"], r["step"]) for r in mine]
    return [each for n, each in enumerate(listed) if n == 0 or each != listed[n - 1]]


def test_the_state_machines_make_the_calls_that_execute_makes(deployed: str, cloud: LocalCloud, tmp_path: Path) -> None:
    """Check that a run by state machines makes the same calls, in the same order for each worker, as the inline run, and ends with the same
    bits.
    """
    inline = run_inline(experiment(deployed), tmp_path / "inline", lambda progress: None)
    local = run(cloud, deployed, tmp_path / "local")
    assert calls(list(local.records)) == calls(list(inline.records))
    for worker in range(WORKERS):
        assert order(list(local.records), worker) == order(list(inline.records), worker)
    assert local.result["final"]["parameters_sha256"] == inline.result["final"]["parameters_sha256"]
    assert local.result["incomplete"] == []
    assert local.result["unrecorded"] == {"count": 0, "gb_s": 0.0}


def test_the_budget_ends_a_run_that_nobody_follows(
    deployed: str, cloud: LocalCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the functions end a run that has spent its budget although the command has ended."""
    started: list[tuple[PreparedRun, StateMachineExecution]] = []
    monkeypatch.setattr(
        "crossover.running.deployed.finish", lambda prepared, execution, *_, **__: started.append((prepared, execution))
    )
    found = experiment(deployed)
    dear = replace(found, training=replace(found.training, epochs=50), lifetime=Lifetime(budget_usd=1e-9))
    run_deployed(dear, tmp_path, lambda progress: None, session=cloud.session(), where="local")
    ((prepared, execution),) = started
    while not execution.has_ended():
        time.sleep(0.1)
    outcome = json.loads(prepared.objects.get(prepared.keys.outcome))
    assert outcome["epochs"] == 1 and outcome["reason"].startswith("budget: stopped at $")


@contextmanager
def killing(cloud: LocalCloud, seed: int, *, kills: int) -> Iterator[list[str]]:
    """Kill at most `kills` function environments while the block runs: the first one when it gets its invocation, others at random moments.
    Yields the list of the killed functions' names, which grows.
    """
    rng, over, killed, first = random.Random(seed), threading.Event(), list[str](), threading.Lock()
    undisturbed = Environment.run

    def run(environment: Environment, *arguments: Any, **named: Any) -> InvocationOutcome:
        """Kill the environment if it is the first one, then run the invocation in it."""
        if first.acquire(blocking=False):
            killed.append(environment.function.name)
            environment.kill()
        return undisturbed(environment, *arguments, **named)

    def loop() -> None:
        """Kill random environments, at random intervals, until the block or the number of kills ends."""
        while len(killed) < kills and not over.wait(rng.uniform(0.05, 0.6)):
            name = kill_random(cloud.lambdas, rng)
            if name:
                killed.append(name)

    thread = threading.Thread(target=loop)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Environment, "run", run)
        thread.start()
        try:
            yield killed
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize("seed", [1, 2] if WHOLE else [1])
def test_killed_environments_change_nothing(deployed: str, cloud: LocalCloud, tmp_path: Path, seed: int) -> None:
    """Kill function environments during a run, and check that it ends with the bits of the inline run."""
    inline = run_inline(experiment(deployed), tmp_path / "inline", lambda progress: None)
    with killing(cloud, seed, kills=5) as killed:
        local = run(cloud, deployed, tmp_path / "local")
    assert killed
    assert local.result["final"]["parameters_sha256"] == inline.result["final"]["parameters_sha256"]
    assert local.result["epochs"][-1]["val_metric"] == inline.result["epochs"][-1]["val_metric"]
    assert local.result["unrecorded"]["count"] <= len(killed)  # those killed before their record, and nothing else


def test_mlless_survives_killed_environments_too(
    cloud: LocalCloud, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Check that MLLess ends with the bits of the inline run if environments are killed, the supervisor's too.

    Each is replaced before anybody's patience ends, so no worker is removed.
    """
    with standing(cloud, experiment("mlless"), tmp_path_factory.mktemp("assembly")):
        inline = run_inline(experiment("mlless"), tmp_path / "inline", lambda progress: None)
        with killing(cloud, 1, kills=5) as killed:
            local = run(cloud, "mlless", tmp_path / "local")
    assert killed
    assert local.result["final"]["parameters_sha256"] == inline.result["final"]["parameters_sha256"]

"""Goodput under faults: what a run commits in minutes that begin with a fault, compared with what it commits in minutes without one.

    python -m benchmarks.goodput [--minutes 15] [--every 60] [--only spirt all_reduce p2p_instance]

The run is real, on the local cloud. The faults are SIGKILL of a function's busy environment or of a program, and a restart of the broker,
in turn, at the beginning of every other minute of one run; between two runs, a machine's drift in speed would hide what a fault costs.
Counted are distinct committed samples per second: those of the epochs on which all workers agreed. What was computed and lost, or computed
twice, is not counted. The bound is the share of time that the pauses of the retry policy and the broker's absence leave, if a run makes no
progress meanwhile; a run that computes meanwhile can exceed it. The accuracy of a run without faults comes from the reference, trained for
as many epochs.
"""

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.report import Figure, write

if TYPE_CHECKING:
    from crossover.experiment import Experiment
    from crossover.local.cloud import LocalCloud
    from crossover.running.monitor import Progress

CONFIG = Path(__file__).parents[1] / "config"
EPOCHS = 100_000  # more than the minutes have room for
AIMS = {"spirt": ">= 0.95", "all_reduce": ">= 0.95", "p2p_instance": ">= 0.9"}
KINDS = {  # what can die; an all-reduce has no broker, peers have no functions
    "spirt": ("environment", "broker"),
    "all_reduce": ("environment",),
    "p2p_instance": ("program", "broker"),
}


class Enough(Exception):
    """Exception: the minutes are over."""


@dataclass(frozen=True)
class Fault:
    """A fault of the run. `pause_s`: seconds that the retry policy or the absence costs at least, on average."""

    at_s: float
    kind: str
    pause_s: float  # what policy or absence costs at the least, on average


@dataclass
class Run:
    """The times at which epochs were committed (monotonic seconds), with the model's accuracy, and the faults."""

    samples: int = 0  # of an epoch
    commits: list[tuple[float, float]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def rate(self, every_s: float, *, struck: bool) -> float:
        """Return the committed samples per second in the stretches of `every_s` seconds that began with a fault (`struck`), or in those
        that followed them.
        """
        since = [fault.at_s + (0.0 if struck else every_s) for fault in self.faults]
        committed = sum(a < at_s <= a + every_s for a in since for at_s, _ in self.commits)
        return self.samples * committed / (every_s * len(since))

    def recoveries_s(self, usual_s: float) -> list[float]:
        """Return for each fault how many seconds longer than usual the longest epoch took that the fault can have delayed."""
        gaps = [(before, after) for (before, _), (after, _) in zip(self.commits, self.commits[1:], strict=False)]
        found = []
        for fault in self.faults:
            held_up = [b - a for a, b in gaps if b > fault.at_s and a < fault.at_s + 2 * usual_s + fault.pause_s]
            if held_up:
                found.append(max(0.0, max(held_up) - usual_s))
        return found

    def usual_s(self) -> float:
        """Return the median seconds of an epoch."""
        return statistics.median(b - a for (a, _), (b, _) in zip(self.commits, self.commits[1:], strict=False))


def load_experiment(architecture: str, *, epochs: int) -> "Experiment":
    """Return the project's own experiment of an architecture."""
    from crossover import validation

    return validation.load(CONFIG / f"{architecture.replace('_', '-')}.yaml", [f"training.epochs={epochs}"])


def measure(architecture: str, *, minutes: float, every_s: float, seed: int) -> Run:
    """Run one experiment of an architecture with `minutes` of time disturbed by faults and as much without, in stretches of `every_s`
    seconds in turn. `seed`: of the drawn faults.
    """
    from crossover.local import servers
    from crossover.local.cloud import LocalCloud
    from crossover.running.deployed import run_deployed, synthesize_assembly

    experiment = load_experiment(architecture, epochs=EPOCHS)
    found, over, begun = Run(), threading.Event(), threading.Event()

    def record_epoch(progress: "Progress") -> None:
        """Record an epoch. Raises Enough if the minutes are over."""
        found.commits.append((time.monotonic(), progress.val_metric))
        begun.set()
        if found.faults and time.monotonic() - found.faults[0].at_s > 2 * 60 * minutes:
            over.set()
            raise Enough

    with servers.temporary_folder() as folder, TemporaryDirectory(prefix="crossover-") as out:
        with LocalCloud(folder / "cloud") as cloud:
            cloud.deploy(synthesize_assembly(experiment, folder / "assembly"))
            hand = Hand(cloud, experiment, found, random.Random(seed))
            thread = threading.Thread(target=hand.work, args=(begun, over, every_s, round(60 * minutes / every_s)))
            thread.start()
            try:
                check = partial(cloud.check, Path(out) / "server.log")
                run_deployed(experiment, Path(out), record_epoch, session=cloud.session(), where="local", check=check)
            except Enough:
                pass
            finally:
                over.set()
                begun.set()
                thread.join()
            found.samples = hand.samples()
    return found


class Hand:
    """Source of the faults: each kind in turn."""

    def __init__(self, cloud: "LocalCloud", experiment: "Experiment", run: Run, rng: random.Random) -> None:
        self._cloud, self._experiment, self._run, self._rng = cloud, experiment, run, rng
        self._strike: dict[str, Callable[[threading.Event], float]] = {
            "environment": self._kill_an_environment,
            "program": self._kill_a_program,
            "broker": self._restart_the_broker,
        }

    def samples(self) -> int:
        """Return the training samples of an epoch, over all workers."""
        from crossover.running.monitor import Deployed

        s3, bucket = self._cloud.client("s3"), Deployed.load(self._experiment, self._cloud.session()).bucket
        listed = s3.list_objects_v2(Bucket=bucket, Prefix="data/")["Contents"]
        key = next(each["Key"] for each in listed if each["Key"].endswith("/manifest.json"))
        return int(json.loads(s3.get_object(Bucket=bucket, Key=key)["Body"].read())["train_samples"])

    def work(self, begun: threading.Event, over: threading.Event, every_s: float, faults: int) -> None:
        """Cause faults until there are `faults` of them or the run is `over`; every second stretch of `every_s` seconds has none. `begun`:
        set at the first commit.
        """
        begun.wait()
        next_s = time.monotonic() + every_s
        for kind in itertools.islice(itertools.cycle(KINDS[self._experiment.architecture]), faults):
            if over.wait(next_s - time.monotonic()):
                return
            next_s += 2 * every_s
            at_s = time.monotonic()
            self._run.faults.append(Fault(at_s, kind, self._strike[kind](over)))
            print(f"{self._experiment.architecture}: {kind} after {len(self._run.commits)} epochs", flush=True)

    def _kill_an_environment(self, over: threading.Event) -> float:
        """Kill a function's busy environment, and return the mean pause of the retry policy in seconds."""
        from crossover.workflow.state_machines import RETRY
        from tests.local.victims import kill_random

        while not kill_random(self._cloud.lambdas, self._rng) and not over.wait(0.01):
            pass  # none is at work just now
        return float(RETRY[0]["IntervalSeconds"]) / 2  # full jitter: anything from 0 to the interval

    def _kill_a_program(self, over: threading.Event) -> float:
        """Kill a program, and return 0: it is started again at once."""
        from crossover.running.monitor import Deployed
        from tests.local.victims import programs

        fleet = Deployed.load(self._experiment, self._cloud.session()).fleet
        os.kill(self._rng.choice(programs(self._cloud.fleets, fleet)), signal.SIGKILL)
        return 0.0  # started again as soon as it is noticed; on AWS five seconds later

    def _restart_the_broker(self, over: threading.Event) -> float:
        """Restart the broker, and return the seconds of its absence."""
        began_s, mq = time.monotonic(), self._cloud.client("mq")
        for broker in mq.list_brokers()["BrokerSummaries"]:
            mq.reboot_broker(BrokerId=broker["BrokerId"])
        return time.monotonic() - began_s


def figures(architecture: str, run: Run, *, every_s: float) -> list[Figure]:
    """Return the figures of a run in which faults were injected: goodput relative to undisturbed, its bound, samples a second, seconds
    of recovery and of an epoch, accuracy. `architecture`: a key of `AIMS`; `every_s`: seconds after each fault that count as disturbed; as
    many after them count as undisturbed.
    """
    kinds = ", ".join(sorted({fault.kind for fault in run.faults}))
    about = f"{architecture}, {len(run.faults)} faults ({kinds}), {every_s:.0f} s from each, and as long without"
    recoveries = run.recoveries_s(run.usual_s())
    goodput, undisturbed = run.rate(every_s, struck=True), run.rate(every_s, struck=False)
    lost_s = statistics.mean(fault.pause_s for fault in run.faults)
    return [
        Figure(f"{about}: goodput / undisturbed", goodput / undisturbed, "x", AIMS[architecture]),
        Figure("  bound: pauses of the retry policy and the broker's absence alone", 1 - lost_s / every_s, "x"),
        Figure("  committed samples a second, undisturbed", undisturbed, "1/s"),
        Figure("  committed samples a second, disturbed", goodput, "1/s"),
        Figure("  an epoch, median", run.usual_s(), "s"),
        Figure("  recovery, median", statistics.median(recoveries), "s"),
        Figure("  recovery, longest", max(recoveries), "s"),
        Figure(f"  accuracy after {len(run.commits)} epochs", run.commits[-1][1], ""),
        Figure("  accuracy of the reference after as many", undisturbed_accuracy(architecture, len(run.commits)), ""),
    ]


def undisturbed_accuracy(architecture: str, epochs: int) -> float:
    """Return the accuracy of the reference, trained for `epochs` epochs without faults."""
    from crossover.learning.datasets import load
    from crossover.learning.reference import train_reference

    alone = load_experiment(architecture, epochs=epochs)
    return train_reference(alone, load(alone))[2][-1].val_metric


def main() -> None:
    """Train each architecture with and without faults and write the figures after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0, help="that begin with a fault; as many do not")
    parser.add_argument("--every", type=float, default=60.0, help="seconds of one such stretch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=sorted(AIMS), default=sorted(AIMS))
    parser.add_argument("--quick", action="store_true", help="one architecture, one fault: to see that it runs")
    asked = parser.parse_args()
    if asked.quick:
        asked.minutes, asked.every, asked.only = 0.15, 9.0, asked.only[:1]
    told = []
    for architecture in asked.only:
        run = measure(architecture, minutes=asked.minutes, every_s=asked.every, seed=asked.seed)
        told += figures(architecture, run, every_s=asked.every)
        write("goodput", told)  # so far


if __name__ == "__main__":
    main()

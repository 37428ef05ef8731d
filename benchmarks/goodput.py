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
    """The signal to stop the run, raised because the measuring time is over."""


@dataclass(frozen=True)
class Fault:
    """A fault injected into the run. `at_s`: time of the monotonic clock in seconds; `kind`: "environment", "program" or "broker";
    `pause_s`: seconds of pause that it causes at least, on average.
    """

    at_s: float
    kind: str
    pause_s: float  # what policy or absence costs at the least, on average


@dataclass
class Run:
    """The observations of a run, filled while it runs. `samples`: training samples of an epoch; `commits`: (monotonic seconds, accuracy)
    of each committed epoch; `faults`: faults so far.
    """

    samples: int = 0  # of an epoch
    commits: list[tuple[float, float]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def rate(self, every_s: float, *, struck: bool) -> float:
        """Return the committed samples per second in the intervals of `every_s` seconds that start with a fault (if `struck`), or in the
        undisturbed intervals that follow them. There must have been a fault.
        """
        since = [fault.at_s + (0.0 if struck else every_s) for fault in self.faults]
        committed = sum(a < at_s <= a + every_s for a in since for at_s, _ in self.commits)
        return self.samples * committed / (every_s * len(since))

    def recoveries_s(self, usual_s: float) -> list[float]:
        """Return for each fault that can have delayed an epoch by how many seconds the longest such epoch exceeded a usual one, at least 0.
        `usual_s`: seconds of a usual epoch.
        """
        gaps = [(before, after) for (before, _), (after, _) in zip(self.commits, self.commits[1:], strict=False)]
        found = []
        for fault in self.faults:
            held_up = [b - a for a, b in gaps if b > fault.at_s and a < fault.at_s + 2 * usual_s + fault.pause_s]
            if held_up:
                found.append(max(0.0, max(held_up) - usual_s))
        return found

    def median_epoch_s(self) -> float:
        """Return the median of the seconds between two committed epochs; there must be two."""
        return statistics.median(b - a for (a, _), (b, _) in zip(self.commits, self.commits[1:], strict=False))


def load_experiment(architecture: str, *, epochs: int) -> "Experiment":
    """Return the project's example experiment of an architecture, from config/, with `epochs` epochs. `architecture`: its name, such as
    "spirt".
    """
    from crossover import validation

    return validation.load(CONFIG / f"{architecture.replace('_', '-')}.yaml", [f"training.epochs={epochs}"])


def measure(architecture: str, *, minutes: float, every_s: float, seed: int) -> Run:
    """Run an architecture's example on the local cloud for twice `minutes` minutes, and return what was observed. Intervals of `every_s`
    seconds alternate: one that starts with a fault, one without; each kind takes `minutes` minutes in all. `architecture`: a key of AIMS;
    `seed`: seed that draws the faults' victims.
    """
    from crossover.local import servers
    from crossover.local.cloud import LocalCloud
    from crossover.running.deployed import run_deployed, synthesize_assembly

    experiment = load_experiment(architecture, epochs=EPOCHS)
    found, over, begun = Run(), threading.Event(), threading.Event()

    def record_epoch(progress: "Progress") -> None:
        """Record the commit of an epoch. Raises Enough if the measuring time, which begins with the first fault, is over."""
        found.commits.append((time.monotonic(), progress.val_metric))
        begun.set()
        if found.faults and time.monotonic() - found.faults[0].at_s > 2 * 60 * minutes:
            over.set()
            raise Enough

    with servers.temporary_folder() as folder, TemporaryDirectory(prefix="crossover-") as out:
        with LocalCloud(folder / "cloud") as cloud:
            cloud.deploy(synthesize_assembly(experiment, folder / "assembly"))
            injector = FaultInjector(cloud, experiment, found, random.Random(seed))
            thread = threading.Thread(
                target=injector.inject_faults, args=(begun, over, every_s, round(60 * minutes / every_s))
            )
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
            found.samples = injector.samples()
    return found


class FaultInjector:
    """An injector of faults into a run of `experiment` on the local cloud, which causes the kinds of faults in turn. `run`: gets each
    fault; `rng`: draws the victims.
    """

    def __init__(self, cloud: "LocalCloud", experiment: "Experiment", run: Run, rng: random.Random) -> None:
        """Prepare to inject faults into a run of `experiment` on the local cloud. `run`: gets each fault; `rng`: draws the victims."""
        self._cloud, self._experiment, self._run, self._rng = cloud, experiment, run, rng
        self._strike: dict[str, Callable[[threading.Event], float]] = {
            "environment": self._kill_an_environment,
            "program": self._kill_a_program,
            "broker": self._restart_the_broker,
        }

    def samples(self) -> int:
        """Return the number of training samples in an epoch, of all workers, from the manifest in the run's bucket."""
        from crossover.running.monitor import DeployedParameters

        s3, bucket = self._cloud.client("s3"), DeployedParameters.load(self._experiment, self._cloud.session()).bucket
        listed = s3.list_objects_v2(Bucket=bucket, Prefix="data/")["Contents"]
        key = next(each["Key"] for each in listed if each["Key"].endswith("/manifest.json"))
        return int(json.loads(s3.get_object(Bucket=bucket, Key=key)["Body"].read())["train_samples"])

    def inject_faults(self, begun: threading.Event, over: threading.Event, every_s: float, faults: int) -> None:
        """Cause a fault at the start of every other interval of `every_s` seconds, until there were `faults` faults or `over` is set, and
        print a line about each. Runs in a thread. `begun`: event that is set when the first epoch is committed; waits for it first.
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
        """Kill a random busy environment of a function; wait until one is busy or `over` is set. Return the mean pause before the retry, in
        seconds.
        """
        from crossover.workflow.state_machines import RETRY
        from tests.local.victims import kill_random

        while not kill_random(self._cloud.lambdas, self._rng) and not over.wait(0.01):
            pass  # none is at work just now
        return float(RETRY[0]["IntervalSeconds"]) / 2  # full jitter: anything from 0 to the interval

    def _kill_a_program(self, over: threading.Event) -> float:
        """Kill a random program of the run's instances. Return 0.0 seconds of pause, because the local cloud restarts it at once. `over` is
        not used.
        """
        from crossover.running.monitor import DeployedParameters
        from tests.local.victims import programs

        fleet = DeployedParameters.load(self._experiment, self._cloud.session()).fleet
        os.kill(self._rng.choice(programs(self._cloud.fleets, fleet)), signal.SIGKILL)
        return 0.0  # started again as soon as it is noticed; on AWS five seconds later

    def _restart_the_broker(self, over: threading.Event) -> float:
        """Restart the message broker, and wait until that is done. Return the seconds for which it was absent. `over` is not used."""
        began_s, mq = time.monotonic(), self._cloud.client("mq")
        for broker in mq.list_brokers()["BrokerSummaries"]:
            mq.reboot_broker(BrokerId=broker["BrokerId"])
        return time.monotonic() - began_s


def list_figures(architecture: str, run: Run, *, every_s: float) -> list[Figure]:
    """Return the figures of a run with faults: goodput relative to undisturbed intervals and its bound, samples per second, seconds of an
    epoch and of recovery, accuracy, and that of the reference, which is trained here. At least one fault must have delayed an epoch or have
    been able to. `architecture`: a key of AIMS; `every_s`: length of an interval in seconds.
    """
    kinds = ", ".join(sorted({fault.kind for fault in run.faults}))
    about = f"{architecture}, {len(run.faults)} faults ({kinds}), {every_s:.0f} s from each, and as long without"
    recoveries = run.recoveries_s(run.median_epoch_s())
    goodput, undisturbed = run.rate(every_s, struck=True), run.rate(every_s, struck=False)
    lost_s = statistics.mean(fault.pause_s for fault in run.faults)
    return [
        Figure(f"{about}: goodput / undisturbed", goodput / undisturbed, "x", AIMS[architecture]),
        Figure("  bound: pauses of the retry policy and the broker's absence alone", 1 - lost_s / every_s, "x"),
        Figure("  committed samples a second, undisturbed", undisturbed, "1/s"),
        Figure("  committed samples a second, disturbed", goodput, "1/s"),
        Figure("  an epoch, median", run.median_epoch_s(), "s"),
        Figure("  recovery, median", statistics.median(recoveries), "s"),
        Figure("  recovery, longest", max(recoveries), "s"),
        Figure(f"  accuracy after {len(run.commits)} epochs", run.commits[-1][1], ""),
        Figure(
            "  accuracy of the reference after as many", train_reference_accuracy(architecture, len(run.commits)), ""
        ),
    ]


def train_reference_accuracy(architecture: str, epochs: int) -> float:
    """Train the reference implementation of an architecture's example without faults, and return its accuracy after `epochs` epochs."""
    from crossover.learning.datasets import load
    from crossover.learning.reference import train_reference

    alone = load_experiment(architecture, epochs=epochs)
    return train_reference(alone, load(alone))[2][-1].val_metric


def main() -> None:
    """Measure each chosen architecture under faults, and write the figures of all so far after each."""
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
        told += list_figures(architecture, run, every_s=asked.every)
        write("goodput", told)  # so far


if __name__ == "__main__":
    main()

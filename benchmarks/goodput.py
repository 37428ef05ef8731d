"""Goodput under faults: what a run commits while something dies every minute, beside the same run left alone.

    python -m benchmarks.goodput [--minutes 15] [--every 60] [--only spirt all_reduce p2p_instance] [--one-by-one]

On the local cloud, for real: SIGKILL of a function's environment at work or of a program, a restart of the broker, in turn. Counted are
distinct committed samples, those of the epochs that all workers agreed on, a second; what was computed and lost, or computed twice, is not.
The disturbed run and the other one run side by side, so that whatever else the machine does slows both; --one-by-one on one that does
nothing else. The bound is what the pauses of the retry policy and the broker's own absence leave of a run that loses nothing else.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.report import Figure, write

if TYPE_CHECKING:
    from crossover.experiment import Experiment
    from crossover.local.cloud import LocalCloud
    from crossover.running.following import Progress

CONFIG = Path(__file__).parents[1] / "config"
EPOCHS = 100_000  # more than the minutes have room for
AIMS = {"spirt": ">= 0.95", "all_reduce": ">= 0.95", "p2p_instance": ">= 0.9"}
KINDS = {  # what can die; an all-reduce has no broker, peers have no functions
    "spirt": ("environment", "broker"),
    "all_reduce": ("environment",),
    "p2p_instance": ("program", "broker"),
}


class Enough(Exception):
    """The minutes are over."""


@dataclass(frozen=True)
class Fault:
    at_s: float
    kind: str
    pause_s: float  # what policy or absence costs at the least, on average


@dataclass
class Run:
    """When each epoch was committed (monotonic seconds) and how accurate the model was, and what was done to the run."""

    samples: int = 0  # of an epoch
    commits: list[tuple[float, float]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def rate(self, since_s: float, until_s: float) -> float:
        """Committed samples a second in between."""
        return self.samples * sum(since_s < at_s <= until_s for at_s, _ in self.commits) / (until_s - since_s)

    def recoveries_s(self, usual_s: float) -> list[float]:
        """Per fault: how much longer than usual the longest of the epochs took that it can have held up."""
        gaps = [(before, after) for (before, _), (after, _) in zip(self.commits, self.commits[1:], strict=False)]
        found = []
        for fault in self.faults:
            held_up = [b - a for a, b in gaps if b > fault.at_s and a < fault.at_s + 2 * usual_s + fault.pause_s]
            if held_up:
                found.append(max(0.0, max(held_up) - usual_s))
        return found

    def usual_s(self) -> float:
        return statistics.median(b - a for (a, _), (b, _) in zip(self.commits, self.commits[1:], strict=False))


def measure(architecture: str, *, minutes: float, every_s: float, seed: int) -> Run:
    """One run of `minutes` from its first epoch on, with a fault every `every_s` seconds; 0: with none."""
    from crossover import validation
    from crossover.local import processes
    from crossover.local.cloud import LocalCloud
    from crossover.running.cdk_process import synthesized
    from crossover.running.deployed_run import run_deployed

    name = architecture.replace("_", "-")
    experiment = validation.load(CONFIG / f"{name}.yaml", [f"training.epochs={EPOCHS}"])
    found, over, begun = Run(), threading.Event(), threading.Event()

    def committed(progress: "Progress") -> None:
        found.commits.append((time.monotonic(), progress.val_metric))
        begun.set()
        if time.monotonic() - found.commits[0][0] > 60 * minutes:
            over.set()
            raise Enough

    with processes.temporary_folder() as folder, TemporaryDirectory(prefix="crossover-") as out:
        with LocalCloud(folder / "cloud") as cloud:
            cloud.deploy(synthesized(experiment, folder / "assembly"))
            hand = Hand(cloud, experiment, found, random.Random(seed))
            thread = threading.Thread(target=hand.work, args=(begun, over, every_s))
            thread.start()
            try:
                check = partial(cloud.check, Path(out) / "server.log")
                run_deployed(experiment, Path(out), committed, session=cloud.session(), where="local", check=check)
            except Enough:
                pass
            finally:
                over.set()
                begun.set()
                thread.join()
            found.samples = hand.samples()
    return found


class Hand:
    """What strikes: each kind in turn."""

    def __init__(self, cloud: "LocalCloud", experiment: "Experiment", run: Run, rng: random.Random) -> None:
        self._cloud, self._experiment, self._run, self._rng = cloud, experiment, run, rng
        self._strike: dict[str, Callable[[threading.Event], float]] = {
            "environment": self._kill_an_environment,
            "program": self._kill_a_program,
            "broker": self._restart_the_broker,
        }

    def samples(self) -> int:
        """Of an epoch, over all workers."""
        from crossover.running.stack import Deployed

        s3, bucket = self._cloud.client("s3"), Deployed.of(self._experiment, self._cloud.session()).bucket
        listed = s3.list_objects_v2(Bucket=bucket, Prefix="data/")["Contents"]
        key = next(each["Key"] for each in listed if each["Key"].endswith("/manifest.json"))
        return int(json.loads(s3.get_object(Bucket=bucket, Key=key)["Body"].read())["train_samples"])

    def work(self, begun: threading.Event, over: threading.Event, every_s: float) -> None:
        begun.wait()
        next_s = time.monotonic() + every_s
        for kind in itertools.cycle(KINDS[self._experiment.architecture] if every_s else ()):
            if over.wait(next_s - time.monotonic()):
                return
            next_s += every_s
            at_s = time.monotonic()
            self._run.faults.append(Fault(at_s, kind, self._strike[kind](over)))
            print(f"{self._experiment.architecture}: {kind} after {len(self._run.commits)} epochs", flush=True)

    def _kill_an_environment(self, over: threading.Event) -> float:
        from crossover.asl.events import RETRY

        while not self._cloud.lambdas.kill_random(self._rng) and not over.wait(0.01):
            pass  # none is at work just now
        return float(RETRY[0]["IntervalSeconds"]) / 2  # full jitter: anything from 0 to the interval

    def _kill_a_program(self, over: threading.Event) -> float:
        from crossover.running.stack import Deployed

        fleet = Deployed.of(self._experiment, self._cloud.session()).fleet
        os.kill(self._rng.choice(self._cloud.fleets.running(fleet)), signal.SIGKILL)
        return 0.0  # started again as soon as it is noticed; on AWS five seconds later

    def _restart_the_broker(self, over: threading.Event) -> float:
        began_s, mq = time.monotonic(), self._cloud.client("mq")
        for broker in mq.list_brokers()["BrokerSummaries"]:
            mq.reboot_broker(BrokerId=broker["BrokerId"])
        return time.monotonic() - began_s


def _window(run: Run, other: Run) -> tuple[float, float]:
    """When both were past their set-up and training; its own whole time of a run beside which there was none."""
    since_s, until_s = max(run.commits[0][0], other.commits[0][0]), min(run.commits[-1][0], other.commits[-1][0])
    return (since_s, until_s) if since_s < until_s else (run.commits[0][0], run.commits[-1][0])


def figures(architecture: str, alone: Run, disturbed: Run, *, every_s: float) -> list[Figure]:
    kinds = sorted({fault.kind for fault in disturbed.faults})
    since_s, until_s = _window(disturbed, alone)
    over = f"{(until_s - since_s) / 60:.0f} min, {len(disturbed.faults)} faults, one each {every_s:.0f} s"
    about = f"{architecture}, {over} ({', '.join(kinds)})"
    recoveries = disturbed.recoveries_s(alone.usual_s())
    goodput, undisturbed = disturbed.rate(since_s, until_s), alone.rate(*_window(alone, disturbed))
    lost_s = statistics.mean(fault.pause_s for fault in disturbed.faults)
    return [
        Figure(f"{about}: goodput / undisturbed", goodput / undisturbed, "x", AIMS[architecture]),
        Figure("  bound: pauses of the retry policy and the broker's absence alone", 1 - lost_s / every_s, "x"),
        Figure("  committed samples a second, undisturbed", undisturbed, "1/s"),
        Figure("  committed samples a second, disturbed", goodput, "1/s"),
        Figure("  an epoch, undisturbed, median", alone.usual_s(), "s"),
        Figure("  recovery, median", statistics.median(recoveries), "s"),
        Figure("  recovery, longest", max(recoveries), "s"),
        Figure(f"  accuracy after {len(alone.commits)} epochs, undisturbed", alone.commits[-1][1], ""),
        Figure(f"  accuracy after {len(disturbed.commits)} epochs, disturbed", disturbed.commits[-1][1], ""),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0, help="of each run")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two faults")
    parser.add_argument("--one-by-one", action="store_true", help="not side by side")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=sorted(AIMS), default=sorted(AIMS))
    asked = parser.parse_args()
    told = []
    for architecture in asked.only:
        at_once, context = 1 if asked.one_by_one else 2, multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(at_once, mp_context=context) as pool:  # of local clouds a process has one
            alone, disturbed = (
                pool.submit(measure, architecture, minutes=asked.minutes, every_s=every_s, seed=asked.seed)
                for every_s in (0.0, asked.every)
            )
            told += figures(architecture, alone.result(), disturbed.result(), every_s=asked.every)
        write("goodput", told)  # so far


if __name__ == "__main__":
    main()

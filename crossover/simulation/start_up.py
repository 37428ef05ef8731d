"""Start-up: what happens between `deploy` and the first step of a run, part by part, each with the least and the most that it may take."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from crossover.experiment import Experiment
from crossover.reports import bill, display
from crossover.reports.display import Band, band_of
from crossover.simulation.calibration import Calibration
from crossover.workflow.architecture import architecture_of
from crossover.workflow.infrastructure import database_hosts, uses_bus

ASSUMED = "assumed"  # not measured by anyone
LEAST, MOST = 0.5, 2.0  # times what is assumed
BROKER_S = (480.0, 720.0)
BOOT_S = (22.0, 23.0, 24.0)  # until an instance's system runs: least, middle and most


@dataclass(frozen=True)
class StartUpPart:
    """One part of the time between `deploy` and the first step. `what`: its name; `seconds`: the middle estimate, between `least_s` and
    `most_s`; `source`: who reports it, ASSUMED if nobody measured it.
    """

    what: str
    seconds: float
    least_s: float
    most_s: float
    source: str

    @property
    def words(self) -> str:
        """The part as text, with its range, such as `broker 10 min 00 s (8 min 00 s to 12 min 00 s; reported by others)`."""
        band = f"{display.seconds(self.least_s)} to {display.seconds(self.most_s)}; {self.source}"
        return f"{self.what} {display.seconds(self.seconds)} ({band})"


def list_parts(cloud: Calibration, *, hosts: bool, broker: bool, instance: bool, gpu: bool) -> list[StartUpPart]:
    """Return the parts of start-up in their order, with the times of the calibration `cloud`. `hosts`: whether there are database hosts;
    `broker`: whether network and broker are created, as by a project's first experiment; `instance`: whether programs run on EC2 instances;
    `gpu`: whether these have a GPU.
    """
    parts = [_assume("stack", cloud.stack_s)]
    if broker:
        parts.append(_assume("network", cloud.network_s))
        parts.append(StartUpPart("broker", cloud.broker_s, *BROKER_S, "reported by others"))
    if hosts:
        parts.append(_assume("database hosts", cloud.hosts_s))
    if instance:
        least_s, boot_s, most_s = BOOT_S
        parts.append(StartUpPart("boot of the instance", boot_s, least_s, most_s, "reported by others"))
        if gpu:
            parts.append(_assume("image with PyTorch for GPUs, read from its snapshot", bill.GPU_BOOT_S - bill.BOOT_S))
        parts.append(_assume("installation and data", bill.BOOT_S - boot_s))
    return parts


def list_parts_of(experiment: Experiment, cloud: Calibration) -> list[StartUpPart]:
    """Return the parts of an experiment's start-up in their order, with the times of the calibration `cloud`."""
    architecture = architecture_of(experiment)
    programs = bill.list_program_fleets(experiment, architecture)
    return list_parts(
        cloud,
        hosts=database_hosts(experiment, architecture) > 0,
        broker=uses_bus(architecture),
        instance=bool(programs),
        gpu=any(each.gpu for each in programs),
    )


def band_until_ready(running_s: Sequence[float], before_s: float, parts: Sequence[StartUpPart]) -> Band:
    """Return the percentiles of the seconds from `deploy` until the model is ready. The median is that of the runs and `before_s` together;
    for the 5th and 95th percentile, each run gets a random start-up. `running_s`: seconds of each repetition of the run; `before_s`: median
    seconds of start-up; `parts`: its parts, of which it is the sum; without any, all start-ups take `before_s`.
    """
    middle_s = band_of(running_s).p50 + before_s
    drawn = draw_seconds(parts, len(running_s)) or [before_s] * len(running_s)
    low_s, _, high_s = band_of([run_s + more_s for run_s, more_s in zip(running_s, drawn, strict=True)])
    return Band(min(low_s, middle_s), middle_s, max(high_s, middle_s))


def draw_seconds(parts: Sequence[StartUpPart], count: int) -> list[float]:
    """Return the seconds of `count` simulated start-ups, each the sum of its parts, in a fixed random order; the same at every call. All
    parts of one start-up lie equally far within their ranges (see `_interpolate`), and the start-ups are spread evenly over them. Empty if
    there are no parts.
    """
    lucks = [(number + 0.5) / count for number in range(count)]
    random.Random("start-ups").shuffle(lucks)
    return [sum(_interpolate(each, luck) for each in parts) for luck in lucks] if parts else []


def _interpolate(part: StartUpPart, luck: float) -> float:
    """Return the seconds of a part for a `luck` between 0 and 1: the least at 0, the middle at 0.5, the most at 1, and
    linear between them.
    """
    if luck <= 0.5:
        return part.least_s + 2 * luck * (part.seconds - part.least_s)
    return part.seconds + (2 * luck - 1) * (part.most_s - part.seconds)


def describe(parts: list[StartUpPart]) -> str:
    """Return one line with the sum of all parts and its range, a colon, and the `words` of each part, separated by commas: `start-up 12 min
    00 s (9 min 00 s to 15 min 00 s): stack ..., broker ...`. The range goes from the sum of the least seconds to the sum of the most.
    """
    seconds, least_s, most_s = (sum(getattr(each, name) for each in parts) for name in ("seconds", "least_s", "most_s"))
    whole = f"start-up {display.seconds(seconds)} ({display.seconds(least_s)} to {display.seconds(most_s)})"
    return f"{whole}: {', '.join(each.words for each in parts)}"


def _assume(what: str, seconds: float) -> StartUpPart:
    """Return a part that nobody measured, with a range from half to twice `seconds` and the source ASSUMED. `what`: its name."""
    return StartUpPart(what, seconds, LEAST * seconds, MOST * seconds, ASSUMED)

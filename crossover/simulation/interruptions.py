"""Interruptions of spot instances: how often they happen, and the time a run loses by them.

Interruptions are a Poisson process over the time that instances are held. After one, the run waits for another instance, which boots, and
resumes from the last checkpoint. Nothing is billed while no instance is held.
"""

import random
from dataclasses import dataclass

from crossover.simulation.figures import SpotMarket

STATE_VECTORS = 2  # of a checkpoint: the model and its optimizer's
MAX_LOSSES = 1_000  # losses after which a run is given up


@dataclass(frozen=True, kw_only=True)
class Losses:
    """The interruptions of one run on spot instances. `count`: how many; `held_s`: seconds in which the run held its instances; `waited_s`:
    seconds without instances; `ended`: whether the run finished.
    """

    count: int
    held_s: float
    waited_s: float
    ended: bool = True


def draw_losses(
    work_s: float,
    *,
    instances: int,
    market: SpotMarket,
    boot_s: float,
    interval_s: float,
    rng: random.Random,
) -> Losses:
    """Draw the interruptions of one run that needs `work_s` seconds on `instances` spot instances, and return their number and what time
    they cost. After each, work since the last checkpoint is lost, and a new instance boots. After MAX_LOSSES interruptions the run is given
    up (`ended` is False).

    `market`: how often instances are lost and how long the next one takes; `boot_s`: seconds until a new instance works; `interval_s`:
    seconds between two checkpoints; `rng`: random generator.
    """
    rate = instances * market.lost_per_hour / 3_600
    if not rate:
        return Losses(count=0, held_s=work_s, waited_s=0.0)
    done_s = held_s = waited_s = ahead_s = 0.0
    for count in range(MAX_LOSSES):
        left_s, taken_s = ahead_s + work_s - done_s, rng.expovariate(rate)
        if taken_s >= left_s:
            return Losses(count=count, held_s=held_s + left_s, waited_s=waited_s)
        held_s += taken_s
        done_s += max(0.0, taken_s - ahead_s)
        done_s -= done_s % interval_s
        waited_s += rng.expovariate(1 / market.wait_s) if market.wait_s else 0.0
        ahead_s = boot_s
    return Losses(count=MAX_LOSSES, held_s=held_s, waited_s=waited_s, ended=False)

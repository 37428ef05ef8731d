"""What a study would take on AWS, before any of it is run: each setting projected as `crossover project` does it."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from crossover.errors import ConfigError, NoProjection
from crossover.experiment import from_resolved
from crossover.reports import display
from crossover.reports.bands import Band, band
from crossover.simulation import AWS
from crossover.simulation.repetitions import Projection, project
from crossover.study.file import Study, Varied
from crossover.study.trials import Accepting, StudyTrial

DRAWN = 24  # settings that stand for all where there are more
REPETITIONS = 20


def of_trial(trial: StudyTrial) -> Projection:
    """As every trial of its setting: seed, name and budget change no figure of a projection. Raises NoProjection."""
    experiment = trial.experiment
    alike = replace(experiment, seed=1, name="any", lifetime=replace(experiment.lifetime, budget_usd=None))
    return _projected(json.dumps(alike.resolved()))


@lru_cache(maxsize=64)
def _projected(resolved: str) -> Projection:
    return project(from_resolved(json.loads(resolved)), AWS, repetitions=REPETITIONS)


@dataclass(frozen=True, kw_only=True)
class StudyForecast:
    """`seconds` one trial after another, `usd` of all; `dearest_p95` and `cheapest_p95` of a single trial. `at_once`: trials that fit
    AWS's default of concurrent executions side by side. `drawn`: so many settings stand for all; `unknown`: why there is no projection.
    """

    trials: int
    seconds: Band
    usd: Band
    cheapest_p95: float
    dearest_p95: float
    at_once: int
    drawn: int
    problems: tuple[str, ...] = ()
    unknown: str = ""

    @property
    def lines(self) -> list[str]:
        """As people read it, before anything is started."""
        if self.unknown:
            return [f"{self.trials:,} trials; no projection: {self.unknown}"]
        of = f", by {self.drawn} settings drawn of them" if self.drawn else ""
        return [
            f"[projected] {self.trials:,} trials on AWS{of}: {display.band(display.seconds, *self.seconds)} one after another; "
            f"{display.band(display.usd, *self.usd)} in full, between runs and deployment apart",
            f"[projected] a trial: at most {display.usd(self.dearest_p95)} (p95{', of those drawn' if self.drawn else ''}); AWS's "
            f"default of {AWS.concurrency or 0:,} concurrent executions holds {self.at_once:,} at once",
            *(f"would not run so on AWS: {problem}" for problem in self.problems),
        ]


def of_study(study: Study, *, travels: bool, drawn: Sequence[Varied] = ()) -> StudyForecast:
    """By all its settings, or by DRAWN of them, in the same draws; by those `drawn` of a search's. Raises ConfigError for one that would be
    refused.
    """
    rng, sizes = random.Random(study.order), [len(values) for values in study.grid.values()]
    whole = study.settings <= DRAWN
    numbers = range(study.settings) if whole else rng.sample(range(study.settings), DRAWN)
    accepting = Accepting(study, travels=travels)
    return _of_settings(study, accepting, drawn or [_setting(study, sizes, number) for number in numbers])


def _setting(study: Study, sizes: Sequence[int], number: int) -> Varied:
    """The `number`th of the grid, without those before it."""
    found = {}
    for (name, values), size in zip(reversed(list(study.grid.items())), reversed(sizes), strict=True):
        number, at = divmod(number, size)
        found[name] = values[at]
    return dict(reversed(found.items()))


def _of_settings(study: Study, accepting: Accepting, drawn: Sequence[Varied]) -> StudyForecast:
    """Of settings that stand for all of the study's."""
    try:
        found = [of_trial(accepting.trials(varied)[0]) for varied in drawn]
    except NoProjection as unknown:
        nothing = Band(0, 0, 0)
        return StudyForecast(
            trials=study.count,
            seconds=nothing,
            usd=nothing,
            cheapest_p95=0,
            dearest_p95=0,
            at_once=0,
            drawn=0,
            unknown=str(unknown),
        )
    times = study.count / len(found)

    def total(figure: str) -> Band:
        draws = zip(*([getattr(each, figure) for each in one.outcomes] for one in found), strict=True)
        return band([times * sum(draw) for draw in draws])

    p95 = [one.band("usd").p95 for one in found]
    return StudyForecast(
        trials=study.count,
        seconds=total("seconds"),
        usd=total("usd"),
        cheapest_p95=min(p95),
        dearest_p95=max(p95),
        at_once=max(1, (AWS.concurrency or 0) // max(1, *(one.run.concurrency for one in found))),
        drawn=0 if len(found) == study.settings and not study.search else len(found),
        problems=tuple(dict.fromkeys(problem for one in found for problem in one.problems)),
    )


def check_budget(found: StudyForecast, budget_usd: float) -> None:
    """Raises ConfigError for a budget that not even the cheapest trial fits, where all were projected, or that nothing can be held
    against.
    """
    if found.unknown:
        raise ConfigError(
            f"--budget {budget_usd:g}: a trial is begun only where its p95 fits, and there is none: {found.unknown}"
        )
    if not found.drawn and budget_usd < found.cheapest_p95:
        raise ConfigError(
            f"--budget {budget_usd:g}: the cheapest trial takes up to {display.usd(found.cheapest_p95)} (p95, projected on AWS): none "
            "would be begun; give more, or a smaller experiment"
        )

"""A walk of steps, each of which says what it costs before it is taken: the first that fails ends the walk."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crossover.account.deployment import deploying
from crossover.account.proofs.evidence import Evidence
from crossover.account.proofs.observed import Checks, Observed
from crossover.experiment import Experiment
from crossover.reports.folder import RunFolder

FUNCTIONS_USD = 0.01  # of one small run: generous


@dataclass(kw_only=True)
class Walk:
    """What the steps share. `whole`: the project's own proof, of which everything is tried; another CONFIG is deployed, run, destroyed."""

    seen: Evidence
    config: Path
    out: Path
    whole: bool
    observed: dict[str, Observed]
    tell: Callable[[str], None]
    train: Callable[[Experiment, Path], RunFolder]

    @property
    def experiment(self) -> Experiment:
        return self.seen.experiment

    def look(self, checks: Checks) -> None:
        for id, check in checks.items():
            self.observed[id] = check(self.seen)
            self.tell(f"{self.observed[id].verdict:<11}  {id}: {self.observed[id].seen}")

    def changed(self, name: str, experiment: Experiment) -> Path:
        """The experiment as a file, for the CDK: JSON, which YAML can read."""
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"{name}.yaml"
        path.write_text(json.dumps(experiment.resolved(), indent=1) + "\n", encoding="utf-8")
        return path

    def deploy(self, config: Path, experiment: Experiment, *, only: str = "") -> None:
        """As `crossover deploy` does; `only`: one of the shared stacks, and what it needs."""
        if not only:
            deploying.deploy_previewed(config, experiment, ask=False, tell=self.tell)
            return
        zone = deploying.chosen_zone(experiment, tell=self.tell)
        deploying.run_cdk(config, experiment, [*deploying.DEPLOY, *zone], stacks=[f"{experiment.project}-{only}"])


@dataclass(frozen=True, kw_only=True)
class Step:
    """`usd_per_hour`: of what stands while it lasts. `left_out`: why it is not taken; empty where it is."""

    name: str
    does: str
    minutes: float
    usd_per_hour: Callable[[Experiment], float]
    work: Callable[[Walk], None]
    left_out: Callable[[Walk], str] = lambda walk: ""
    runs: int = 0

    def cost(self, experiment: Experiment) -> float:
        return self.usd_per_hour(experiment) * self.minutes / 60 + self.runs * FUNCTIONS_USD


def walk_through(walk: Walk, steps: Sequence[Step]) -> None:
    """All of them in order. Raises what the first that fails raises."""
    for n, step in enumerate(steps, start=1):
        title = f"step {n} of {len(steps)}, {step.name}"
        if reason := step.left_out(walk):
            walk.tell(f"{title}: left out, {reason}")
            continue
        cost = step.cost(walk.experiment)
        walk.tell(f"{title}: {step.does}; about {step.minutes:.0f} minutes and ${cost:.2f}, projected")
        with timed(walk.seen, step.name):
            step.work(walk)


@contextmanager
def timed(seen: Evidence, phase: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        seen.minutes[phase] = (time.monotonic() - started) / 60

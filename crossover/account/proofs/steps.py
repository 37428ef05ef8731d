"""The steps of a verification, from the cheapest on: each says first what it costs, and the first that fails ends the walk.

What was deployed is destroyed by whoever walks the steps.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from crossover.account import standing, tell
from crossover.account.deployment import deploying
from crossover.account.deployment.minutes import EXPECTED_MINUTES
from crossover.account.proofs import expiring, fact_checks, redriving
from crossover.account.proofs.evidence import CHILDREN, Evidence
from crossover.account.proofs.observed import Check, Observed
from crossover.account.removal import destroying, leftovers
from crossover.architecture import architecture_of
from crossover.architecture.infrastructure import BROKER, NETWORK, shared_stacks
from crossover.experiment import Experiment
from crossover.reports.folder import RunFolder
from crossover.validation import load

SMALLEST = Path(__file__).parents[3] / "config" / "aws" / "smallest.yaml"
WORKERS_AFTER = 3
SHORT_TTL_HOURS = 0.02
FUNCTIONS_USD = 0.01  # of one small run: generous


@dataclass(kw_only=True)
class ProofWalk(Evidence):
    """What the steps share. `whole`: the project's own proof, of which everything is tried; another CONFIG is deployed, run, destroyed."""

    config: Path
    out: Path
    whole: bool
    train: Callable[[Experiment, Path], RunFolder]
    observed: dict[str, Observed] = field(default_factory=dict)

    def look(self, checks: Mapping[str, Check]) -> None:
        for id, check in checks.items():
            self.observed[id] = check(self)
            tell(f"{self.observed[id].verdict:<11}  {id}: {self.observed[id].seen}")

    def changed(self, name: str, experiment: Experiment) -> Path:
        """The experiment as a file, for the CDK: JSON, which YAML can read."""
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"{name}.yaml"
        path.write_text(json.dumps(experiment.resolved(), indent=1) + "\n", encoding="utf-8")
        return path

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.minutes[phase] = (time.monotonic() - started) / 60


@dataclass(frozen=True, kw_only=True)
class ProofStep:
    """`usd_per_hour`: of what stands while it lasts. `left_out`: why it is not taken; empty where it is."""

    name: str
    does: str
    minutes: float
    usd_per_hour: Callable[[Experiment], float]
    work: Callable[[ProofWalk], None]
    left_out: Callable[[ProofWalk], str] = lambda walk: ""
    runs: int = 0

    def cost(self, experiment: Experiment) -> float:
        return self.usd_per_hour(experiment) * self.minutes / 60 + self.runs * FUNCTIONS_USD


def walk_through(walk: ProofWalk, steps: Sequence[ProofStep]) -> None:
    """All of them in order. Raises what the first that fails raises."""
    for n, step in enumerate(steps, start=1):
        title = f"step {n} of {len(steps)}, {step.name}"
        if reason := step.left_out(walk):
            tell(f"{title}: left out, {reason}")
            continue
        cost = step.cost(walk.experiment)
        tell(f"{title}: {step.does}; about {step.minutes:.0f} minutes and ${cost:.2f}, projected")
        with walk.timed(step.name):
            step.work(walk)


# --- the steps --------------------------------------------------------------------------------------------------------


def _deploy(config: Path, experiment: Experiment) -> None:
    """As `crossover deploy` does."""
    deploying.deploy_previewed(config, experiment, ask=False, tell=tell)


def _deploy_shared(walk: ProofWalk, *, stack: str) -> None:
    """One of the shared stacks, and what it needs."""
    zone = deploying.chosen_zone(walk.experiment, tell=tell)
    names = [f"{walk.experiment.project}-{stack}"]
    deploying.run_cdk(walk.config, walk.experiment, [*deploying.DEPLOY, *zone], names=names)


def _smallest(walk: ProofWalk) -> None:
    smallest = load(SMALLEST)
    _deploy(SMALLEST, smallest)
    walk.train(smallest, walk.out / "smallest")
    destroying.delete_experiment(walk.session, smallest)


def _run(walk: ProofWalk) -> None:
    with walk.timed("deployed"):
        _deploy(walk.config, walk.experiment)
    walk.run = walk.train(walk.experiment, walk.out)
    walk.look(fact_checks.STANDING)


def _more(experiment: Experiment) -> Experiment:
    return replace(experiment, workers=WORKERS_AFTER)


def _update(walk: ProofWalk) -> None:
    more = _more(walk.experiment)
    _deploy(walk.changed("three-workers", more), more)
    walk.updated = walk.train(more, walk.out / "three-workers")


def _redrive(walk: ProofWalk) -> None:
    redrive = partial(
        redriving.redrive,
        walk,
        run=f"{walk.stack}-run",
        children=[f"{walk.stack}-{name}" for name in CHILDREN],
        start=lambda: walk.train(_more(walk.experiment), walk.out / "redriven"),
    )
    walk.redriven_alone = redrive(children_first=False)
    walk.redriven = redrive(children_first=True)


def _schedule(walk: ProofWalk) -> None:
    """A stack whose time is over is left to the schedule, which has to delete it. On one machine none fires: its machine is started."""
    lifetime = walk.experiment.lifetime
    run_hours = min(SHORT_TTL_HOURS, lifetime.maximum_run_hours)
    short = replace(lifetime, ttl_hours=SHORT_TTL_HOURS, maximum_run_hours=run_hours)
    over = replace(walk.experiment, lifetime=short)
    if walk.on_aws:
        _deploy(walk.changed("over", over), over)
        walk.fired = expiring.fired(walk)
    with walk.timed("experiment deleted"):
        if walk.fired or expiring.tell_expiry(walk):
            walk.expiry_state = leftovers.wait_for_stack(walk.session, walk.stack, poll_s=2.0)


# --- which of them are taken, and what stands meanwhile ------------------------------------------------------------------


def _not_whole(walk: ProofWalk) -> str:
    return "" if walk.whole else "only the project's own proof is tried so far"


def _without(stack: str) -> Callable[[ProofWalk], str]:
    return lambda walk: "" if stack in shared_stacks(walk.experiment) else f"the experiment needs no {stack}"


def _no_redrive(walk: ProofWalk) -> str:
    if not walk.on_aws:
        return "the cloud on one machine redrives nothing"
    return _not_whole(walk) or ("" if architecture_of(walk.experiment).run else "no state machine runs it")


def _not_alone(walk: ProofWalk) -> str:
    if not shared_stacks(walk.experiment):
        return "its own schedule is not waited for"
    return "" if walk.alone else "another experiment of the project stands"


def _usd(experiment: Experiment, *shared: str) -> float:
    """An hour of these shared stacks; of everything where none is named."""
    lines = [line for stack in shared for line in standing.shared_lines(experiment, stack)]
    return standing.usd(lines if shared else standing.lines(experiment, running=True))


STEPS = (
    ProofStep(
        name="smallest",
        does=f"AllReduce through a bucket ({SMALLEST.name}): deploy, run, destroy",
        minutes=6,
        usd_per_hour=lambda experiment: 0.0,
        work=_smallest,
        left_out=_not_whole,
        runs=1,
    ),
    ProofStep(
        name="network",
        does="deploy the network, the expiry and its schedule",
        minutes=EXPECTED_MINUTES["network"],
        usd_per_hour=lambda experiment: _usd(experiment, NETWORK),
        work=partial(_deploy_shared, stack=NETWORK),
        left_out=_without(NETWORK),
    ),
    ProofStep(
        name="broker",
        does="deploy the broker",
        minutes=EXPECTED_MINUTES["broker"],
        usd_per_hour=lambda experiment: _usd(experiment, NETWORK, BROKER),
        work=partial(_deploy_shared, stack=BROKER),
        left_out=_without(BROKER),
    ),
    ProofStep(
        name="run",
        does="deploy the experiment, train, look",
        minutes=EXPECTED_MINUTES["experiment"] + 5,
        usd_per_hour=_usd,
        work=_run,
        runs=1,
    ),
    ProofStep(
        name="update",
        does=f"deploy again with {WORKERS_AFTER} workers, train",
        minutes=8,
        usd_per_hour=lambda experiment: _usd(_more(experiment)),
        work=_update,
        left_out=_not_whole,
        runs=1,
    ),
    ProofStep(
        name="redrive",
        does="stop runs while their children work, redrive them",
        minutes=8,
        usd_per_hour=lambda experiment: _usd(_more(experiment)),
        work=_redrive,
        left_out=_no_redrive,
        runs=2,
    ),
    ProofStep(
        name="schedule",
        does="let the experiment's time be over, and wait for the schedule to delete it",
        minutes=expiring.FIRING_WAIT_S / 60 + 10,
        usd_per_hour=_usd,
        work=_schedule,
        left_out=_not_alone,
    ),
)

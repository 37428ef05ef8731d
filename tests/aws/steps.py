"""The steps of a verification, from the cheapest on: each says first what it costs, and the first that fails ends the walk.

What was deployed is destroyed by whoever walks the steps.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from crossover.errors import CrossoverError, UserError, print_line
from crossover.experiment import Experiment
from crossover.reports.folder import RunFolder
from crossover.running import deploying, removal, running_costs
from crossover.running.preflight import EXPECTED_MINUTES
from crossover.validation import load
from crossover.workflow.architecture import architecture_of
from crossover.workflow.infrastructure import BROKER, NETWORK, shared_stacks
from tests.aws import expiring, fact_checks, redriving
from tests.aws.evidence import CHILDREN, Evidence
from tests.aws.observed import Check, Observed

SMALLEST = Path(__file__).parents[2] / "config" / "aws" / "smallest.yaml"
WORKERS_AFTER = 3
SHORT_TTL_HOURS = 0.02
DELETION_MIN = 32  # of everything: it may wait for network interfaces
FUNCTIONS_USD = 0.01  # of one small run: generous


@dataclass(kw_only=True)
class ProofWalk(Evidence):
    """The state that the steps of a verification share. `whole`: True for the project's own experiment, with which everything is tried; any
    other one is only deployed, run and destroyed.
    """

    config: Path
    out: Path
    whole: bool
    train: Callable[[Experiment, Path], RunFolder]
    observed: dict[str, Observed] = field(default_factory=dict)
    # Why the account cannot take it, its quotas for example.
    refusal: Callable[[Experiment], str] = lambda experiment: ""
    spent_usd: float = 0.0  # by what each step lasted
    ceiling_usd: float | None = (
        None  # no step begins that would pass it, the deletion included; None: each is asked for
    )
    confirm: Callable[[str], bool] = lambda question: False
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def most(self) -> Experiment:
        """The experiment that is deployed after the update, if there was one."""
        return _more(self.experiment) if self.updated else self.experiment

    def look(self, checks: Mapping[str, Check]) -> None:
        """Run the checks, record what each saw, and print one line for each."""
        for id, check in checks.items():
            self.observed[id] = check(self)
            print_line(f"{self.observed[id].verdict:<11}  {id}: {self.observed[id].seen}")

    def changed(self, name: str, experiment: Experiment) -> Path:
        """Write an experiment to a file for the CDK, and return its path. The file is JSON, which YAML can read."""
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"{name}.yaml"
        path.write_text(json.dumps(experiment.to_plain(), indent=1) + "\n", encoding="utf-8")
        return path

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Record the minutes that the block takes as those of `phase`."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.minutes[phase] = (time.monotonic() - started) / 60


@dataclass(frozen=True, kw_only=True)
class ProofStep:
    """One step of the verification. `usd_per_hour`: function that returns dollars per hour of what exists during the step; `left_out`:
    function that returns why the step is skipped, "" if it is taken.
    """

    name: str
    does: str
    minutes: float
    usd_per_hour: Callable[[Experiment], float]
    work: Callable[[ProofWalk], None]
    left_out: Callable[[ProofWalk], str] = lambda walk: ""
    runs: int = 0

    def deletion_usd(self, experiment: Experiment) -> float:
        """Return the dollars of what exists in this step while it is deleted."""
        return self.usd_per_hour(experiment) * DELETION_MIN / 60

    def cost(self, experiment: Experiment, *, minutes: float | None = None) -> float:
        """Return the dollars of the step for its expected minutes, or for the minutes that it took."""
        lasts = self.minutes if minutes is None else minutes
        return self.usd_per_hour(experiment) * lasts / 60 + self.runs * FUNCTIONS_USD


def walk_through(walk: ProofWalk, steps: Sequence[ProofStep]) -> None:
    """Take all steps in order. Raises the error of the first that fails."""
    for n, step in enumerate(steps, start=1):
        title = f"step {n} of {len(steps)}, {step.name}"
        if reason := step.left_out(walk):
            print_line(f"{title}: left out, {reason}")
            continue
        cost = step.cost(walk.experiment)
        print_line(f"{title}: {step.does}; about {step.minutes:.0f} minutes and ${cost:.2f}, projected")
        check_allowed(walk, step)
        try:
            with walk.timed(step.name):
                step.work(walk)
        finally:
            walk.spent_usd += step.cost(walk.experiment, minutes=walk.minutes[step.name])


def check_allowed(walk: ProofWalk, step: ProofStep) -> None:
    """Hold a step against the ceiling, or ask for it if there is none. Raises UserError if it may not begin."""
    if walk.ceiling_usd is None:
        if not walk.confirm(f"Take the step {step.name}?"):
            raise UserError(f"{step.name}: not confirmed, so neither this step nor a later one was taken")
        return
    total = walk.spent_usd + step.cost(walk.experiment) + step.deletion_usd(walk.experiment)
    if not total <= walk.ceiling_usd:
        raise UserError(
            f"{step.name}: ${walk.spent_usd:.2f} are spent, and with this step and the deletion it would be ${total:.2f}, "
            f"above the ceiling of ${walk.ceiling_usd:.2f}"
        )


# --- the steps --------------------------------------------------------------------------------------------------------


def _deploy(config: Path, experiment: Experiment) -> None:
    """Deploy the experiment as `crossover deploy` does, without asking."""
    deploying.deploy_previewed(config, experiment, ask=False, tell=print_line)


def _deploy_shared(walk: ProofWalk, *, stack: str) -> None:
    """Deploy one of the shared stacks, and the stacks that it needs."""
    zone = deploying.choose_zone_arguments(walk.experiment, tell=print_line)
    names = [f"{walk.experiment.project}-{stack}"]
    deploying.run_cdk(walk.config, walk.experiment, [*deploying.DEPLOY_ARGUMENTS, *zone], names=names)


def _smallest(walk: ProofWalk) -> None:
    """Deploy and train the smallest experiment. On AWS it is left to its own schedule, which costs nothing to wait for."""
    smallest = load(SMALLEST)
    _deploy(SMALLEST, smallest)
    walk.train(smallest, walk.out / "smallest")
    if walk.on_aws:
        over = _over(smallest)
        _deploy(walk.changed("smallest-over", over), over)
        walk.fired = expiring.gone(walk, f"{smallest.project}-{smallest.name}")
        if not walk.fired:
            raise CrossoverError(
                "the smallest stack's own schedule did not delete it: nothing that costs by the hour is deployed"
            )
    removal.delete_experiment(walk.session, smallest)


def _run(walk: ProofWalk) -> None:
    """Deploy the experiment, train it, and run the checks on what is deployed."""
    with walk.timed("deployed"):
        _deploy(walk.config, walk.experiment)
    walk.run = walk.train(walk.experiment, walk.out)
    walk.look(fact_checks.STANDING)


def _more(experiment: Experiment) -> Experiment:
    """Return the experiment with more workers."""
    return replace(experiment, workers=WORKERS_AFTER)


def _update(walk: ProofWalk) -> None:
    """Update the stack to more workers, and train again."""
    more = _more(walk.experiment)
    _deploy(walk.changed("three-workers", more), more)
    walk.updated = walk.train(more, walk.out / "three-workers")


def _redrive(walk: ProofWalk) -> None:
    """Stop the run while a child works, and redrive it: with its children redriven first, and alone."""
    redrive = partial(
        redriving.redrive,
        walk,
        run=f"{walk.stack}-run",
        children=[f"{walk.stack}-{name}" for name in CHILDREN],
        start=lambda: walk.train(walk.most, walk.out / "redriven"),
    )
    walk.redriven_alone = redrive(children_first=False)
    walk.redriven = redrive(children_first=True)


def _over(experiment: Experiment) -> Experiment:
    """Return the experiment with a time to live that ends a minute after its deployment."""
    lifetime = experiment.lifetime
    run_hours = min(SHORT_TTL_HOURS, lifetime.maximum_run_hours)
    return replace(experiment, lifetime=replace(lifetime, ttl_hours=SHORT_TTL_HOURS, maximum_run_hours=run_hours))


def _schedule(walk: ProofWalk) -> None:
    """Leave expired stacks to the schedule, which must delete the experiment, then the broker, then the network with itself. On one machine
    no schedule fires, so its state machine is started once.
    """
    if not walk.on_aws:
        with walk.timed("experiment deleted"):
            if expiring.tell_expiry(walk):
                walk.expiry_state = removal.wait_for_stack(walk.session, walk.stack, poll_s=2.0)
        return
    over = _over(walk.most)
    _deploy(walk.changed("over", over), over)
    parts = {walk.stack: "experiment deleted"}
    for part in reversed(shared_stacks(walk.experiment)):
        parts[f"{walk.experiment.project}-{part}"] = f"{part} deleted"
    for stack, phase in parts.items():
        walk.fired = expiring.fired(walk, stack)
        with walk.timed(phase):
            walk.expiry_state = removal.wait_for_stack(walk.session, stack, poll_s=2.0) if walk.fired else None
        if stack == walk.stack:
            walk.interfaces_left = walk.function_interfaces()
        if walk.expiry_state != "":
            return  # what did not go, the command destroys
    walk.network_deleted = True


# --- which of them are taken, and what stands meanwhile ------------------------------------------------------------------


def _not_whole(walk: ProofWalk) -> str:
    """Return why a step of the project's own proof is left out; empty if it is not."""
    return "" if walk.whole else "only the project's own proof is tried so far"


def _without(stack: str) -> Callable[[ProofWalk], str]:
    """Return a function that says why a step with a shared stack is left out."""

    def reason(walk: ProofWalk) -> str:
        """Return why the step is skipped: the experiment does not need the stack, or the account refuses it; "" if neither."""
        needed = stack in shared_stacks(walk.experiment)
        return walk.refusal(walk.experiment) if needed else f"the experiment needs no {stack}"

    return reason


def _no_redrive(walk: ProofWalk) -> str:
    """Return why the redrive is left out; empty if it is not."""
    if not walk.on_aws:
        return "the cloud on one machine redrives nothing"
    return _not_whole(walk) or (
        walk.refusal(walk.experiment) if architecture_of(walk.experiment).run else "no state machine runs it"
    )


def _not_alone(walk: ProofWalk) -> str:
    """Return why the schedule is not waited for; empty if it is."""
    if not shared_stacks(walk.experiment):
        return "its own schedule is not waited for"
    return walk.refusal(walk.experiment) if walk.alone else "another experiment of the project stands"


def _usd(experiment: Experiment, *shared: str) -> float:
    """Return the dollars per hour of the named shared stacks, or of everything if none is named."""
    lines = [line for stack in shared for line in running_costs.list_shared_costs(experiment, stack)]
    return running_costs.sum_usd(lines if shared else running_costs.list_hourly_costs(experiment, running=True))


STEPS = (
    ProofStep(
        name="smallest",
        does=f"AllReduce through a bucket ({SMALLEST.name}): deploy, run, let its own schedule delete it",
        minutes=6 + expiring.FIRING_WAIT_S / 60,
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
        left_out=lambda walk: walk.refusal(walk.experiment),
        runs=1,
    ),
    ProofStep(
        name="update",
        does=f"deploy again with {WORKERS_AFTER} workers, train",
        minutes=8,
        usd_per_hour=lambda experiment: _usd(_more(experiment)),
        work=_update,
        left_out=lambda walk: _not_whole(walk) or walk.refusal(_more(walk.experiment)),
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
        does="let the time of everything be over, and wait for the schedule to delete it, one after another",
        minutes=3 * expiring.FIRING_WAIT_S / 60 + DELETION_MIN,
        usd_per_hour=_usd,
        work=_schedule,
        left_out=_not_alone,
    ),
)

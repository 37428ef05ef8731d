"""The steps of a verification, from the cheapest on: each is paid for only when the one before held, and says first what it costs.

A step that fails raises, which leaves the following ones out. What was deployed is destroyed by whoever walks the steps.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from crossover import running
from crossover.account import standing
from crossover.account.deployment import deploying
from crossover.account.proofs import expiring, fact_checks, redriving
from crossover.account.proofs.evidence import CHILDREN, Evidence
from crossover.account.proofs.step_walk import Step, Walk, timed
from crossover.account.removal import destroying, leftovers
from crossover.architecture import architecture_of
from crossover.architecture.infrastructure import BROKER, NETWORK, shared_stacks
from crossover.experiment import Experiment
from crossover.validation import load

SMALLEST = Path(__file__).parents[3] / "config" / "aws" / "smallest.yaml"
WORKERS_AFTER = 3
SHORT_TTL_HOURS = 0.02


# --- the steps --------------------------------------------------------------------------------------------------------


def _smallest(walk: Walk) -> None:
    smallest = load(SMALLEST)
    walk.deploy(SMALLEST, smallest)
    walk.train(smallest, walk.out / "smallest")
    destroying.delete_experiment(walk.seen.session, smallest)


def _network(walk: Walk) -> None:
    walk.deploy(walk.config, walk.experiment, only=NETWORK)


def _broker(walk: Walk) -> None:
    walk.deploy(walk.config, walk.experiment, only=BROKER)


def _run(walk: Walk) -> None:
    seen = walk.seen
    with timed(seen, "deployed"):
        walk.deploy(walk.config, walk.experiment)
    seen.run = walk.train(walk.experiment, walk.out)
    walk.look(fact_checks.STANDING)


def _update(walk: Walk) -> None:
    more = replace(walk.experiment, workers=WORKERS_AFTER)
    walk.deploy(walk.changed("three-workers", more), more)
    walk.seen.updated = walk.train(more, walk.out / "three-workers")
    walk.look(fact_checks.UPDATED)


def _redrive(walk: Walk) -> None:
    more = replace(walk.experiment, workers=WORKERS_AFTER)
    children = [f"{walk.seen.stack}-{name}" for name in CHILDREN]
    redrive = partial(
        redriving.redrive,
        walk.seen,
        run=f"{walk.seen.stack}-run",
        children=children,
        start=lambda: running.run_aws(more, walk.out / "redriven", _untold),
    )
    walk.seen.redriven_alone = redrive(children_first=False)
    walk.seen.redriven = redrive(children_first=True)
    walk.look(fact_checks.REDRIVEN)


def _untold(progress: running.Progress) -> None:
    """Of a run that nobody watches."""


def _schedule(walk: Walk) -> None:
    """A stack whose time is over is left to the schedule, which has to delete it. On one machine none fires: its machine is started."""
    seen = walk.seen
    lifetime = replace(
        walk.experiment.lifetime,
        ttl_hours=SHORT_TTL_HOURS,
        maximum_run_hours=min(SHORT_TTL_HOURS, walk.experiment.lifetime.maximum_run_hours),
    )
    over = replace(walk.experiment, lifetime=lifetime)
    if seen.on_aws:
        walk.deploy(walk.changed("over", over), over)
        seen.fired = expiring.fired(seen)
    with timed(seen, "experiment deleted"):
        if seen.fired or expiring.tell_expiry(seen, walk.tell):
            seen.expiry_state = leftovers.wait_for_stack(seen.session, seen.stack, poll_s=2.0)


# --- which of them are taken, and what stands meanwhile ------------------------------------------------------------------


def _not_whole(walk: Walk) -> str:
    return "" if walk.whole else "only the project's own proof is tried so far"


def _without(stack: str) -> Callable[[Walk], str]:
    return lambda walk: "" if stack in shared_stacks(walk.experiment) else f"the experiment needs no {stack}"


def _no_redrive(walk: Walk) -> str:
    if not walk.seen.on_aws:
        return "the cloud on one machine redrives nothing"
    return _not_whole(walk) or ("" if architecture_of(walk.experiment).run else "no state machine runs it")


def _not_alone(walk: Walk) -> str:
    if not shared_stacks(walk.experiment):
        return "its own schedule is not waited for"
    return "" if walk.seen.alone else "another experiment of the project stands"


def _network_usd(experiment: Experiment) -> float:
    return standing.usd(standing.shared_lines(experiment, NETWORK))


def _shared_usd(experiment: Experiment) -> float:
    return _network_usd(experiment) + standing.usd(standing.shared_lines(experiment, BROKER))


def _all_usd(experiment: Experiment) -> float:
    return standing.usd(standing.lines(experiment, running=True))


def _updated_usd(experiment: Experiment) -> float:
    return _all_usd(replace(experiment, workers=WORKERS_AFTER))


STEPS = (
    Step(
        name="smallest",
        does=f"AllReduce through a bucket ({SMALLEST.name}): deploy, run, destroy",
        minutes=6,
        usd_per_hour=lambda experiment: 0.0,
        work=_smallest,
        left_out=_not_whole,
        runs=1,
    ),
    Step(
        name="network",
        does="deploy the network, the expiry and its schedule",
        minutes=deploying.EXPECTED_MINUTES["network"],
        usd_per_hour=_network_usd,
        work=_network,
        left_out=_without(NETWORK),
    ),
    Step(
        name="broker",
        does="deploy the broker",
        minutes=deploying.EXPECTED_MINUTES["broker"],
        usd_per_hour=_shared_usd,
        work=_broker,
        left_out=_without(BROKER),
    ),
    Step(
        name="run",
        does="deploy the experiment, train, look",
        minutes=deploying.EXPECTED_MINUTES["experiment"] + 5,
        usd_per_hour=_all_usd,
        work=_run,
        runs=1,
    ),
    Step(
        name="update",
        does=f"deploy again with {WORKERS_AFTER} workers, train",
        minutes=8,
        usd_per_hour=_updated_usd,
        work=_update,
        left_out=_not_whole,
        runs=1,
    ),
    Step(
        name="redrive",
        does="stop runs while their children work, redrive them",
        minutes=8,
        usd_per_hour=_updated_usd,
        work=_redrive,
        left_out=_no_redrive,
        runs=2,
    ),
    Step(
        name="schedule",
        does="let the experiment's time be over, and wait for the schedule to delete it",
        minutes=expiring.FIRING_WAIT_S / 60 + 10,
        usd_per_hour=_all_usd,
        work=_schedule,
        left_out=_not_alone,
    ),
)


def planned(experiment: Experiment, *, whole: bool) -> list[Step]:
    """Those that a real account would see, as far as that is known before anything was asked."""
    evidence = Evidence(session=None, experiment=experiment, on_aws=True, alone=True)
    walk = Walk(
        seen=evidence,
        config=SMALLEST,
        out=Path(),
        whole=whole,
        observed={},
        tell=print,
        train=partial(running.run_aws, on_progress=_untold),
    )
    return [step for step in STEPS if not step.left_out(walk)]

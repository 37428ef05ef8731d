"""`crossover status`: which of an experiment's stacks stand on AWS, what is alive in them, what that costs, and until when."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from crossover.account import standing
from crossover.account.credentials import aws_errors_explained
from crossover.account.resources import inventory, ownership, stacks
from crossover.account.resources.inventory import FoundResource
from crossover.account.resources.listings import FLEET
from crossover.account.resources.ownership import Owner, Whose
from crossover.architecture.infrastructure import shared_stacks
from crossover.cli.arguments import AsJson, Config, Debug, print_json
from crossover.costs import prices
from crossover.errors import ConfigError, CrossoverError
from crossover.experiment import Experiment
from crossover.reports import display, terminal
from crossover.validation import load

HEAD = ("stack", "state", "since", "ends")


def status(config: Config, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show the experiment's stacks on AWS, their time to live, what is alive and what it costs by the hour."""
    experiment = load(config)
    import boto3  # a tenth of a second that other commands need not wait for

    names = [f"{experiment.project}-{part}" for part in (*shared_stacks(experiment), experiment.name)]
    session, now = boto3.Session(), datetime.now(UTC)
    with aws_errors_explained():
        for name in names:
            stacks.check_ours(session, name, project=experiment.project)
        stood = list(rows(session, names, now=now))
        owner = ownership.of(session, experiment.project, experiment.name)
        found = inventory.take(session, owner)
        said = [
            *alive(found),
            *running(session, experiment, owner, now=now),
            standing.since(session, experiment, now=now),
        ]
    if as_json:
        stacks_ = [dict(zip(HEAD, row, strict=True)) for row in stood]
        print_json({"stacks": stacks_, "resources": [_resource(each) for each in found], "words": said})
    else:
        terminal.show(terminal.TextTable("", HEAD, stood), *said)


def _resource(found: FoundResource) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "name": str(found),
        "billable": found.billable,
        "ours": found.whose is not Whose.UNPROVEN,
    }


def rows(session: Any, names: list[str], *, now: datetime) -> Iterator[tuple[str, str, str, str]]:
    """Stack, state, time of the last change, time to live."""
    for name in names:
        stack = stacks.look(session, name)
        if stack is None:
            yield name, "not deployed", "", ""
            continue
        yield name, stack.state, f"{stack.changed:%Y-%m-%d %H:%M} UTC", time_to_live(stack.expires_at, now=now)


def time_to_live(ends: datetime | None, *, now: datetime) -> str:
    """`in 7.5 h`; "" where nothing says when."""
    if ends is None:
        return ""
    hours = (ends - now).total_seconds() / 3_600
    return f"in {hours:.1f} h" if hours > 0 else f"{-hours:.1f} h ago: being deleted"


def alive(found: Sequence[FoundResource]) -> Iterator[str]:
    """How many of what is billed for standing there, "nothing that is billed" where that is so; what only looks like ours."""
    counts = Counter(each.kind for each in found if each.billable and each.whose is not Whose.UNPROVEN)
    listed = ", ".join(f"{count} x {kind}" for kind, count in counts.items())
    yield f"alive: {listed}" if listed else "alive: nothing that is billed by the hour"
    yield from (f"not provably ours: {each}: {each.why}" for each in found if each.whose is Whose.UNPROVEN)


def running(session: Any, experiment: Experiment, owner: Owner, *, now: datetime) -> Iterator[str]:
    """The run under way in what the experiment's own stack holds: how far it is, and what it has cost, as the run's own lines say it."""
    from crossover import running as runs
    from crossover.running.stack import Deployed

    held = {*owner.held.get("AWS::StepFunctions::StateMachine", ()), *owner.held.get(FLEET, ())}
    if not held:
        return
    try:
        deployed = Deployed.of(experiment, session)
    except ConfigError:  # half way
        return
    if (deployed.run_machine or deployed.fleet) not in held or not (found := runs.under_way(experiment, session)):
        return
    try:
        run, cost = runs.spent(found, experiment, session, now=now.timestamp())
    except CrossoverError as error:
        yield f"running: {found.run}; what it has cost cannot be told: {error}"
        return
    began = datetime.fromtimestamp(run.facts["created_at"], UTC)
    done = run.decisions[-1]["epoch"] if run.decisions else 0
    yield (
        f"running: {found.run} since {began:%Y-%m-%d %H:%M} UTC, {done} of {run.experiment.training.epochs} epochs; "
        f"{display.usd(cost.full_usd)} so far in full, {display.usd(cost.paper_method_usd)} by the papers' method "
        f"(prices of {prices.load().as_of})"
    )

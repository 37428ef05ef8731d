"""Destroying: stop what runs, delete the stacks and what they left, and prove that nothing is left."""

from collections.abc import Iterator
from typing import Any

from crossover.account import tell
from crossover.account.credentials import aws_errors_explained
from crossover.account.removal import leftovers, network_exit
from crossover.account.resources import inventory, ownership, stacks
from crossover.account.resources.listings import KINDS
from crossover.account.resources.ownership import Whose
from crossover.account.resources.stacks import StandingStack
from crossover.architecture.infrastructure import shared_stacks
from crossover.errors import CrossoverError, UserError
from crossover.experiment import Experiment
from crossover.training.baselines import companions


def experiments(experiment: Experiment) -> list[str | None]:
    """Names: the experiment first, since its stack depends on those of its baselines."""
    return [experiment.name, *(companion.name for companion in companions(experiment))]


def announced(session: Any, experiment: Experiment, *, shared: bool) -> Iterator[str]:
    """What is about to be removed, and what looks like it and stays. Raises UserError for a stack of our name that is not ours."""
    project, names = experiment.project, experiments(experiment)
    _wait(session, project, [*names, *(stacks.SHARED if shared else ())])
    if shared:
        _check_unneeded(session, experiment, going=names)
    found = []
    for owner in [ownership.of(session, project, name) for name in ([None, *names] if shared else names)]:
        found += [
            f"  stack {each.name}{_of(each)}, {len(ownership.resources(session, each.id))} resources and all that is in them"
            for each in sorted(owner.standing, key=_order)
        ]
        taken = inventory.take(session, owner)
        found += [f"  {each}, left by a deleted stack" for each in taken if each.whose is Whose.LEFT]
        yield from (f"left alone: {each}: {each.why}" for each in taken if each.whose is Whose.UNPROVEN)
    if not shared and (parts := shared_stacks(experiment)):
        yield f"stays: {' and '.join(f'{project}-{part}' for part in parts)}; --shared removes what no experiment needs"
    yield f"to be removed from {stacks.place(session)}:{'' if found else ' nothing'}"
    yield from dict.fromkeys(found)


def _of(stack: StandingStack) -> str:
    return f" of {stack.tags[stacks.OWNER]}" if stacks.OWNER in stack.tags else ""


def _wait(session: Any, project: str, names: list[str | None]) -> None:
    """Until nothing of them is in progress, so that what is shown is what will be there."""
    for name in names:
        stacks.check_ours(session, f"{project}-{name}", project=project)
    for name in names:
        leftovers.wait_for_stack(session, f"{project}-{name}")


def _check_unneeded(session: Any, experiment: Experiment, *, going: list[str | None]) -> None:
    project = experiment.project
    unneeded = [f"{project}-{name}" for name in (*stacks.SHARED, *going)]
    if others := [each.name for each in ownership.of(session, project).standing if each.name not in unneeded]:
        raise UserError(f"--shared: {', '.join(others)} still stand and need network and broker; destroy them first")


def delete_experiment(session: Any, experiment: Experiment) -> None:
    """Whatever state it is in, and after it its baselines; deleting what is gone already does nothing. Raises
    CrossoverError.
    """
    for name in experiments(experiment):
        _delete(session, experiment.project, name)


def delete_shared(session: Any, experiment: Experiment) -> None:
    """Broker, then network. Raises UserError while an experiment of the project stands."""
    _check_unneeded(session, experiment, going=[])
    _delete(session, experiment.project, None)


def _delete(session: Any, project: str, experiment: str | None) -> None:
    """What is the experiment's, or with None the project's. Whatever stops it, the message says what is gone and what is not."""
    from botocore.exceptions import ClientError

    gone, wanted = list[str](), list[str]()
    try:
        with aws_errors_explained():
            _wait(session, project, [experiment] if experiment else list(stacks.SHARED))
            owner = ownership.of(session, project, experiment)
            standing = sorted((each for each in owner.standing if experiment or _order(each) >= 0), key=_order)
            wanted += [f"stack {stack.name}" for stack in standing]
            for stack in standing:
                _delete_stack(session, owner, stack)
                gone.append(f"stack {stack.name}")
            owner = ownership.of(session, project, experiment)
            orphans = [each for each in inventory.take(session, owner) if each.whose is Whose.LEFT]
            wanted += map(str, orphans)
            _remove_orphans(session, orphans, gone)
    except (CrossoverError, ClientError) as error:
        status = type(error) if isinstance(error, UserError) else CrossoverError
        kept = ", ".join(each for each in wanted if each not in gone)
        raise status(
            f"{error}\nremoved: {', '.join(gone) or 'nothing'}; the same command goes on from here\nnot removed: {kept or 'nothing else'}"
        ) from error


def _order(stack: Any) -> int:
    """Of deletion: experiments (-1), broker, network."""
    return stacks.SHARED.index(stack.kind) if stack.kind in stacks.SHARED else -1


def _delete_stack(session: Any, owner: Any, stack: Any, *, tries: int = 2) -> None:
    """By its id: exactly the one that was looked at. CloudFormation deletes with the role that made it."""
    leftovers.stop_running(session, owner, tell)
    network_exit.release_functions(session, stack.id, tell)
    if stack.kind == "network":
        network_exit.wait_for_interfaces(session, owner.project, tell)
    for attempt in range(tries):
        tell(f"deleting stack {stack.name}")
        session.client("cloudformation").delete_stack(StackName=stack.id)
        state = leftovers.wait_for_stack(session, stack.id)
        if not state:
            return
        why = "; ".join(leftovers.reasons(session, stack.id)) or "CloudFormation gives no reason"
        if state != "DELETE_FAILED" or attempt + 1 == tries:
            raise CrossoverError(f"{stack.name}: is {state}, {attempt + 1} attempts: {why}")
        tell(f"{stack.name}: the deletion failed: {why}; clearing what may stand in its way, then once more")
        leftovers.empty_buckets(session, owner)


def _remove_orphans(session: Any, orphans: list[Any], gone: list[str]) -> None:
    """What no stack holds any more. Raises CrossoverError naming what cannot be removed; interfaces of functions AWS removes itself."""
    problems = []
    for orphan in sorted(orphans, key=lambda each: [*leftovers.REMOVERS, each.kind].index(each.kind)):
        tell(f"removing {orphan}")
        problem = leftovers.remove(session, orphan)
        if not problem:
            gone.append(str(orphan))
        elif orphan.kind == "network interface":
            tell(f"left: {orphan}: {problem}; AWS removes it within 40 minutes")
        else:
            problems.append(f"{orphan}: {problem}")
    if problems:
        raise CrossoverError(f"could not be removed: {'; '.join(problems)}")


def verified(session: Any, project: str, experiment: str | None) -> str:
    """What was looked at and what was not, and what looks like ours. Raises CrossoverError naming everything of ours that is left."""
    owner = ownership.of(session, project, experiment)
    taken = inventory.take(session, owner)
    left = [each for each in taken if each.whose is not Whose.UNPROVEN]
    if left:
        billed = ", ".join(str(each) for each in left if each.billable)
        free = ", ".join(str(each) for each in left if not each.billable)
        parts = [f"billed: {billed}" if billed else "", f"not billed: {free}" if free else ""]
        raise CrossoverError(f"{owner.stack}: left on AWS: {'; '.join(part for part in parts if part)}")
    unproven = ", ".join(str(each) for each in taken if each.whose is Whose.UNPROVEN)
    return (
        f"{owner.stack}: nothing is left of ours in {stacks.place(session)}\n"
        f"  looked at: {', '.join(KINDS)}\n"
        "  not looked at: other regions and accounts, the CDK's own bucket and roles, what stacks left that went over 90 days ago\n"
        f"  looks like ours, not provably so, left alone: {unproven or 'nothing'}"
    )

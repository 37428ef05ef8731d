"""`crossover destroy`: stop what runs, delete the stack, take away what it left, and with --verify prove that nothing is left."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossover.cli.arguments import Config, Debug, Yes
from crossover.cli.credentials import aws_errors_explained, check_credentials
from crossover.cli.deployment import run_cdk
from crossover.errors import CrossoverError, UserError
from crossover.experiment import Experiment
from crossover.validation import load

if TYPE_CHECKING:
    from crossover.cli.aws.ownership import Owner

SHARED = ("broker", "network")  # in the order in which they are deleted


def destroy(
    config: Config,
    verify: Annotated[
        bool, typer.Option("--verify", help="Prove by type and by tag that nothing is left; fail if something is.")
    ] = False,
    shared: Annotated[
        bool, typer.Option("--shared", help="The project's network and broker too, once no other experiment stands.")
    ] = False,
    yes: Yes = False,
    debug: Debug = False,
) -> None:
    """Delete the experiment from AWS: stack, orphans and all. The shared network and broker stay for others."""
    experiment = load(config)
    check_credentials()
    if not yes and not sys.stdin.isatty():
        raise UserError("destroy: nobody to ask, since the input is no terminal; add --yes")
    import boto3

    session = boto3.Session()
    with aws_errors_explained():
        delete_experiment(session, config, experiment, ask=not yes)
        if shared:
            delete_shared(session, config, experiment, ask=not yes)
        if verify:
            print(verified(session, experiment, shared=shared))
            if not shared and (companion := experiment.companion()) is not None:
                print(verified(session, companion, shared=False))


def delete_experiment(session: Any, config: Path, experiment: Experiment, *, ask: bool) -> None:
    """Whatever state it is in, and after it the fleet of `baseline: gpu`; deleting what is gone already does nothing. Raises
    CrossoverError."""
    from crossover.cli.aws import ownership, sweeping

    owner = ownership.of(session, experiment.project, experiment.name)
    if sweeping.wait_for_stack(session, owner.stack):
        sweeping.stop_running(session, owner, _tell)
        _delete_stack(session, config, experiment, owner.stack, owner, ask=ask)
    _remove_orphans(session, owner)
    if (companion := experiment.companion()) is not None:
        delete_experiment(session, config, companion, ask=ask)


def delete_shared(session: Any, config: Path, experiment: Experiment, *, ask: bool) -> None:
    """Broker, then network. Raises UserError while another experiment of the project stands."""
    from crossover.cli.aws import ownership, sweeping

    project = experiment.project
    owner = ownership.of(session, project, None)
    shared = [f"{project}-{part}" for part in SHARED]
    if others := [name for name in owner.others if name not in shared]:
        raise UserError(f"--shared: {', '.join(others)} still stand and need network and broker; destroy them first")
    for name in shared:
        if sweeping.wait_for_stack(session, name):
            _delete_stack(session, config, experiment, name, owner, ask=ask)
    _remove_orphans(session, owner)


def _delete_stack(
    session: Any, config: Path, experiment: Experiment, name: str, owner: "Owner", *, ask: bool, tries: int = 2
) -> None:
    from crossover.cli.aws import inventory, leaving, sweeping

    leaving.release_functions(session, name, _tell)
    if name == f"{experiment.project}-network":
        leaving.wait_for_interfaces(session, experiment.project, _tell)
    for attempt in range(tries):
        try:
            run_cdk(config, experiment, ["destroy", "--exclusively", *([] if ask else ["--force"])], stacks=[name])
        except CrossoverError:
            if attempt + 1 == tries:
                raise
        if not (state := sweeping.wait_for_stack(session, name)):
            return
        if state != "DELETE_FAILED":
            raise CrossoverError(f"{name}: is {state}; it was not deleted")
        _tell(f"{name}: the deletion failed; clearing what stood in its way, then once more")
        for found in inventory.take(session, owner):
            if found.kind == "bucket":
                sweeping.empty_bucket(session, found.name)
    raise CrossoverError(f"{name}: still there after {tries} attempts; crossover status says what is left")


def _remove_orphans(session: Any, owner: "Owner") -> None:
    """Only what no stack holds any more: the owner's stack is gone by now."""
    from crossover.cli.aws import inventory, sweeping

    problems = sweeping.remove(
        session, [each for each in inventory.take(session, owner) if _orphaned(each.kind)], _tell
    )
    for problem in problems:
        _tell(f"left: {problem}")


def _orphaned(kind: str) -> bool:
    from crossover.cli.aws.sweeping import REMOVERS

    return kind in REMOVERS


def verified(session: Any, experiment: Experiment, *, shared: bool) -> str:
    """One line that says what was looked at. Raises CrossoverError naming everything that is left."""
    from crossover.cli.aws import inventory, ownership

    owner = ownership.of(session, experiment.project, None if shared else experiment.name)
    left = inventory.take(session, owner)
    if left:
        billed = ", ".join(str(each) for each in left if each.billable)
        free = ", ".join(str(each) for each in left if not each.billable)
        parts = [f"billed: {billed}" if billed else "", f"not billed: {free}" if free else ""]
        raise CrossoverError(f"{owner.stack}: left on AWS: {'; '.join(part for part in parts if part)}")
    return f"{owner.stack}: nothing is left; {len(inventory.LISTERS)} kinds of resources looked at, and every tag"


def _tell(line: str) -> None:
    print(line, flush=True)

"""`crossover destroy`: say what goes and what stays, ask, remove it; --verify proves it."""

import sys
from typing import Annotated

import typer

from crossover.account import tell
from crossover.account.credentials import aws_errors_explained, check_credentials
from crossover.account.removal.destroying import announced, delete_experiment, delete_shared, experiments, verified
from crossover.account.resources import stacks
from crossover.cli.arguments import Config, Debug, TakeOver, Yes
from crossover.errors import UserError
from crossover.validation import load


def destroy(
    config: Config,
    verify: Annotated[
        bool, typer.Option("--verify", help="Prove by type and by tag that nothing is left; fail if something is.")
    ] = False,
    shared: Annotated[
        bool, typer.Option("--shared", help="The project's network and broker too, once no other experiment stands.")
    ] = False,
    yes: Yes = False,
    take_over: TakeOver = False,
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
        for name in () if take_over else experiments(experiment):
            stacks.check_owner(
                session, f"{experiment.project}-{name}", owner=experiment.owner, command=f"destroy {config}"
            )
        for line in announced(session, experiment, shared=shared):
            tell(line)
    if not yes and not typer.confirm("Remove this?"):
        raise UserError("destroy: nothing was removed")
    delete_experiment(session, experiment)
    if shared:
        delete_shared(session, experiment)
    if verify:
        with aws_errors_explained():
            for each in [None] if shared else experiments(experiment):
                tell(verified(session, experiment.project, each))

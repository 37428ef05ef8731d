"""`crossover status`: which of an experiment's stacks stand on AWS."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from crossover.cli.arguments import Config, Debug
from crossover.cli.credentials import aws_errors_explained
from crossover.validation import load

if TYPE_CHECKING:
    from mypy_boto3_cloudformation import CloudFormationClient


def status(config: Config, debug: Debug = False) -> None:
    """Show the state of the experiment's stacks on AWS."""
    experiment = load(config)
    import boto3  # a tenth of a second that other commands need not wait for

    names = [f"{experiment.project}-{part}" for part in ("network", "broker", experiment.name)]
    table = Table("stack", "state", "since")
    with aws_errors_explained():
        client = boto3.client("cloudformation")
        for row in rows(client, names):
            table.add_row(*row)
    Console(highlight=False).print(table)


def rows(client: "CloudFormationClient", names: list[str]) -> Iterator[tuple[str, str, str]]:
    """Stack, state, time of the last change."""
    from botocore.exceptions import ClientError

    for name in names:
        try:
            stack = client.describe_stacks(StackName=name)["Stacks"][0]
        except ClientError as error:
            if "does not exist" not in str(error):
                raise
            yield name, "not deployed", ""
            continue
        changed = stack.get("LastUpdatedTime") or stack["CreationTime"]
        yield name, stack["StackStatus"], f"{changed:%Y-%m-%d %H:%M} UTC"

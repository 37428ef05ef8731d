"""`crossover schema`: the JSON Schema of experiment files, and of what commands answer."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from crossover.cli.arguments import Debug

SCHEMAS = Path(__file__).with_name("schemas")
SchemaOf = Literal["experiment", "advise", "compare", "doctor", "plan", "project", "status"]


def schema(
    of: Annotated[
        SchemaOf, typer.Argument(help="An experiment's file, or what a command says with --json.")
    ] = "experiment",
    debug: Debug = False,
) -> None:
    """Print the JSON Schema of experiment files, for editors: > config/experiment.schema.json; or of a command's --json."""
    if of == "experiment":
        from crossover.validation.schema import text

        sys.stdout.write(text())
    else:
        sys.stdout.write((SCHEMAS / f"{of}.json").read_text("utf-8"))

"""Arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path, typer.Argument(help="An experiment, for example config/spirt.yaml.", show_default=False)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before changing anything on AWS.")]

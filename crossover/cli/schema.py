"""`crossover schema`: the JSON Schema of experiment files."""

import sys

from crossover.cli.arguments import Debug
from crossover.validation.schema import text


def schema(debug: Debug = False) -> None:
    """Print the JSON Schema of experiment files, for editors: > config/experiment.schema.json"""
    sys.stdout.write(text())

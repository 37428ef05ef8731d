"""The command line as a test calls it."""

import pytest

from crossover.cli.main import main


def status(*arguments: str) -> int:
    """What `crossover` with these arguments ends with."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)

"""The command line as a test calls it."""

import pytest

from crossover.cli.main import main


def status(*arguments: str) -> int:
    """Run `crossover` with these arguments in this process, and return its exit status."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)

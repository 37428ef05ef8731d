"""Ctrl-C while the command still imports: 130, and not a word."""

import subprocess
import sys

import pytest

from tests.sampling import WHOLE

# The `at`th import from the entry on is where Ctrl-C is pressed.
PRESSED = """
import signal, sys
from crossover.cli.main import main
left = [{at}]

def count(event, given):
    if event == "import" and left[0] > 0:
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGINT)

sys.addaudithook(count)
main(["--help"])
"""


@pytest.mark.parametrize("at", range(1, 600, 40) if WHOLE else (1, 90, 200))
def test_while_the_command_is_imported(at: int) -> None:
    ended = subprocess.run([sys.executable, "-c", PRESSED.format(at=at)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")

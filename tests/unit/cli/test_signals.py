"""SIGTERM and SIGHUP end a run as Ctrl-C does; Ctrl-C while the command still imports: 130, and not a word."""

import signal
import subprocess
import sys

import pytest

from tests.sampling import WHOLE

RUNS = """
import signal, sys, threading, typer
from crossover.cli.signals import stop_on_signals

app = typer.Typer()

@app.command()
def run() -> None:
    try:
        with stop_on_signals():
            try:
                print("begun", flush=True)
                threading.Event().wait()
            finally:
                signal.raise_signal(signal.SIGTERM)  # a second one while the rest is done
                print("stopped", flush=True)
    finally:
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

app()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_was_started_is_stopped(number: signal.Signals) -> None:
    """The signal ends a process within `stop_on_signals` with status 128 + its number, after its clean-up."""
    with subprocess.Popen([sys.executable, "-c", RUNS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        process.send_signal(number)
        assert process.stdout.read() == "stopped\n"
    assert process.returncode == 128 + number


def test_a_hangup_signal_that_was_ignored_before_stays_ignored() -> None:
    """A SIGHUP that the process ignores, as under nohup, does not end it."""
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    within = "with stop_on_signals(): signal.raise_signal(signal.SIGHUP); print('on')"
    program = f"{ignoring}\nfrom crossover.cli.signals import stop_on_signals\n{within}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "on\n"


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
    """Ctrl-C during the command's imports ends with status 130 and no output. `at`: number of the import at which it comes."""
    ended = subprocess.run([sys.executable, "-c", PRESSED.format(at=at)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")

"""Processor seconds of commands that read one file, and until `crossover advise` reports its first estimate.

    python -m benchmarks.starts [--times 5]

Each command runs in a process of its own; the figure is the minimum of several runs. On a quiet machine wall time is hardly more.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Figure, write

ROOT = Path(__file__).parents[1]
LOOKS = {
    "--help": ("--help", "<= 0.4"),
    "plan": ("plan config/all-reduce-s3.yaml", "<= 2"),
    "doctor": ("doctor config/all-reduce-s3.yaml", "<= 2"),
    "advise, until its first estimate": ("advise config/all-reduce-cifar10.yaml --deadline 2h --budget 5", "<= 2"),
}
# Ends where the command has ended, or told its first estimate, with the processor seconds so far.
CODE = """
import os, sys, time
from crossover.cli import main
def end(*_): print(time.process_time(), file=sys.stderr, flush=True); os._exit(0)
if sys.argv[1] == "advise":
    from crossover.cli import advise
    advise._print_first_estimate = end
try: main.main(sys.argv[1:])
except SystemExit: end()
"""


def measure_command_s(command: str) -> float:
    """Return the processor seconds of a command of `crossover` in a new process; of `advise` only until its first estimate. `command`: its
    arguments, separated by spaces. Raises CalledProcessError if the process fails.
    """
    told = subprocess.run(
        [sys.executable, "-c", CODE, *command.split()],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(told.stderr.splitlines()[-1])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run each command of LOOKS several times, and write the fewest processor seconds of each. `arguments`: words of the command line, by
    default those of this process.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="the least of so many starts is told")
    parser.add_argument("--quick", action="store_true", help="each once: to see that it runs")
    given = parser.parse_args(arguments)
    times = 1 if given.quick else given.times
    figures = []
    for name, (command, goal) in LOOKS.items():
        figures.append(Figure(name, min(measure_command_s(command) for _ in range(times)), "s", goal))
    write("starts", figures)


if __name__ == "__main__":
    main()

"""Faults that once gave a wrong result without a word: each is planted in a copy of the source, where the test that it names must fail.

    python -m tests.mutation.silent where          which can be planted in the source as it is
    python -m tests.mutation.silent run [NAME ..]  the test of each, in a copy of the source with the fault

silent_faults.toml holds them, found by their source text as those of protocol.py are.
"""

import argparse
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.mutation import mutants, protocol
from tests.mutation.protocol import Edit

LISTED = Path(__file__).parent / "silent_faults.toml"
FOR_TESTS = (
    "tests",
    "benchmarks",
    "docs",
    "layer",
    "lab",
    "tools",
    "examples",
    "pyproject.toml",
    "requirements.txt",
    "requirements-dev.txt",
    "Makefile",
    "README.md",
)


@dataclass(frozen=True)
class Fault:
    """A planted fault that gives a wrong result without an error. `loses`: what would be wrong; `test`: pytest node that must fail."""

    name: str
    loses: str
    test: str
    edits: tuple[Edit, ...]


def listed() -> list[Fault]:
    """Return the faults of silent_faults.toml."""
    read = tomllib.loads(LISTED.read_text("utf-8")).get("fault", [])
    return [
        Fault(each["name"], each["loses"], each["test"], tuple(Edit(**edit) for edit in each["edit"])) for each in read
    ]


def outcome(fault: Fault) -> str:
    """Return "found" if the fault's test fails with it, "missed" if the test passes; if no test ran, the last lines of pytest's output.
    Raises subprocess.TimeoutExpired.
    """
    as_protocol = protocol.Fault(fault.name, "planted", fault.loses, (), fault.edits)
    ignored = shutil.ignore_patterns("__pycache__", "out", "results")
    with protocol.planted(as_protocol) as folder:
        for name in FOR_TESTS:
            source = protocol.ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=ignored, dirs_exist_ok=True)
            else:
                shutil.copy2(source, folder / name)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", fault.test]
        environment = mutants.environment(folder)
        try:
            ended = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=mutants.LONGEST_S,  # a test that takes longer hangs
                check=False,
            )
        finally:
            _end(environment["PYTHONPATH"])
    if (
        ended.returncode == 1 or "\nFAILED " in ended.stdout
    ):  # what a fault left hanging may abort the process at its end
        return "found"
    return "missed" if ended.returncode == 0 else f"no test ran: {ended.stdout[-500:]}{ended.stderr[-500:]}"


def _end(python_path: str) -> None:
    """Kill all processes that a planted fault has left running. `python_path`: value of PYTHONPATH by which they are recognised."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("PYTHONPATH") == python_path:
                process.kill()


def main() -> int:
    """Check that all faults can be planted, or run their tests, as the arguments say. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["where", "run"])
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    faults = [fault for fault in listed() if not asked.names or fault.name in asked.names]
    bad = 0
    for fault in faults:
        if asked.what == "where":
            why = protocol.missing(protocol.Fault(fault.name, "planted", fault.loses, (), fault.edits), protocol.ROOT)
            said = "; ".join(why) or "can be planted"
        else:
            why = [] if (said := outcome(fault)) == "found" else [said]
        bad += bool(why)
        print(f"{fault.name}: {said}", flush=True)
    print(f"{len(faults) - bad} of {len(faults)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

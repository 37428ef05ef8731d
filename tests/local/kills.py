"""`crossover run` on this machine with one of its children killed by SIGKILL, and what came of it."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml

from crossover.local import servers
from tests.local.parts import eventually

ROOT = Path(__file__).parents[2]
_END_S = 400.0  # until a run that goes on must be through, on a busy machine
T = TypeVar("T")

_MAIN = """
import pathlib, sys
from crossover.cli.main import main
from crossover.running import deployed

if assembly := sys.argv.pop(1):
    deployed.synthesize_assembly = lambda experiment, out: pathlib.Path(assembly)
main()
"""
KINDS = {  # what stands in a command line -> what the process is; the first that fits
    "watchdog.py": "watchdog",
    "zygote.py torch": "torch function",
    "zygote.py plain": "plain function",
    "stacks.apart": "synthesis",
    "jsii": "node",
    "redis-server": "redis-server",
    "beam.smp": "broker",
    "rabbitmq-server": "broker's script",
    "epmd": "name server",
    "from peers": "program",
    "peers.": "program",
}


@dataclass(frozen=True)
class Process:
    """A running process: its id, its parent's id, and its kind (a value of KINDS, or "helper")."""

    pid: int
    parent: int
    kind: str


@dataclass(frozen=True)
class Ended:
    """The end of a run of which one child process was killed. `status`: exit status; `said`: its output; `victim`: kind of the killed
    process, "" if the run ended before there was one; `epochs`: number of epochs shown by then; `seconds`: from the kill until nothing was
    left.
    """

    status: int
    said: str
    victim: str
    epochs: int  # shown when the victim died
    seconds: float  # from then on, until nothing was left


def write_experiment(architecture: str, folder: Path, *, epochs: int) -> Path:
    """Write a small experiment on digits, of two workers, into `folder`, and return the file's path."""
    fields = {
        "name": f"tiny-{architecture.replace('_', '-')}",
        "architecture": architecture,
        "workers": 2,
        "training": {"model": "small_cnn", "epochs": epochs, "batch_size": 12, "learning_rate": 0.05},
        "data": {"dataset": "digits", "limit": 40, "validation": 0.02},
        **({"gpu": {"instances": 2, "gpus_per_instance": 1}} if architecture == "gpu" else {}),
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def list_children(main: int) -> list[Process]:
    """Return all live processes that the process `main` has started, directly or not."""
    mark, found, below = f"{servers.MARK}={main}-".encode(), [], {main}
    for pid, parent, command, environment in sorted(_processes()):
        if pid != main and (mark in environment or parent in below):
            below.add(pid)
            found.append(Process(pid, parent, _kind(command, forked=parent != main)))
    return found


def _processes() -> Iterator[tuple[int, int, str, bytes]]:
    """Yield (pid, parent's pid, command line, environment) of each live process that this user may read."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if state not in (b"Z", b"X"):
                    yield int(entry.name), int(parent), command, (entry / "environ").read_bytes()
            except OSError:  # gone meanwhile, or another user's
                continue


def _kind(command: str, *, forked: bool) -> str:
    """Return the kind of a process by its command line. `forked`: whether it was forked by a fork server, without a command of its own."""
    kind = next((kind for words, kind in KINDS.items() if words in command), "helper")  # Erlang's, and shells
    return kind.replace("function", "fork server") if not forked else kind


def run(
    config: Path,
    folder: Path,
    *,
    choose: Callable[[list[Process]], Process | None],
    epochs: int = 0,
    wait_s: float = 0.0,
    assembly: Path | None = None,
) -> Ended:
    """Run an experiment, kill one of its child processes, and return how the run ended. Waits until none of its processes and temporary
    files is left.

    `choose`: takes the live child processes, returns the one to kill, or None to be asked again; called once `epochs` epochs were shown and
    `wait_s` seconds have passed. `folder`: receives output, log and temporary files. `assembly`: an assembly that was synthesized before,
    which saves half of a small run's time.
    """
    temporary, log = folder / "tmp", folder / "said"
    temporary.mkdir()
    with log.open("wb") as output:
        main = subprocess.Popen(
            [sys.executable, "-c", _MAIN, str(assembly or ""), "run", str(config), "--out", str(folder / "out")],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    victim, shown = None, 0
    try:
        while main.poll() is None and victim is None:
            shown = len(re.findall(r"^epoch ", log.read_text(errors="replace"), re.MULTILINE))
            if shown >= epochs:
                time.sleep(wait_s)
                wait_s = 0.0
                victim = _kill(choose(list_children(main.pid)))
            time.sleep(0.02)
        began = time.monotonic()
        main.wait(_END_S)
    finally:
        main.kill()
        main.wait()
    eventually(lambda: not list_children(main.pid), what="no process is left")
    eventually(lambda: not any(temporary.iterdir()), what="no folder is left")
    said = log.read_text(errors="replace")
    return Ended(main.returncode, said, victim.kind if victim else "", shown, time.monotonic() - began)


def _kill(chosen: Process | None) -> Process | None:
    """Kill the process `chosen` by SIGKILL and return it; None if `chosen` is None or has ended meanwhile."""
    if chosen is not None:
        with suppress(ProcessLookupError):
            os.kill(chosen.pid, signal.SIGKILL)
            return chosen
    return None


def choose_of_kind(kind: str, rng: random.Random) -> Callable[[list[Process]], Process | None]:
    """Return a function that chooses a random process of this kind; it returns None until there is one."""
    return lambda there: _choose([each for each in there if each.kind == kind], rng)


def choose_of_any_kind(rng: random.Random) -> Callable[[list[Process]], Process | None]:
    """Return a function that chooses a random kind first, then a random process of it, because there are many more functions
    than servers.
    """

    def choose(there: list[Process]) -> Process | None:
        """Choose a random kind of process, then a random process of it; None if there is no process."""
        kind = _choose(sorted({each.kind for each in there}), rng)
        return _choose([each for each in there if each.kind == kind], rng)

    return choose


def _choose(of: Sequence[T], rng: random.Random) -> T | None:
    """Return a random element of `of`; None if it is empty."""
    return rng.choice(of) if of else None

"""Faults of the protocols, each of which the virtual world must find: half drawn by a tool, the others planted, or mends taken back.

    python -m tests.mutation.protocol draw                           what the tool draws from the source as it is, by number
    python -m tests.mutation.protocol where                          which can be planted in the source as it is
    python -m tests.mutation.protocol run [NAME ..] -- COMMAND ..    COMMAND in a copy of the source with each; one that fails has found it
    python -m tests.mutation.protocol dead [NAME ..] -- COMMAND ..   which of them change nothing of what COMMAND prints, such as the
                                                                     digests of `python -m tests.chaos.world {config} --digests`

In COMMAND, {config} stands for the YAML of an architecture that goes through the faulty line; the settings that it needs are appended
as `--set` options. protocol_faults.toml holds the faults. They are found by their source text, which must occur exactly once.
"""

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.mutation import mutants

ROOT = mutants.ROOT
LISTED = Path(__file__).parent / "protocol_faults.toml"
SEED, DRAWN = 15, 40
LONGEST_S = 3_600.0  # a command that takes longer hangs: the fault is found
COPIED = ("crossover", "tests/chaos/world", "functions", "peers", "stacks", "cdk", "config", "redis_module", "app.py")

# Where the draw takes from: code of protocols, and in it lines that name what a protocol is made of, but no text, time or figure.
DRAWN_FROM = (
    "functions/spirt/__init__.py",
    "functions/spirt/state.py",
    "functions/all_reduce.py",
    "functions/scatter_reduce.py",
    "functions/mlless/__init__.py",
    "functions/mlless/supervisor.py",
    "functions/mlless/worker.py",
    "functions/mlless/words.py",
    "functions/p2p_serverless.py",
    "peers/p2p/mailboxes.py",
    "peers/p2p/latest.py",
    "peers/p2p_serverless.py",
    "peers/gpu/gathering.py",
    "crossover/training/progress.py",
    "crossover/training/progress.py",
    "crossover/training/checkpoints.py",
    "crossover/training/databases.py",
    "crossover/training/group.py",
    "crossover/training/long_worker.py",
    "crossover/training/long_worker.py",
    "crossover/training/synchronous.py",
    "crossover/training/waits.py",
    "crossover/training/peer.py",
    "crossover/training/peer.py",
    "crossover/training/peer.py",
    "crossover/stores/redis_tensors.py",
    "crossover/stores/redis_tensors.py",
    "crossover/stores/s3.py",
    "crossover/stores/rabbitmq.py",
    "crossover/training/fleet.py",
    "crossover/training/fleet.py",
    "crossover/training/fleet.py",
    "crossover/workflow/__init__.py",
)
_OF_PROTOCOLS = re.compile(
    "create|put_new|exists|delete|arrive|ack|confirm|settle|give_way|useless|overtaken|journal|save|forget|restore|kept|spent|checkpoint|"
    "decision|conclude|attempt|every|round|step|held|lease|newest|remove|declare|bad|senders|dropped|leaves"
)
_OF_OTHER_THINGS = re.compile(
    r"monotonic|time\.|uuid|sleep|raise |Error|traffic|notes|\.note\(|stage|_s\b|clock|finite|torch|samples|loss"
)


@dataclass(frozen=True)
class Edit:
    """A change of `file`: the text `old`, which must occur exactly once, becomes `new`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    """A planted fault. `source`: "tool", "planted", "later", or the commit whose fix is reverted; `loses`: what the protocol no longer
    guarantees with it; `runs`: architectures whose runs go through the changed code, with `settings`.
    """

    name: str
    source: str  # "tool", "planted", "later" or the commit whose mend is taken back
    loses: str
    runs: tuple[str, ...]
    edits: tuple[Edit, ...]
    settings: tuple[str, ...] = ()


def listed() -> list[Fault]:
    """Return the faults of protocol_faults.toml."""
    read = tomllib.loads(LISTED.read_text("utf-8"))["fault"]
    return [
        Fault(
            **{name: fault[name] for name in ("name", "source", "loses")},
            runs=tuple(fault["runs"]),
            edits=tuple(Edit(**edit) for edit in fault["edit"]),
            settings=tuple(fault.get("settings", ())),
        )
        for fault in read
    ]


def left_out() -> list[dict[str, object]]:
    """Return the drawn faults that are no faults of a protocol, with the reason for each."""
    found: list[dict[str, object]] = tomllib.loads(LISTED.read_text("utf-8"))["left_out"]
    return found


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw(root: Path) -> list[mutants.Fault]:
    """Draw the first DRAWN faults by seed, no two of the same line. The same source gives the same faults."""
    known = [fault for file in DRAWN_FROM for fault in mutants.faults_of((root / file).read_text("utf-8"), file)]
    pool = sorted(
        fault
        for fault in known
        if fault.kind != "arguments"  # mostly exceptions of types
        and _OF_PROTOCOLS.search(fault.before)
        and not _OF_OTHER_THINGS.search(fault.before)
    )
    random.Random(SEED).shuffle(pool)
    by_line: dict[tuple[str, str, str, int], mutants.Fault] = {}
    for fault in pool:
        by_line.setdefault((fault.file, fault.function, fault.before, fault.occurrence), fault)
    return list(by_line.values())[:DRAWN]


def unique(fault: mutants.Fault, text: str) -> tuple[str, str]:
    """Return (text before, text after) of the fault's line, with as many lines above as make the first text unique in its file. Raises
    AssertionError if that is not possible.
    """
    lines = text.splitlines(keepends=True)
    number = mutants.line_in(text, fault)
    assert number is not None, f"{fault.file}: the line is gone"
    changed = lines[number - 1].replace(fault.before, fault.after)
    for first in range(number - 1, -1, -1):
        above = "".join(lines[first : number - 1])
        if text.count(above + lines[number - 1]) == 1:
            return above + lines[number - 1], above + changed
    raise AssertionError(f"{fault.file}: {fault.before} occurs twice in the same surroundings")


# --- planting ---------------------------------------------------------------------------------------------------------


def missing(fault: Fault, root: Path) -> list[str]:
    """Return why the fault cannot be planted in the source under `root`, one reason each; [] if it can."""
    why = []
    for edit in fault.edits:
        path = root / edit.file
        found = path.read_text("utf-8").count(edit.old) if path.exists() else 0
        if found != 1:
            why.append(f"{fault.name}: {edit.file}: occurs {found} times, not once: {edit.old.strip()}")
    return why


@contextmanager
def planted(fault: Fault, root: Path = ROOT) -> Iterator[Path]:
    """Yield a folder with a copy of the packages that contains the fault. A process with `mutants.environment(folder)` imports from there.
    Raises ValueError if the fault cannot be planted.
    """
    if why := missing(fault, root):
        raise ValueError("; ".join(why))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif (root / name).exists():
                shutil.copy2(root / name, copy / name)
        for edit in fault.edits:
            path = copy / edit.file
            path.write_text(path.read_text("utf-8").replace(edit.old, edit.new), "utf-8")
        yield copy


def _run_in(folder: Path, fault: Fault, architecture: str, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run `command` in a copy of the source, for one of the architectures of `fault`, and return the ended process. `command`: its word
    {config} is replaced. Raises subprocess.TimeoutExpired.
    """
    config = f"config/{architecture.replace('_', '-')}.yaml"
    asked = [word.replace("{config}", config) for word in command]
    asked += [word for setting in fault.settings for word in ("--set", setting)]
    return subprocess.run(
        asked,
        cwd=folder,
        env=mutants.environment(folder),
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )


def is_dead(fault: Fault, command: Sequence[str]) -> bool:
    """Return whether `command` ends and prints the same with the fault and without it, for each architecture: the line is not reached, or
    has no effect any more.
    """
    with planted(fault) as folder, planted(replace(fault, edits=())) as sound:
        runs = [
            [_run_in(each, fault, architecture, command) for each in (folder, sound)] for architecture in fault.runs
        ]
    return all((one.returncode, one.stdout) == (other.returncode, other.stdout) for one, other in runs)


def outcome(fault: Fault, command: Sequence[str]) -> str:
    """Return "found by ARCHITECTURE: " with the last line of output, or "missed". A command that hangs has found the fault."""
    with planted(fault) as folder:
        for architecture in fault.runs:
            try:
                ended = _run_in(folder, fault, architecture, command)
            except subprocess.TimeoutExpired:
                return f"found by {architecture}: it hangs"
            if ended.returncode:
                said = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
                return f"found by {architecture}: {said[-1] if said else ended.returncode}"
    return "missed"


def main() -> int:
    """Draw faults, check that all can be planted, or run the virtual world on them, as the arguments say. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["draw", "where", "run", "dead"])
    parser.add_argument("names", nargs="*")
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    chosen, command = parser.parse_args(words[:at]), words[at + 1 :]
    faults = [fault for fault in listed() if not chosen.names or fault.name in chosen.names]
    if chosen.what == "draw":
        for number, drawn in enumerate(draw(ROOT), 1):
            print(f"{number}: {drawn.file}: {drawn.function}: {drawn.before} -> {drawn.after}")
        return 0
    if chosen.what == "where":
        gone = [why for fault in faults for why in missing(fault, ROOT)]
        print("\n".join([*gone, f"{len(faults)} faults, {len(gone)} places gone"]))
        return 1 if gone else 0
    if chosen.what == "dead":
        dead = [fault.name for fault in faults if is_dead(fault, command)]
        print("\n".join([*dead, f"{len(faults)} faults, {len(dead)} change nothing"]))
        return 1 if dead else 0
    missed = 0
    for fault in faults:
        found = outcome(fault, command)
        missed += found == "missed"
        print(f"{fault.name}: {found}", flush=True)
    print(f"{len(faults) - missed} of {len(faults)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

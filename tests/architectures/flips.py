"""One flipped bit in an object that an unfinished run has left in its folder, and what its resumption has to make of it."""

import random
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crossover.errors import Corrupt, UserError
from crossover.reports.folder import UNFINISHED, RunFolder
from crossover.stores.encoding import decode
from crossover.training import checkpoints

KINDS = ("where", "experiment.json", "decision", "records", "state")
AGES = {"oldest": 0, "last but one": -2, "newest": -1}
REFUSED = ("where", "experiment.json", "decision")  # without them a run is another one; all else can be done without


def kept_objects(folder: Path, kind: str) -> dict[int, list[Path]]:
    """Return the files of one kind in an unfinished run's folder by age, the oldest first: the age of a state is its round, that of other
    files their position by time of change.
    """
    kept = folder / UNFINISHED
    if kind == "where":
        return {0: [kept / kind]}
    found: dict[int, list[Path]] = defaultdict(list)
    if kind == "state":
        for path in sorted((*kept.glob("runs/*/checkpoint/*/*/*"), *kept.glob("runs/*/kept/*/*"))):
            found[round_of(path)].append(path)
        return found
    paths = (path for path in kept.glob(f"runs/*/{kind}*") for path in ([path] if path.is_file() else path.rglob("*")))
    for age, path in enumerate(
        sorted((path for path in paths if path.is_file()), key=lambda path: path.stat().st_mtime_ns)
    ):
        found[age].append(path)
    return found


def victim_of(folder: Path, kind: str, age: str, rng: random.Random) -> Path:
    """Return one of the files of a kind and an age in an unfinished run's folder, chosen by `rng`. `age`: a key of AGES; if there are fewer
    ages, the oldest.
    """
    found = kept_objects(folder, kind)
    ages = sorted(found)
    return rng.choice(found[ages[max(AGES[age], -len(ages))]])


def round_of(path: Path) -> int:
    """Return the round of a checkpoint, or of a part of a kept state."""
    return int(re.findall(r"/(\d{8})(?:\.\d{5}$|/)", str(path))[-1])


def damaged(whole: bytes, rng: random.Random, *, begin: int = 0) -> bytes:
    """Return the bytes with one bit flipped at a random place, from the byte `begin` on."""
    body = bytearray(whole)
    body[rng.randrange(begin, len(body))] ^= 1 << rng.randrange(8)
    return bytes(body)


def damage(path: Path, rng: random.Random) -> None:
    """Flip one random bit of the file."""
    path.write_bytes(damaged(path.read_bytes(), rng))


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of the folder's files by name, without the run configuration, which changes whenever the run is prepared."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "experiment.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def flip_and_judge(
    folder: Path,
    victim: Path,
    kind: str,
    rng: random.Random,
    *,
    resume: Callable[[], RunFolder],
    whole: str,
) -> dict[str, Any]:
    """Flip a bit of `victim`, resume the run and check the outcome. A kind in REFUSED must be refused by name, with nothing changed. With
    any other damaged file the run must end with the bits of an undisturbed run, `whole`, and report the damage if it used the file. Returns
    the resumed run's result, or {} if the run was refused.
    """
    damage(victim, rng)
    key, before = victim.relative_to(folder / UNFINISHED).as_posix(), contents(folder / UNFINISHED)
    if kind in REFUSED:
        with pytest.raises(UserError, match=re.escape(key)):
            resume()
        assert contents(folder / UNFINISHED) == before
        return {}
    newest = max(kept_objects(folder, kind)) if kind == "state" else 0
    noticed, is_newest = _is_noticed(victim, key), kind == "state" and round_of(victim) == newest
    result = resume().result
    assert result["final"]["parameters_sha256"] == whole
    told = [each for each in result["damaged"] if key in each]
    if kind == "records" or (noticed and is_newest):
        assert told, f"{key} was passed over in silence"
    assert not told or noticed
    return result


def _is_noticed(path: Path, key: str) -> bool:
    """Return whether a reader notices damage to the file. Some bits change nothing, such as those of a header's padding."""
    body = path.read_bytes()
    try:
        if "/checkpoint/" in key:
            checkpoints.read(body, key=key)
        elif "/kept/" in key:
            decode(body, key=key)
        else:
            return True
    except Corrupt:
        return True
    return False

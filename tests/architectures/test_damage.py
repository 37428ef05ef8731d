"""A damaged byte in what a run has stored: where an older state is whole, the run goes on from it to the same bits; what is damaged else is
named by its key, and everything stays as it was.
"""

import json
import random
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover.architecture import load
from crossover.context import Context
from crossover.errors import CrossoverError
from crossover.experiment import Experiment, Functions
from crossover.keys import Keys, minibatch
from crossover.reports.folder import RunFolder
from crossover.running import OnProgress, Prepared, prepare, run_inline
from crossover.training import agreement
from tests.architectures.harness import Job, claiming, small, tree_architectures
from tests.architectures.test_resumption import failing_at, quietly, sha

EPOCHS, DRAWS = 4, range(6)


def experiment(architecture: str) -> Experiment:
    return replace(small(architecture, epochs=EPOCHS), functions=Functions(checkpoint_every=2, timeout_s=10))


def state_of(architecture: str) -> str:
    """The folder of a run's object store that holds its state."""
    return "kept" if load(architecture).state == "database" else "checkpoint"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """By architecture: the folder of a run that failed in its third epoch, and what an undisturbed one ends with."""
    known: dict[str, tuple[Path, str]] = {}

    def of(architecture: str) -> tuple[Path, str]:
        if architecture not in known:
            folder = tmp_path_factory.mktemp(architecture)
            whole = sha(run_inline(experiment(architecture), folder / "whole", quietly))
            with told_in_time() as tell, failing_at(3), pytest.raises(CrossoverError):
                run_inline(experiment(architecture), folder / "failed", tell)
            known[architecture] = folder / "failed", whole
        return known[architecture]

    return of


@contextmanager
def told_in_time() -> Iterator[OnProgress]:
    """Nobody evaluates after an epoch before the one before it has been told of, so that each is kept."""
    agree, told = agreement.agree, [threading.Event() for _ in range(EPOCHS + 1)]
    told[0].set()

    def waiting(ctx: Context, epoch: int, **options: Any) -> None:
        assert told[epoch - 1].wait(120)
        agree(ctx, epoch, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "agree", waiting)
        yield lambda progress: told[progress.epoch].set()


def stored(folder: Path, kind: str) -> list[Path]:
    return sorted(path for path in (folder / "unfinished").glob(f"runs/*/{kind}/**/*") if path.is_file())


def round_of(path: Path) -> int:
    """Of a checkpoint or of a part of a kept state."""
    return int(re.findall(r"/(\d{8})(?:\.\d{5}$|/)", str(path))[-1])


def of_round(paths: list[Path], which: int) -> list[Path]:
    """Those of the newest round, -1, or of the one before, -2."""
    return [path for path in paths if round_of(path) == sorted({round_of(each) for each in paths})[which]]


def damaged(whole: bytes, rng: random.Random, *, begin: int = 0) -> bytes:
    """One bit is another, anywhere from the byte `begin` on."""
    body = bytearray(whole)
    body[rng.randrange(begin, len(body))] ^= 1 << rng.randrange(8)
    return bytes(body)


def damage(path: Path, rng: random.Random) -> None:
    path.write_bytes(damaged(path.read_bytes(), rng))


def contents(folder: Path) -> dict[str, bytes]:
    """But for the facts, which say when the run was prepared last."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "experiment.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def named_and_as_it_was(architecture: str, folder: Path, whole: str, names: list[str]) -> None:
    """Unless the bit was one that says nothing, such as one of a header's padding: then the run ends with the bits it was to end with."""
    before, told = contents(folder / "unfinished"), ""
    try:
        ended = sha(again(architecture, folder))
    except CrossoverError as error:
        ended, told = whole, str(error)
        assert contents(folder / "unfinished") | before == contents(folder / "unfinished")  # what it tried has a record
    assert ended == whole and (not told or all(name in told for name in names))


def again(architecture: str, folder: Path) -> RunFolder:
    return run_inline(experiment(architecture), folder, quietly, resume=True)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("architecture", claiming("resumes"))
def test_an_older_whole_state_is_gone_on_from(
    architecture: str, draw: int, runs: Callable[[str], tuple[Path, str]], tmp_path: Path
) -> None:
    failed, whole = runs(architecture)
    folder, rng = Path(shutil.copytree(failed, tmp_path / "run")), random.Random(f"{architecture} {draw}")
    damage(rng.choice(of_round(stored(folder, state_of(architecture)), -1)), rng)
    assert sha(again(architecture, folder)) == whole


@pytest.mark.sampled
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("architecture", claiming("resumes"))
def test_where_none_is_whole_nothing_is_touched(
    architecture: str, draw: int, runs: Callable[[str], tuple[Path, str]], tmp_path: Path
) -> None:
    failed, whole = runs(architecture)
    folder, rng = Path(shutil.copytree(failed, tmp_path / "run")), random.Random(f"{architecture} {draw}")
    state = stored(folder, state_of(architecture))
    for number in sorted({round_of(path) for path in state}):
        damage(rng.choice([path for path in state if round_of(path) == number]), rng)
    named_and_as_it_was(architecture, folder, whole, [f"/{state_of(architecture)}/"])


@pytest.mark.sampled
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("kind", ["decision", "records", "experiment.json"])
@pytest.mark.parametrize("architecture", claiming("resumes"))
def test_a_damaged_word_is_named(
    architecture: str, kind: str, draw: int, runs: Callable[[str], tuple[Path, str]], tmp_path: Path
) -> None:
    failed, whole = runs(architecture)
    folder, rng = Path(shutil.copytree(failed, tmp_path / "run")), random.Random(f"{architecture} {kind} {draw}")
    found = stored(folder, kind) or list((folder / "unfinished").glob(f"runs/*/{kind}"))
    victim = rng.choice(found)
    damage(victim, rng)
    named_and_as_it_was(architecture, folder, whole, [victim.relative_to(folder / "unfinished").as_posix()])


# --- in a bucket that stays, as on AWS --------------------------------------------------------------------------------


def failed_job(architecture: str) -> Job:
    job = Job(experiment(architecture))
    with failing_at(3), pytest.raises(CrossoverError):
        job.run()
    return job


def spoil(job: Job, key: str, rng: random.Random) -> None:
    job.clients.object_store.put(key, damaged(job.clients.object_store.get(key), rng))


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", [name for name in tree_architectures("resumes") if load(name).state != "database"]
)
def test_a_bucket_s_newest_checkpoint(architecture: str, runs: Callable[[str], tuple[Path, str]]) -> None:
    """The same, read by the first step; and with the older ones damaged as well nothing is deleted."""
    rng, job = random.Random(architecture), failed_job(architecture)
    keys, store = Keys(job.prepared.run), job.clients.object_store
    saved = store.list(keys.checkpoints)
    newest = max(key.rpartition("/")[2] for key in saved)
    spoil(job, rng.choice([key for key in saved if key.endswith(newest)]), rng)
    good = {key: store.get(key) for key in saved}
    for key in saved:
        if not key.endswith(newest):
            spoil(job, key, rng)
    with pytest.raises(CrossoverError, match=r"checkpoint/"):
        job.execute(attempt=1)
    assert store.list(keys.checkpoints) == saved
    for key, body in good.items():
        store.put(key, body)
    job.execute(attempt=2)
    assert json.loads(store.get(keys.outcome))["parameters_sha256"] == runs(architecture)[1]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", claiming("resumes"))
def test_a_damaged_minibatch_is_named_and_the_rest_stays(architecture: str, tmp_path: Path) -> None:
    """Staged once, and read by every run of the same data. Steps that wait for the worker that has failed do so for minutes in one process;
    where a state machine ends them, on its own.
    """
    rng, asked = random.Random(architecture), experiment(architecture)
    if load(architecture).state == "database":
        asked = replace(asked, workers=1)
    spoiled: list[str] = []
    staged: dict[str, bytes] = {}

    def spoilt(*arguments: object, **named: object) -> Prepared:
        prepared = prepare(*arguments, **named)  # type: ignore[arg-type]
        objects = prepared.objects
        rank = rng.randrange(asked.workers)
        key = minibatch(prepared.facts["data"], rank, 0)
        objects.put(key, damaged(objects.get(key), rng, begin=64))  # behind the header, whose padding says nothing
        spoiled.append(key)
        staged.update({each: objects.get(each) for each in objects.list("data/")})
        spoilt.objects = objects  # type: ignore[attr-defined]
        return prepared

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crossover.running.inline.prepare", spoilt)
        with pytest.raises(CrossoverError, match=r"data/.*(checksum|header|bytes)") as told:
            run_inline(asked, tmp_path / "run", quietly)
    assert spoiled[0] in str(told.value)
    objects = spoilt.objects  # type: ignore[attr-defined]
    assert {each: objects.get(each) for each in objects.list("data/")} == staged

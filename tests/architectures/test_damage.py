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
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from crossover.errors import CrossoverError
from crossover.experiment import Experiment, Functions
from crossover.learning.datasets import load as load_dataset
from crossover.learning.reference import train_reference
from crossover.reports.folder import RunFolder
from crossover.running.inline import run_inline
from crossover.running.monitor import OnProgress
from crossover.running.preparing import PreparedRun, prepare
from crossover.stores import documents
from crossover.stores.keys import Keys, minibatch
from crossover.stores.memory import MemoryMessageBus
from crossover.stores.protocols import Traffic
from crossover.training import progress as agreement
from crossover.workflow.architecture import load
from crossover.workflow.context import Context
from tests.architectures.fleet import Fleet
from tests.architectures.flips import AGES, KINDS, contents, damage, damaged, flip_and_judge, round_of, victim_of
from tests.architectures.harness import Job, claiming, small, tree_architectures
from tests.architectures.test_resumption import failing_at, quietly, sha

EPOCHS, DRAWS = 4, range(6)


def experiment(architecture: str) -> Experiment:
    """Return a small experiment of EPOCHS epochs with checkpoints every two rounds."""
    return replace(small(architecture, epochs=EPOCHS), functions=Functions(checkpoint_every=2, timeout_s=10))


def state_of(architecture: str) -> str:
    """Return the name of the folder that holds the run's state in its object store: "kept" or "checkpoint"."""
    return "kept" if load(architecture).state == "database" else "checkpoint"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """Return a function that returns, for an architecture, the folder of a run that failed in its third epoch, and the SHA-256 of the model
    that an undisturbed run ends with.
    """
    known: dict[str, tuple[Path, str]] = {}

    def of(architecture: str) -> tuple[Path, str]:
        """Return (folder of the failed run, SHA-256 of the undisturbed model); both runs are made at the first call for the
        architecture.
        """
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
    """Let no worker, inside the block, make a decision after an epoch before the previous epoch's progress has been reported.

    So each epoch's state is kept. Yields the function that takes the reports.
    """
    agree, told = agreement.create_decision, [threading.Event() for _ in range(EPOCHS + 1)]
    told[0].set()

    def waiting(ctx: Context, epoch: int, **options: Any) -> None:
        """Wait until the previous epoch's progress was reported, then make the decision."""
        assert told[epoch - 1].wait(120)
        agree(ctx, epoch, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "create_decision", waiting)
        yield lambda progress: told[progress.epoch].set()


def stored(folder: Path, kind: str) -> list[Path]:
    """Return the sorted paths of a failed run's files of one kind, "kept" or "checkpoint"."""
    return sorted(path for path in (folder / "unfinished").glob(f"runs/*/{kind}/**/*") if path.is_file())


def named_and_as_it_was(architecture: str, folder: Path, whole: str, names: list[str]) -> None:
    """Resume a damaged run, and check that it is refused by all `names`, with its files unchanged, or ends with the bits of `whole`. The
    latter happens if the flipped bit has no meaning, such as one of a header's padding.
    """
    before, told = contents(folder / "unfinished"), ""
    try:
        ended = sha(again(architecture, folder))
    except CrossoverError as error:
        ended, told = whole, str(error)
        assert contents(folder / "unfinished") | before == contents(folder / "unfinished")  # what it tried has a record
    assert ended == whole and (not told or all(name in told for name in names))


def again(architecture: str, folder: Path) -> RunFolder:
    """Resume the architecture's run in the folder, and return it."""
    return run_inline(experiment(architecture), folder, quietly, resume=True)


@pytest.mark.sampled
@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", claiming("resumes"))
def test_one_flipped_bit(
    architecture: str,
    kind: str,
    age: str,
    runs: Callable[[str], tuple[Path, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check that a run resumed with one flipped bit ends with the undisturbed run's bits, or that the damaged object is refused by name.

    The bit is in an object of each kind and age. What the run left out is reported.
    """
    failed, whole = runs(architecture)
    folder, rng = Path(shutil.copytree(failed, tmp_path / "run")), random.Random(f"{architecture} {kind} {age}")
    victim = victim_of(folder, kind, age, rng)
    flip_and_judge(folder, victim, kind, rng, resume=partial(again, architecture, folder), whole=whole)
    told = capsys.readouterr().err
    if kind == "records":
        assert victim.name in told, "what is dropped is told of at once"


def test_a_peer_whose_broker_is_gone_needs_no_older_checkpoint(
    runs: Callable[[str], tuple[Path, str]], tmp_path: Path
) -> None:
    """Check that the peer resumes from its newest checkpoint alone. An older one would only let it repeat its last message for others that
    are a round behind; nobody is here.
    """
    failed, whole = runs("p2p_instance")
    folder, rng = Path(shutil.copytree(failed, tmp_path / "run")), random.Random(1)
    victim = victim_of(folder, "state", "last but one", rng)
    result = flip_and_judge(folder, victim, "state", rng, resume=partial(again, "p2p_instance", folder), whole=whole)
    assert any(victim.name in each for each in result["damaged"])


@pytest.mark.sampled
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("architecture", claiming("resumes"))
def test_if_every_state_is_damaged_nothing_in_the_folder_is_changed(
    architecture: str, draw: int, runs: Callable[[str], tuple[Path, str]], tmp_path: Path
) -> None:
    """Damage a file of every state that was kept. Check that resuming names the state and changes no file."""
    failed, whole = runs(architecture)
    folder, rng = Path(shutil.copytree(failed, tmp_path / "run")), random.Random(f"{architecture} {draw}")
    state = stored(folder, state_of(architecture))
    for number in sorted({round_of(path) for path in state}):
        damage(rng.choice([path for path in state if round_of(path) == number]), rng)
    named_and_as_it_was(architecture, folder, whole, [f"/{state_of(architecture)}/"])


# --- in a bucket that stays, as on AWS --------------------------------------------------------------------------------


def failed_job(architecture: str) -> Job:
    """Return a job that failed in the evaluation after its third epoch."""
    job = Job(experiment(architecture))
    with failing_at(3), pytest.raises(CrossoverError):
        job.run()
    return job


def spoil(job: Job, key: str, rng: random.Random) -> None:
    """Flip a bit of an object in the job's object store."""
    job.clients.object_store.put(key, damaged(job.clients.object_store.get(key), rng))


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", [name for name in tree_architectures("resumes") if load(name).state != "database"]
)
def test_a_bucket_s_newest_checkpoint(architecture: str, runs: Callable[[str], tuple[Path, str]]) -> None:
    """Check that an attempt continues from an older checkpoint if the newest is damaged.

    If all are damaged, it fails and deletes nothing.
    """
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


@pytest.mark.parametrize("behind", [False, True], ids=["all together", "one a round behind"])
def test_a_lost_broker_and_the_checkpoint_that_its_messages_came_from_damaged(
    behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a peer whose older checkpoint is damaged after the broker was lost continues without it, if no peer is in its round.

    The damage is reported. If the other peer is behind, the run stops and names the checkpoint.
    """
    job = Job(replace(small("p2p_instance", epochs=EPOCHS), functions=Functions(checkpoint_every=2)))
    fleet, store, keys = Fleet(job), job.clients.object_store, job.prepared.keys
    fleet.begin(monkeypatch)
    with failing_at(3):
        fleet.attempt()
        fleet.join()
    fleet.errors.clear()
    job.clients.message_bus = MemoryMessageBus(Traffic())
    older, newest = store.list(keys.checkpoints_of(0))
    spoil(job, older, random.Random(1))
    if behind:
        store.delete(newest.replace("/0/", "/1/"))
    fleet.attempt()
    if behind:
        with pytest.raises(CrossoverError, match=re.escape(older)):
            fleet.await_end()
        return
    fleet.await_end()
    fleet.join()
    assert job.model() == train_reference(job.prepared.experiment, load_dataset(job.experiment))[0]
    records = [documents.read_document(store, key) for key in store.list(keys.records)]
    assert [older in record["damaged"] for record in records if "damaged" in record] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", claiming("resumes"))
def test_a_damaged_minibatch_is_named_and_the_rest_stays(architecture: str, tmp_path: Path) -> None:
    """Check that a run fails with the key of a damaged minibatch, and leaves all staged data as they were, for other runs read them.

    Architectures with their state in a database have one worker here, because in one process others would wait for the failed one for
    minutes; on AWS the state machine ends them.
    """
    rng, asked = random.Random(architecture), experiment(architecture)
    if load(architecture).state == "database":
        asked = replace(asked, workers=1)
    spoiled: list[str] = []
    staged: dict[str, bytes] = {}

    def spoilt(*arguments: object, **named: object) -> PreparedRun:
        """Prepare the run, then flip a bit of one minibatch, behind its header. Records the key, and all staged data as they were then."""
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

"""Workers that live through many invocations: continuations, deaths, resumption, what an exchange moves and what it leaves behind."""

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover.errors import Corrupt, CrossoverError, RunFailed, Unavailable, WaitTimeout
from crossover.experiment import Exchange, Experiment, Functions, Storage
from crossover.reports.folder import list_missing
from crossover.running.inline import run_inline
from crossover.runtime import STEP
from crossover.stores.encoding import Vector, VectorKind
from crossover.training import synchronous
from crossover.training.checkpoints import Journal, Position
from crossover.training.long_worker import Invocation
from crossover.training.synchronous import SynchronousWorker
from crossover.training.waits import reserve_s
from crossover.workflow.architecture import load, steps
from crossover.workflow.context import Context
from tests.architectures.harness import Job, Killed, every_step, small
from tests.architectures.lives import Hurry, ShortLives, mortal
from tests.architectures.trained import assert_equal_to_reference, trained

EXCHANGES = ["all_reduce", "scatter_reduce"]
LONG = [*EXCHANGES, "mlless"]
CONTRIBUTION = {"all_reduce": "/1/1/average", "scatter_reduce": "/1/1/chunk/0"}  # of worker 1 to worker 0, in round 1


def long(architecture: str, **settings: Any) -> Experiment:
    """Return an experiment of three epochs, with a checkpoint every two rounds and the shortest timeout that is allowed."""
    experiment = small(architecture, epochs=3, **settings)
    return replace(experiment, functions=Functions(checkpoint_every=2, timeout_s=10))


# --- continuations and deaths -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("architecture", LONG)
def test_invocations_that_end_anywhere_go_on_with_the_same_bits(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """End long invocations after a few polls, and check that the run ends with the bits of an undisturbed one and that no invocation goes
    back.
    """
    job = Job(long(architecture))
    lives = ShortLives(2, reserve_s=reserve_s(job.experiment))
    undisturbed = trained(long(architecture))
    with every_step(monkeypatch, lives.wrap):
        assert job.run() == undisturbed.model
    assert job.tensor_keys() == []
    assert all(lives.invocations("train", worker) > 3 for worker in range(2)), "at least 3 continuations"
    for _, before, after in lives.events:
        assert (after["round"], after["minibatch"]) >= (before["round"], before["minibatch"])


class Remembering(SynchronousWorker):
    """A worker with additional state of its own: the number of rounds that it has applied, which must equal its round."""

    def __init__(self, invocation: Invocation, exchange: Any) -> None:
        """Start with no round applied."""
        super().__init__(invocation, exchange)
        self.applied = self.model.new_zeros(1)

    def extra_state(self) -> dict[str, Any]:
        """Return the counter of applied rounds, to be saved in checkpoints."""
        return {"applied": self.applied}

    def apply(self, combined: Any) -> None:
        """Check that all earlier rounds were applied, then apply this one and count it."""
        assert int(self.applied) == self.invocation.round
        super().apply(combined)
        self.applied += 1


def test_what_a_variation_of_the_worker_keeps_outlives_its_invocations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a subclass's additional state is restored in the worker's next invocation."""
    job = Job(long("all_reduce"))
    monkeypatch.setattr(synchronous, "SynchronousWorker", Remembering)
    lives = ShortLives(2, reserve_s=reserve_s(job.experiment))
    with every_step(monkeypatch, lives.wrap):
        assert job.run() == trained(long("all_reduce")).model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "member"), [*((name, 0) for name in LONG), ("mlless", 2)]
)  # 2: the supervisor
def test_progress_renews_the_budget_of_retries(architecture: str, member: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a run ends well although a member dies after each of its checkpoints, twice as often as a step is retried."""
    experiment = small(architecture, epochs=7)
    deaths, save = list[int](), Journal.save

    def saved(journal: Any, position: Position, *rest: Any) -> None:
        """Save the checkpoint; if it is the first of its position and of `member`, kill the process."""
        new = not position.minibatch and position not in journal._kept
        save(journal, position, *rest)
        if new and journal._worker == member:
            deaths.append(position.round)
            raise Killed

    def retried(run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement for Step.run that reports a kill as an error that is retried."""

        def attempt(step: Any, ctx: Context, event: Any) -> Any:
            """Run the step. Raises Unavailable if its process is killed."""
            try:
                return run(step, ctx, event)
            except Killed:
                raise Unavailable("the environment was killed") from None  # what both interpreters try again for

        return attempt

    job, undisturbed = Job(replace(experiment, functions=Functions(checkpoint_every=1))), trained(experiment)
    monkeypatch.setattr(Context, "pause", lambda ctx, seconds: None)
    with monkeypatch.context() as patch, every_step(monkeypatch, retried):
        patch.setattr(Journal, "save", saved)
        assert job.run() == undisturbed.model
    assert len(deaths) == 14 > STEP.again + 1, deaths
    assert job.tensor_keys() == [] and job.object_keys("checkpoint") == []


@pytest.mark.parametrize("architecture", EXCHANGES)
def test_an_attempt_whose_share_another_did_only_collects(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that an attempt continues if another attempt of the same worker has done its share of a round and died.

    The others then delete what they sent for the share, for which it would wait in vain.
    """
    model, job, local = trained(long(architecture)).model, Job(long(architecture)), threading.local()
    paused, resume = threading.Event(), threading.Event()

    def hook(moment: str, operation: str) -> None:
        """Count the creates of this thread's attempt. The second attempt pauses before its third; the first is killed after its second."""
        role = getattr(local, "role", None)
        if role is None or operation != "create":
            return
        local.creates += moment == "before"
        if role == "second" and moment == "before" and local.creates == 3:  # two in round 0; round 1 begins
            paused.set()
            resume.wait(60)
        if role == "first" and moment == "after" and local.creates == 2:  # round 0 was done already
            raise Killed

    def two_attempts(run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement for Step.run by which worker 0's first invocation is run twice at the same time."""

        def attempt(step: Any, ctx: Context, event: Any) -> Any:
            """Run the second attempt, which pauses while the first one runs, and return its result."""
            if step.name != "train" or event["worker"] != 0 or event["round"]:
                return run(step, ctx, event)

            def first() -> None:
                """Wait until the second attempt pauses, run the first until its kill, wait until its contribution is deleted, and wake the
                second.
                """
                assert paused.wait(60)
                local.role, local.creates = "first", 0
                with contextlib.suppress(Killed), ctx.child() as own:
                    run(step, own, event)
                sent = CONTRIBUTION[architecture]
                while any(key.endswith(sent) for key in list(job.clients.tensor_stores[0]._vectors)):
                    threading.Event().wait(0.005)  # until worker 1 has the result and deletes what it sent
                resume.set()

            thread = threading.Thread(target=first)
            thread.start()
            local.role, local.creates = "second", 0
            try:
                return run(step, ctx, event)
            finally:
                local.role = None
                thread.join(60)

        return attempt

    job.clients.hook = hook
    with every_step(monkeypatch, two_attempts):
        assert job.run() == model
    assert resume.is_set() and job.tensor_keys() == []


@pytest.mark.parametrize("architecture", LONG)
def test_one_minibatch_per_invocation_is_the_papers_24_functions(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `minibatches_per_invocation: 1` makes one invocation per round, as in the papers, with the same bits."""
    job = Job(replace(long(architecture), exchange=Exchange(minibatches_per_invocation=1)))
    lives = ShortLives(10**9, reserve_s=0)
    undisturbed = trained(long(architecture))
    with every_step(monkeypatch, lives.wrap):
        assert job.run() == undisturbed.model
    computed = [event for step, event, _ in lives.events if step == "train" and event["worker"] == 1]
    assert [(event["round"], event["minibatch"]) for event in computed] == [(round, 0) for round in range(6)]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", EXCHANGES)
def test_an_invocation_may_end_within_a_round(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a round of all of an epoch's minibatches, one per invocation, gives the same bits: checkpoints hold the sum so far."""
    experiment = long(architecture, batch_size=6, every="epoch")
    whole = Job(experiment).run()
    job = Job(replace(experiment, exchange=Exchange(every="epoch", minibatches_per_invocation=1)))
    lives = ShortLives(10**9, reserve_s=0)
    with every_step(monkeypatch, lives.wrap):
        assert job.run() == whole
    assert lives.invocations("train", 0) == 3 * 4


# --- what is exchanged ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", EXCHANGES)
def test_the_s3_channel_gives_the_same_bits_and_never_lists(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that an exchange through the bucket ends with the same bits, and that training steps never list its objects."""
    job = Job(replace(long(architecture), storage=Storage(channel="s3")))
    steps: dict[str, Counter[str]] = {}

    def counting(run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement for Step.run that adds each step's operations to `steps`."""

        def counted(step: Any, ctx: Context, event: Any) -> Any:
            """Run the step, and add its operations to those of all steps of its name."""
            result = run(step, ctx, event)
            counts = steps.setdefault(step.name, Counter())
            for traffic in ctx.traffic.values():
                counts.update(traffic.operations)
            return result

        return counted

    undisturbed = trained(long(architecture))
    with every_step(monkeypatch, counting):
        assert job.run() == undisturbed.model
    assert steps["train"]["list"] == 0 and steps["train"]["get"] > 0
    left = [key for key in job.clients.object_store.list("runs/") if "/records/" not in key and "/model/" not in key]
    ends = (
        "experiment.json",
        "attempt/000000000000",
        "outcome.json",
        "finished",
        "decision/000001.json",
        "decision/000002.json",
        "decision/000003.json",
    )
    assert all(key.endswith(ends) for key in left), left


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_models_are_averaged_alike_by_both_exchanges(workers: int) -> None:
    """Check that AllReduce and ScatterReduce end with the same bits if they average models."""
    models = [
        Job(replace(long(architecture, workers=workers), exchange=Exchange(every=2, what="model"))).run()
        for architecture in EXCHANGES
    ]
    assert models[0] == models[1]


def test_averaging_the_model_of_one_worker_is_plain_training() -> None:
    """Check that a single worker that averages models ends with the reference's bits."""
    experiment = replace(long("all_reduce", workers=1), exchange=Exchange(what="model"))
    assert_equal_to_reference(experiment)


def test_local_steps_are_the_same_with_an_invocation_for_each_minibatch() -> None:
    """Check that a checkpoint contains the model at which its round began."""
    exchange = Exchange(every=2, what="delta", minibatches_per_invocation=1)
    experiment = replace(long("all_reduce", batch_size=6), exchange=exchange)
    whole = replace(experiment, exchange=replace(exchange, minibatches_per_invocation="all"))
    assert trained(experiment).model == trained(whole).model


class Counting:
    """Counters of the tensor store's calls that took effect, and by worker the payload (bytes out, bytes in) of its training step."""

    def __init__(self) -> None:
        """Start with no calls and no bytes."""
        self.lock = threading.Lock()
        self.operations: Counter[str] = Counter()
        self.bytes: dict[int, tuple[int, int]] = {}

    def wrap(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement for `run`, the function Step.run, that records the bytes of each training step."""

        def counted(step: Any, ctx: Context, event: Any) -> Any:
            """Run the step; record the bytes if it is a training step."""
            result = run(step, ctx, event)
            if step.name == "train":
                moved = ctx.traffic["tensor_store"].as_record()
                with self.lock:
                    self.bytes[event["worker"]] = (moved["bytes_out"], moved["bytes_in"])
            return result

        return counted


@pytest.mark.sampled
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("architecture", EXCHANGES)
def test_bytes_and_requests_equal_the_closed_form(
    architecture: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that bytes and successful requests of a run equal the formulas in the number of workers, rounds and parameters."""
    job = Job(long(architecture, workers=workers))
    counting, facts, rounds = Counting(), job.prepared.facts, 6
    size = 4 * (facts["parameters"] + facts["buffers"])
    successful: Counter[str] = Counter()

    class Store:
        """A store that counts the calls that succeeded: a get that finds nothing is a poll, and raises."""

        def __init__(self, store: Any) -> None:
            """Remember the store to count."""
            self._store = store

        def __getattr__(self, name: str) -> Any:
            """Return a function that calls the store's method and counts the call if it does not raise."""

            def call(*arguments: Any, **named: Any) -> Any:
                """Call the method, count the call, and return the result."""
                result = getattr(self._store, name)(*arguments, **named)
                with counting.lock:
                    successful[name] += 1
                return result

            return call

    tensors = type(job.clients).tensors
    monkeypatch.setattr(type(job.clients), "tensors", lambda *arguments: Store(tensors(*arguments)))
    with every_step(monkeypatch, counting.wrap):
        job.run()
    others = workers - 1
    if architecture == "scatter_reduce":
        elements = facts["parameters"] + facts["buffers"]
        chunks = [4 * (elements // workers + (rank < elements % workers)) for rank in range(workers)]
        for rank, moved in counting.bytes.items():
            received = others * chunks[rank] + (size - chunks[rank])
            assert moved == (rounds * size, rounds * received)
        assert successful["create"] == rounds * workers * workers
        assert successful["get"] == rounds * workers * 2 * others
    else:
        for rank, moved in counting.bytes.items():
            assert moved == (
                (rounds * 2 * size, rounds * others * size) if rank == 0 else (rounds * size, rounds * size)
            )
        assert successful["create"] == rounds * (workers + 1)
        assert successful["get"] == rounds * 2 * others


@pytest.mark.slow
@pytest.mark.parametrize("architecture", LONG)
def test_41_steps_leave_no_key_and_memory_stays_bounded(architecture: str) -> None:
    """Train 41 epochs of one step, and check that no key is left and that the number of vectors in the store stays bounded."""
    experiment = replace(long(architecture, batch_size=20), functions=Functions(checkpoint_every=3))
    job = Job(replace(experiment, training=replace(experiment.training, epochs=41)))
    store, most = job.clients.tensor_stores[0], 0

    def watch(moment: str, operation: str) -> None:
        """Record the largest number of vectors in the store."""
        nonlocal most
        most = max(most, len(store._vectors))

    job.clients.hook = watch
    job.run()
    assert job.tensor_keys() == []
    stored = job.clients.object_store
    records = [json.loads(stored.get(key)) for key in stored.list(job.prepared.keys.records)]
    marks = [len(record["marks"]) for record in records if record["step"] in ("train", "supervise")]
    assert marks and set(marks) == {1 + 41}  # its start and every epoch
    per_step = {"all_reduce": 3, "scatter_reduce": 4, "mlless": 5}[architecture]
    assert 0 < most <= (3 + 2) * per_step


@pytest.mark.deep
@pytest.mark.parametrize("architecture", LONG)
def test_a_thousand_steps_need_no_more_memory_than_forty(architecture: str) -> None:
    """Check that the largest number of bytes in the store grows by at most 20 % from 40 steps to 1,000."""
    experiment = replace(long(architecture, batch_size=20), functions=Functions(checkpoint_every=3))
    most = []
    for epochs in (40, 1000):
        job = Job(replace(experiment, training=replace(experiment.training, epochs=epochs, learning_rate=1e-3)))
        store, peak, lock = job.clients.tensor_stores[0], [0], threading.Lock()

        def watch(moment: str, operation: str, store: Any = store, peak: list[int] = peak, lock: Any = lock) -> None:
            """Record the largest number of bytes in the store."""
            with lock:
                peak[0] = max(peak[0], sum(vector.data.nbytes for vector in list(store._vectors.values())))

        job.clients.hook = watch
        job.run()
        most.append(peak[0])
    assert most[1] <= 1.2 * most[0]


# --- what may go wrong ------------------------------------------------------------------------------------------------


def spoil(job: Job, key_end: str, change: Callable[[Vector], Vector | None]) -> None:
    """Set the job's hook so that the first vectors found whose key ends in `key_end` are replaced right after they were stored; later ones
    stay. `change`: makes the new vector of the stored one, or returns None to delete it.
    """
    store, done = job.clients.tensor_stores[0], []

    def hook(moment: str, operation: str) -> None:
        """Change the matching vectors after a create, the first time that there are any."""
        if moment != "after" or operation != "create" or done:
            return
        for key, vector in list(store._vectors.items()):
            if key.endswith(key_end):
                done.append(key)
                changed = change(vector)
                if changed is None:
                    del store._vectors[key]
                else:
                    store._vectors[key] = changed

    job.clients.hook = hook


def cut(vector: Vector) -> Vector:
    """Return the vector without its last 4 bytes."""
    return replace(vector, data=memoryview(bytes(vector.data[:-4])))


def with_nan(vector: Vector) -> Vector:
    """Return the vector with a NaN as its first float32 value."""
    return replace(vector, data=memoryview(b"\x00\x00\xc0\x7f" + bytes(vector.data[4:])))


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (cut, "the lengths must be equal"),
        (with_nan, "NaN"),
        (lambda vector: replace(vector, kind=VectorKind.MODEL), "holds a model vector where a gradient was expected"),
        (lambda vector: replace(vector, samples=1), "stands for 1 samples"),
    ],
    ids=["truncated", "nan", "wrong kind", "wrong count"],
)
@pytest.mark.parametrize("architecture", EXCHANGES)
def test_a_spoilt_contribution_ends_the_run_and_says_where(
    architecture: str, change: Callable[[Vector], Vector], says: str
) -> None:
    """Check that a damaged contribution ends the run with an error that names worker, round and key."""
    job = Job(long(architecture))
    spoil(job, CONTRIBUTION[architecture], change)
    with pytest.raises(CrossoverError) as failure:
        job.run()
    text = str(failure.value)
    assert says in text and "worker 0, round 1" in text and CONTRIBUTION[architecture] in text


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("dead", [0, 1])
@pytest.mark.parametrize("architecture", EXCHANGES)
def test_a_worker_or_master_that_dies_for_good_is_named_and_the_run_can_be_resumed(
    architecture: str, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the others say for which worker they waited if one dies for good in round 3, and that a new attempt ends well.

    They wait for their full patience, on a clock that hurries.
    """
    job, clock = Job(long(architecture)), Hurry(60)

    with (
        every_step(monkeypatch, mortal(monkeypatch, dead, clock)),
        pytest.raises((WaitTimeout, Unavailable)) as failure,
    ):
        job.execute(clock=clock)
    assert isinstance(failure.value, Unavailable) or "waited" in str(failure.value)
    records = [
        json.loads(job.clients.object_store.get(key))
        for key in job.clients.object_store.list(job.prepared.keys.records)
    ]
    waited = [record["error"] for record in records if record["step"] == "train" and record["worker"] == 1 - dead]
    assert len(waited) == 1 and f"worker {1 - dead}, round 3: waited" in waited[0]
    assert f"for worker {dead}: {job.prepared.run}/attempt-0/3/" in waited[0]
    job.execute(attempt=1)
    assert job.model() == trained(long(architecture)).model
    assert job.tensor_keys() == []


@pytest.mark.parametrize("architecture", EXCHANGES)
def test_who_leaves_with_an_error_is_not_waited_for(architecture: str) -> None:
    """Check that a run fails with the cause if a worker leaves with an error, instead of at the others' timeout."""
    job = Job(long(architecture))
    minibatch = next(key for key in job.clients.object_store.list("data/") if "/train/1/1" in key)
    body = bytearray(job.clients.object_store.get(minibatch))
    body[-1] ^= 1
    job.clients.object_store.put(minibatch, bytes(body))
    with pytest.raises(CrossoverError) as failure:
        job.run()
    assert isinstance(failure.value, RunFailed | Corrupt)
    assert f"{minibatch}: checksum differs" in str(failure.value)


@pytest.mark.parametrize("architecture", EXCHANGES)
def test_an_exchange_needs_no_broker(architecture: str) -> None:
    """Check that no step of the architecture uses the message bus."""
    assert not any("bus" in step.uses for step in steps(load(architecture)))


# --- what a run reports -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("architecture", LONG)
def test_the_report_has_every_epochs_loss_and_misses_any_record(architecture: str, tmp_path: Path) -> None:
    """Check the report of a run whose invocations end within a round: it has the training loss of every epoch, and the removal of any
    record would be noticed.
    """
    experiment = replace(long(architecture), exchange=Exchange(minibatches_per_invocation=2))
    result = run_inline(experiment, tmp_path, lambda progress: None).result
    assert result["incomplete"] == []
    assert all(epoch["train_loss"] > 0 for epoch in result["epochs"]) and len(result["epochs"]) == 3
    compute = next(stage for stage in result["stages"] if stage["stage"] == "compute")
    assert compute["count"] == 2 * 6
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    lives = [record for record in records if record["step"] == "train"]
    assert len(lives) == 2 * 3
    for lost in lives:
        if lost["until"] != [6, 0]:  # the last one's end nobody takes up
            rest = [record for record in records if record is not lost]
            found = list_missing(rest, expected={"train": 2}, epochs=result["epochs"])
            assert any(f"train, worker {lost['worker']}" in sentence for sentence in found)

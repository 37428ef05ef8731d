"""MLLess's own claims: equal to AllReduce at threshold 0, replicas equal to each other, bounded staleness, removal of the dead and the
superfluous.
"""

import itertools
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover import validation
from crossover.algorithms.schedule import Calendar
from crossover.errors import CrossoverError
from crossover.experiment import Experiment, Functions
from crossover.learning.datasets import load as load_dataset
from crossover.learning.reference import train_reference
from crossover.running.inline import run_inline
from crossover.stores.encoding import Vector, VectorKind
from crossover.training import checkpoints
from crossover.training.progress import calendar_of
from crossover.workflow import Sequence, execute, first_event
from crossover.workflow.architecture import load
from crossover.workflow.context import Context, Resources
from functions.mlless import words
from functions.mlless.settings import MLLess
from tests.architectures.harness import FailAt, Job, Killed, count_changes, every_step, small
from tests.architectures.lives import Hurry, ShortLives, mortal, restarting
from tests.architectures.trained import trained


def mlless(
    *,
    workers: int = 3,
    epochs: int = 3,
    every: int = 2,
    batch_size: int = 7,
    steps: int | None = None,
    **settings: Any,
) -> Experiment:
    """Return an experiment of MLLess. `every`: rounds between checkpoints; `settings`: fields of MLLess."""
    experiment = small("mlless", workers=workers, epochs=epochs, batch_size=batch_size, steps=steps)
    experiment = replace(experiment, functions=Functions(checkpoint_every=every, timeout_s=10))
    return experiment.with_settings(MLLess(**settings))


def floats(model: bytes) -> memoryview:
    """Return the model's bytes as float32 values."""
    return memoryview(model).cast("f")


def without_collect(job: Job, **options: Any) -> None:
    """Execute the run's tree without its last step, which would delete what the tests look at."""
    tree = load("mlless").run
    assert isinstance(tree, Sequence)
    ctx = Context(Resources(job.clients), run=job.prepared.run, **options)
    execute(Sequence(*tree.nodes[:-1]), ctx, first_event(job.prepared.run, workers=job.experiment.workers))


def replicas(job: Job, round: int) -> list[bytes]:
    """Return the bytes of the model in the checkpoint of every worker that reached `round`."""
    keys, store = job.prepared.keys, job.clients.object_store
    found = [keys.checkpoint(worker, round) for worker in range(job.experiment.workers)]
    return [
        bytes(checkpoints.read(store.get(key), key=key).vectors["model"].data) for key in found if store.exists(key)
    ]


def words_given(job: Job) -> Callable[[], list[words.Word]]:
    """Return a function that returns every word (decision of the supervisor about a step) given until then, in order. Replaces
    `job.clients.tensors` to record them.
    """
    seen = dict[str, Vector]()
    tensors = type(job.clients).tensors

    def client(experiment: Experiment, worker: int, traffic: Any) -> Any:
        """Return the worker's tensor store, with words recorded."""
        proxy = tensors(job.clients, experiment, worker, traffic)
        plain = proxy.create

        class Watched:
            """A tensor store that records the first vector created under each key of a word."""

            def __getattr__(self, name: str) -> Any:
                """Return the attribute of the watched store."""
                return getattr(proxy, name)

            def create(self, key: str, vector: Vector) -> bool:
                """Record the vector if it is a word, and create it."""
                if key.endswith("/expected"):
                    seen.setdefault(key, Vector(vector.kind, memoryview(bytes(vector.data)), dtype=vector.dtype))
                return bool(plain(key, vector))

        return Watched()

    job.clients.tensors = client  # type: ignore[method-assign]
    return lambda: [words.read_word(vector, key=key) for key, vector in seen.items()]


# --- equality ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_at_threshold_0_one_step_is_allreduces_within_rounding(workers: int) -> None:
    """Check that one step at threshold 0 gives the reference's model within rounding."""
    experiment = mlless(workers=workers, epochs=1, batch_size=20, threshold=0.0)
    job = Job(experiment)
    reference = floats(bytes(train_reference(job.prepared.experiment, load_dataset(experiment))[0]))
    model = floats(job.run())
    most = max(abs(x) for x in reference)
    assert max(abs(a - b) for a, b in zip(model, reference, strict=True)) <= 1e-6 * most


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"threshold": 0.7},
        {"threshold": 0.05},
        {"threshold": 0.1, "filter": "norm"},
        {"threshold": 0.3, "slack": 1},
        {"threshold": 0.3, "slack": 2, "every": 3},
        {"threshold": 0.0, "slack": 3, "every": 4},
        {"threshold": 0.0, "slack": 2, "every": 3, "steps": 8},
    ],
    ids=str,
)
def test_replicas_are_bitwise_equal_to_each_other(settings: dict[str, Any]) -> None:
    """Check that the models in all workers' last checkpoints have the same bits, with various settings of MLLess."""
    job = Job(mlless(**settings))
    without_collect(job)
    found = replicas(job, calendar_of(job.prepared.experiment, job.prepared.facts["data_manifest"]).rounds)
    assert len(found) == 3
    assert len(set(found)) == 1


def test_the_filter_saves_bytes_and_still_learns_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that threshold 0.7 sends fewer bytes than threshold 0, and that the model still learns."""
    sent = {}
    for threshold in (0.0, 0.7):
        job, moved, lock = Job(mlless(threshold=threshold)), [0], threading.Lock()

        def wrap(run: Callable[..., Any], moved: list[int] = moved, lock: threading.Lock = lock) -> Callable[..., Any]:
            """Return a replacement for Step.run that adds up the bytes sent to the tensor store."""

            def counted(step: Any, ctx: Context, event: Any) -> Any:
                """Run the step, and add the bytes that it sent to the tensor store."""
                result = run(step, ctx, event)
                with lock:
                    moved[0] += ctx.traffic["tensor_store"].as_record()["bytes_out"]
                return result

            return counted

        with every_step(monkeypatch, wrap):
            job.run()
        sent[threshold] = moved[0]
    assert sent[0.7] < 0.5 * sent[0.0]


@pytest.mark.deep
def test_the_yamls_threshold_saves_most_bytes_and_costs_at_most_a_point(tmp_path: Path) -> None:
    """Check the threshold of the project's example on digits, as a mean of 3 seeds: at most 15 % of the bytes that threshold 0 sends, and
    at most 1 point less accuracy.
    """
    experiment = validation.load(Path(__file__).parents[2] / "config" / "mlless.yaml", [])
    settings = experiment.settings(MLLess)
    accuracy, sent = dict[float, float](), dict[float, float]()
    for threshold in (0.0, settings.threshold):
        results = []
        for seed in (1, 2, 3):
            changed = replace(experiment, seed=seed).with_settings(replace(settings, threshold=threshold))
            out = tmp_path / f"{threshold}-{seed}"
            results.append(run_inline(changed, out, lambda progress: None).result)
        accuracy[threshold] = sum(result["final"]["val_metric"] for result in results) / 3
        sent[threshold] = sum(result["traffic"]["tensor_store"]["bytes_out"] for result in results)
    assert accuracy[settings.threshold] >= accuracy[0.0] - 0.01
    assert sent[settings.threshold] <= 0.15 * sent[0.0]


# --- faults with a slack, which the general tests do not have -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"slack": 2, "every": 3, "threshold": 0.2}, {"filter": "norm", "threshold": 0.01}], ids=str
)
def test_deaths_and_short_lives_change_nothing(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill a member once, and in another run end invocations early. Check that both runs end with the bits of an undisturbed one and leave
    no key.
    """
    experiment = mlless(workers=2, batch_size=6, **settings)
    run = trained(experiment)
    with every_step(monkeypatch, restarting):
        job = Job(experiment)
        job.clients.hook = FailAt(count_changes(run.calls) // 2, "after", Killed, changes=True)
        assert job.run() == run.model
        assert job.tensor_keys() == []
    job = Job(experiment)
    with every_step(monkeypatch, ShortLives(8, reserve_s=1.5).wrap):
        assert job.run() == run.model
    assert job.tensor_keys() == []


def test_nobody_computes_on_more_than_the_slack_allows() -> None:
    """Check that updates are applied at most `slack` steps late, and all of them by an epoch's end and before a checkpoint."""
    for slack, rounds_per_epoch, every in itertools.product(range(4), range(1, 7), range(1, 6)):
        steps = 3 * rounds_per_epoch - (slack + every) % rounds_per_epoch
        days, rule = Calendar(rounds_per_epoch, 1, epochs=3, steps=steps), {"slack": slack, "every": every}
        applied = [words.last_applied_step(days, step, **rule) for step in range(steps)]
        assert applied == sorted(applied)
        for step, last in enumerate(applied):
            assert step - slack <= last <= step
            assert last == step or not (days.ends_epoch(step) or (step + 1) % every == 0)
            seen = words.visible_from(days, step, **rule)
            assert applied[seen - 1] >= step and (seen - 1 == step or applied[seen - 2] < step)


def test_announcements_that_come_twice_late_or_never_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a run ends with the same bits if each announcement comes late and twice, and the last one never.

    Announcements only wake their readers; reports and words in the store decide.
    """
    experiment = mlless(workers=2, threshold=0.3)
    model, job = trained(experiment).model, Job(experiment)
    monkeypatch.setattr("functions.mlless.worker._STORE_LOOK_S", 0.02)
    held, lock, swapped = dict[int, dict[str, Any]](), threading.Lock(), [0]
    plain = type(job.clients).bus

    class Untidy:
        """A bus that holds each member's announcement back until its next one, and then delivers it twice; the last one is
        never delivered.
        """

        def __init__(self, bus: Any) -> None:
            """Remember the bus."""
            self._bus = bus

        def __getattr__(self, name: str) -> Any:
            """Return the bus's own attribute."""
            return getattr(self._bus, name)

        def arrive(self, barrier: str, **where: Any) -> None:
            """Hold the announcement, and deliver the member's previous one twice."""
            with lock:
                before = held.get(where["member"])
                held[where["member"]] = where
            if before is not None:  # the last one of each never comes
                swapped[0] += 1
                self._bus.arrive(barrier, **before)
                self._bus.arrive(barrier, **before)

    monkeypatch.setattr(type(job.clients), "bus", lambda self, traffic: Untidy(plain(self, traffic)))
    assert job.run() == model
    assert swapped[0] > 6 and job.tensor_keys() == []


# --- who leaves -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_worker_that_dies_for_good_is_removed_and_the_others_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the supervisor drops a worker that dies at every try, that its updates count until then, and that the others end with
    equal models.
    """
    job, clock = Job(mlless()), Hurry(12)  # ten seconds: nobody who lives is silent for so long
    given = words_given(job)

    with every_step(monkeypatch, mortal(monkeypatch, 1, clock)):
        without_collect(job, clock=clock)
    last = given()[-1]
    assert last.dropped == (1,)
    assert [word.step for word in given() if 1 in word.senders] == [0, 1, 2]
    assert len(set(replicas(job, last.step + 1))) == 1


def test_a_worker_that_leaves_with_an_error_is_removed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the supervisor drops a worker that reports an error, without waiting for its timeout, and that the run ends."""
    job = Job(mlless())
    given = words_given(job)
    store = job.clients.object_store
    minibatch = next(key for key in store.list("data/") if "/train/2/1" in key)
    get = type(store).get

    def refused(asked: object, key: str) -> bytes:
        """Return the object. Raises CrossoverError for the one minibatch."""
        if key == minibatch:
            raise CrossoverError("no minibatch for this worker")
        return get(asked, key)  # type: ignore[arg-type]

    monkeypatch.setattr(type(store), "get", refused)
    assert job.run()
    assert given()[-1].dropped == (2,)
    assert job.tensor_keys() == []
    records = [json.loads(store.get(key)) for key in store.list(job.prepared.keys.records + "supervise/")]
    assert "no minibatch for this worker" in records[-1]["dropped_2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-4],
        lambda data: data[:16] + b"\xff" * 4 + data[20:],
        lambda data: data[:-4] + b"\x00\x00\xc0\x7f",
    ],
    ids=["truncated", "wild index", "nan"],
)
def test_an_update_that_cannot_be_read_is_left_out_by_all_and_its_sender_removed(
    change: Callable[[bytes], bytes],
) -> None:
    """Damage one stored update. Check that all workers leave it out and that the supervisor drops its sender."""
    job = Job(mlless(threshold=0.7))
    given = words_given(job)
    store, done = job.clients.tensor_stores[0], []

    def hook(moment: str, operation: str) -> None:
        """Damage the chosen update as soon as it is in the store, once."""
        for key, vector in list(store._vectors.items()):
            if key.endswith("/1/2/update") and not done:
                assert vector.kind is VectorKind.SPARSE
                done.append(key)
                store._vectors[key] = replace(vector, data=memoryview(change(bytes(vector.data))))

    job.clients.hook = hook
    without_collect(job)
    last = given()[-1]
    assert done and last.dropped == (2,)
    assert len(set(replicas(job, last.step + 1))) == 1
    assert len(replicas(job, last.step + 1)) >= 2


SCALING_IN = {"threshold": 0.3, "min_workers": 2, "knee_window_s": 0.001, "knee_reduction": 0.5}


def slow(monkeypatch: pytest.MonkeyPatch, count: Callable[[int], None] = lambda samples: None) -> Callable[..., Any]:
    """Return a wrapper of Step.run by which worker 1 needs 0.1 s more for each gradient. `count`: called with the samples of every
    gradient.
    """

    def wrap(run: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement for `run`."""

        def attempt(step: Any, ctx: Context, event: Any) -> Any:
            """Run the step; let a training step compute its gradients by `slowly`."""
            if step.name == "train":
                compute = ctx.learner.compute_gradient

                def slowly(batch: Any, **where: Any) -> float:
                    """Wait 0.1 s if the worker is number 1, report the samples, and compute the gradient."""
                    if where["worker"] == 1:
                        threading.Event().wait(0.1)
                    count(batch.samples)
                    return compute(batch, **where)

                monkeypatch.setattr(ctx.learner, "compute_gradient", slowly)
            return run(step, ctx, event)

        return attempt

    return wrap


@pytest.mark.slow
def test_past_the_knee_the_slowest_worker_is_sent_home_and_its_residual_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that with scaling in the slowest worker leaves after the loss's knee, and that its residual is applied by all.

    The run then computes less, and all replicas are equal.
    """
    samples = {}
    for scale_in in (False, True):
        job = Job(mlless(epochs=20, every=8, scale_in=scale_in, **SCALING_IN))
        given = words_given(job)
        computed, lock = [0], threading.Lock()

        def count(samples: int, computed: list[int] = computed, lock: Any = lock) -> None:
            """Add up the samples of all gradients."""
            with lock:
                computed[0] += samples

        with every_step(monkeypatch, slow(monkeypatch, count)):
            without_collect(job)
        samples[scale_in] = computed[0]
        last = given()[-1]
        assert len(set(replicas(job, last.step + 1))) == 1
        if scale_in:
            assert list(last.leaves) == [1] and last.dropped == ()
            (leaves,) = last.leaves.values()
            farewell = next(word for word in given() if word.step == leaves)
            assert 1 in farewell.senders, "its residual goes to all"
            assert all(1 not in word.senders for word in given() if word.step > leaves)
        else:
            assert last.leaves == {}
    assert samples[True] < 0.9 * samples[False]


@pytest.mark.slow
def test_the_run_is_cheaper_for_scaling_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that removing the slow worker lowers the cost by the papers' formula, from the recorded seconds: all others wait for it until
    then.
    """
    usd, removed = {}, {}

    for scale_in in (False, True):
        experiment = mlless(epochs=20, every=8, scale_in=scale_in, **SCALING_IN)
        with every_step(monkeypatch, slow(monkeypatch)):
            folder = run_inline(experiment, tmp_path / str(scale_in), lambda progress: None)
        usd[scale_in] = folder.result["cost"]["paper_method_usd"]
        rounds_ = {r["worker"]: r["until"][0] for r in folder.records if r["step"] == "train" and r["outcome"] == "ok"}
        removed[scale_in] = [worker for worker, until in rounds_.items() if until < max(rounds_.values())]
    assert removed == {False: [], True: [1]}
    assert usd[True] < 0.8 * usd[False]

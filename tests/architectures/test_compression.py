"""Compressed exchanges: bit for bit what one process comes to, also where a worker begins again with what it had left out."""

import contextlib
from dataclasses import replace

import pytest

from crossover.errors import Corrupt, CrossoverError
from crossover.experiment import Exchange, Experiment
from crossover.training.waits import reserve_s
from tests.architectures.harness import FailAt, Job, Killed, count_changes, every_step, silent, small
from tests.architectures.lives import ShortLives
from tests.architectures.trained import assert_equal_to_reference, trained

EXCHANGES = {
    "fp16": Exchange(compression="fp16", every=2),
    "fp16 fed back": Exchange(compression="fp16", error_feedback=True),
    "qsgd": Exchange(compression="qsgd", bits=3, bucket=130, norm="l2"),
    "qsgd fed back": Exchange(compression="qsgd", bits=8, error_feedback=True),
    "top_k": Exchange(compression="top_k", share=0.05),
    "top_k, nothing kept": Exchange(compression="top_k", error_feedback=False),
    "dense top_k": Exchange(compression="top_k", share=0.9),
    "powersgd": Exchange(compression="powersgd", rank=2),
    "what models moved by": Exchange(what="delta", every=2, compression="powersgd", rank=2),
    "powersgd, nothing kept": Exchange(compression="powersgd", error_feedback=False),
}
LONG = ["all_reduce", "scatter_reduce"]


def compressed(architecture: str, name: str, **settings: int) -> Experiment:
    """Return an experiment of three workers with unequal minibatches, whose exchange is EXCHANGES[name]."""
    exchange = EXCHANGES[name]
    return replace(small(architecture, workers=3, batch_size=7, **settings), exchange=exchange)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        (each, name)
        for each in LONG
        for name in EXCHANGES
        if (each, EXCHANGES[name].compression) != ("scatter_reduce", "powersgd")
    ]
    + [
        ("p2p_instance", name)
        for name in ("fp16", "fp16 fed back", "qsgd", "top_k", "powersgd", "what models moved by")
    ]
    + [("p2p_serverless", name) for name in ("fp16", "qsgd", "top_k", "powersgd", "what models moved by")]
    + [("gpu", name) for name in ("fp16", "qsgd fed back", "top_k", "powersgd", "what models moved by")],
)
def test_every_codec_equals_the_reference(architecture: str, name: str) -> None:
    """Check that each architecture with each of its codecs ends with the reference's bits."""
    assert_equal_to_reference(compressed(architecture, name))


KEPT = [
    ("all_reduce", "powersgd"),
    ("all_reduce", "top_k"),
    ("scatter_reduce", "top_k"),
    ("scatter_reduce", "qsgd fed back"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "name"), KEPT)
def test_what_was_left_out_outlives_any_invocation(
    architecture: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the model's bits do not change if invocations end after a few polls, also in the middle of an exchange.

    A residual that is lost, or added twice, would change them.
    """
    experiment = compressed(architecture, name)
    for looks in (2, 9):
        job = Job(experiment)
        lives = ShortLives(looks, reserve_s=reserve_s(job.experiment))
        with every_step(monkeypatch, lives.wrap):
            assert job.run() == trained(experiment).model
        assert job.tensor_keys() == []


def test_a_run_that_is_resumed_goes_on_with_what_was_left_out() -> None:
    """Check that a run resumed with an empty database ends with the same bits: residual and factors come from the checkpoints."""
    experiment = compressed("all_reduce", "powersgd", epochs=3)
    undisturbed = trained(experiment)
    job = Job(experiment)
    stopped = False
    count = FailAt(3 * count_changes(undisturbed.calls) // 4, "before", Killed, changes=True)

    def hook(moment: str, operation: str) -> None:
        """Count the call; raise Corrupt at the chosen call and at all later ones."""
        nonlocal stopped
        with contextlib.suppress(Killed):
            count(moment, operation)
        stopped = stopped or bool(count.failed)
        if stopped:
            raise Corrupt("everything fails from here on")

    job.clients.hook = hook
    with contextlib.suppress(CrossoverError):
        job.execute()
    assert not job.clients.object_store.exists(job.prepared.keys.outcome)
    job.clients.hook = silent
    job.clients.tensor_stores[0]._vectors.clear()
    job.execute(attempt=1)
    assert job.model() == undisturbed.model
    assert job.tensor_keys() == []

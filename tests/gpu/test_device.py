"""Programs that compute on a device: as the processor does within a tolerance, in half precision, resumed, and out of memory."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from crossover.advice import gpu_probe
from crossover.algorithms import buffers
from crossover.errors import ConfigError
from crossover.experiment import Clip, Experiment
from crossover.learning import loss_scale
from crossover.learning.batches import Batch
from crossover.learning.datasets import load as load_dataset
from crossover.learning.device import NATIVE_BF16, DeviceLearner
from crossover.learning.learner import Learner
from crossover.learning.loss_scale import FIRST_SCALE, LossScale
from crossover.learning.reference import train_reference
from crossover.learning.staging import Minibatches, plan_staging
from crossover.simulation.gpu_steps import card_of_device
from crossover.simulation.workload import MODEL_SIZES
from crossover.training.checkpoints import CheckpointPace
from crossover.training.peer import Replica
from peers import gpu
from tests.architectures.fleet import Fleet
from tests.architectures.harness import Job, small

pytestmark = pytest.mark.filterwarnings("ignore:.*deterministic")

# Largest difference allowed, as a share of the largest value: the order of sums alone, and the rounding of half precision.
FP32, HALF = 1e-3, 0.1
WHERE: dict[str, Any] = {"epoch": 1, "round": 0, "worker": 0, "minibatch": 0}
AFFINE = {"scale": [1 / 16], "shift": [0.0]}


@pytest.fixture(autouse=True)
def _determinism_as_before() -> Iterator[None]:
    """Restore what a learner on a device changes for the whole process."""
    was = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    workspaces = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    yield
    torch._C._set_deterministic_algorithms(was[0], warn_only=was[1])
    if workspaces is None:
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def on_gpu(architecture: str, **settings: Any) -> Experiment:
    """Return a small experiment whose one or two programs compute on a device."""
    exchange = settings.pop("exchange", "s3")
    experiment = small(architecture, **{"every": 1, "batch_size": 10} | settings)
    if architecture == "single":
        return replace(experiment, sections={"single": {"on": "gpu"}})
    return replace(experiment, gpu=replace(experiment.gpu, exchange=exchange, instances=experiment.workers))


def learners(device: torch.device, **settings: Any) -> tuple[Learner, DeviceLearner, Batch]:
    """Return the processor's learner in fp32, the device's with `settings`, and a minibatch. Both have the same first weights."""
    experiment = on_gpu("gpu", workers=1, **settings)
    training = experiment.training
    dataset = load_dataset(experiment)
    batch = Minibatches(experiment, dataset, plan_staging(experiment, dataset.train_labels.numel())).build_minibatch(
        0, 0
    )
    facts: Any = {
        "classes": dataset.classes,
        "input_shape": tuple(dataset.train_inputs.shape[1:]),
        "affine": AFFINE,
    }
    host = Learner(replace(experiment, training=replace(training, precision="fp32")), **facts)
    own = DeviceLearner(experiment, **facts, device=device)
    assert bytes(own.initialise_model()) == bytes(host.initialise_model())
    return host, own, batch


def distance(one: bytes | memoryview, other: bytes | memoryview) -> float:
    """Return the largest difference of two vectors, as a share of the largest value."""
    a, b = buffers.tensor(one), buffers.tensor(other)
    return float((a - b).abs().max() / b.abs().max())


@pytest.mark.parametrize("model", ["small_cnn", "mobilenet"])
def test_fp32_equals_the_processor_within_a_thousandth(device: torch.device, model: str) -> None:
    """Check that loss, gradient and evaluation on the device in fp32 differ from the processor's by at most a thousandth."""
    host, own, batch = learners(device, model=model)
    assert own.compute_gradient(batch, **WHERE) == pytest.approx(host.compute_gradient(batch, **WHERE), rel=FP32)
    assert distance(own.gradient, host.gradient) <= FP32
    found, expected = own.evaluate([batch]), host.evaluate([batch])
    assert found.loss == pytest.approx(expected.loss, rel=FP32) and found.samples == expected.samples


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_near_fp32_or_the_card_is_told_to_have_none(device: torch.device, precision: str) -> None:
    """Check that the gradient in half precision is near the processor's in fp32, or that bf16 raises ConfigError on a card without it."""
    if precision == "bf16" and device.type == "cuda" and torch.cuda.get_device_capability(device) < NATIVE_BF16:
        with pytest.raises(ConfigError, match=r"training\.precision: .* has no bfloat16 .*; expected fp16 or fp32"):
            learners(device, precision=precision)
        return
    host, own, batch = learners(device, precision=precision)
    host.compute_gradient(batch, **WHERE)
    own.compute_gradient(batch, **WHERE)
    assert 0 < distance(own.gradient, host.gradient) <= HALF


def test_a_batch_that_was_copied_ahead_gives_the_same_gradient(device: torch.device) -> None:
    """Check that a minibatch that was copied by copy_to_device gives the gradient of the original."""
    _, own, batch = learners(device, precision="fp16")
    own.compute_gradient(batch, **WHERE)
    direct = bytes(own.gradient)
    own.compute_gradient(own.copy_to_device(batch, epoch=1), **WHERE)
    assert bytes(own.gradient) == direct


# --- loss scaling -----------------------------------------------------------------------------------------------------


def test_an_overflow_halves_the_scale_until_the_gradient_is_finite(device: torch.device) -> None:
    """Check that a too high loss scale is halved until the gradient is finite, and that this gradient is the one at the resulting scale."""
    _, own, batch = learners(device, precision="fp16")
    assert own.loss_scale == LossScale(FIRST_SCALE, 0)
    own.loss_scale.scale = 2.0**40
    own.compute_gradient(batch, **WHERE)
    found, gradient = own.loss_scale.scale, bytes(own.gradient)
    assert 1.0 < found < 2.0**40 and own.loss_scale.finite == 1
    assert bool(buffers.tensor(gradient).isfinite().all())
    own.loss_scale.restore((found, 0))
    own.compute_gradient(batch, **WHERE)
    assert bytes(own.gradient) == gradient  # nothing is left of the tries that overflowed


def test_finite_gradients_in_a_row_double_the_scale(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the loss scale doubles after every GROWTH_INTERVAL finite gradients."""
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 2)
    _, own, batch = learners(device, precision="fp16")
    assert own.loss_scale is not None
    own.loss_scale.restore((4.0, 0))
    scales = []
    for _ in range(4):
        own.compute_gradient(batch, **WHERE)
        scales.append((own.loss_scale.scale, own.loss_scale.finite))
    assert scales == [(4.0, 1), (8.0, 0), (8.0, 1), (16.0, 0)]


def test_the_scale_moves_as_pytorchs_own_does() -> None:
    """Check that the loss scale has the values of PyTorch's GradScaler through a sequence of overflows and finite steps."""
    theirs = torch.amp.GradScaler("cpu", init_scale=FIRST_SCALE, growth_interval=3)
    mine, weight = LossScale(), torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_scale, "GROWTH_INTERVAL", 3)
        for overflows in (0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0):
            theirs.scale(torch.zeros(1))  # makes its tensor
            weight.grad = torch.full((1,), float("inf") if overflows else 1.0)
            theirs.step(optimizer)
            theirs.update()
            mine.halve() if overflows else mine.count_finite()
            assert mine.scale == theirs.get_scale()


# --- programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [("single", {}), ("gpu", {"workers": 2}), ("gpu", {"workers": 1, "exchange": "distributed"})],
    ids=["single", "gpu", "gpu, all-reduce"],
)
def test_a_program_trains_as_the_reference_does(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, architecture: str, settings: dict[str, Any]
) -> None:
    """Check that programs on the device end an epoch with nearly the reference's model. Later rounds would amplify the last bits, as on any
    two machines.
    """
    fleet = Fleet(Job(on_gpu(architecture, epochs=1, **settings)))
    made = _count_learners(monkeypatch)
    model = fleet.run(monkeypatch)
    reference, _, _ = train_reference(fleet.job.prepared.experiment, load_dataset(fleet.job.experiment))
    assert made == [device] * fleet.job.experiment.workers
    assert distance(model, reference) <= 10 * FP32
    assert fleet.left_behind() == []


def test_vectors_of_a_run_without_an_exchange_stay_on_the_device(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the model is copied to the host only at its start, for a checkpoint and for the outcome, and the gradient never."""
    copied, rounds = list[int](), list[int]()
    load, advance = DeviceLearner.model.fget, Replica.advance
    assert load is not None

    def count_copy(self: DeviceLearner) -> Any:
        """Record the number of rounds so far at a copy of the model, which must be on the device."""
        assert self.model_vector.device == device
        copied.append(len(rounds))
        return load(self)

    def count_round(self: Replica, *given: Any, **named: Any) -> None:
        """Record the replica's round, and call the real `advance`."""
        rounds.append(self.round)
        advance(self, *given, **named)

    monkeypatch.setattr(DeviceLearner, "model", property(count_copy))
    monkeypatch.setattr(DeviceLearner, "gradient", property(_refuse_copy))
    monkeypatch.setattr(Replica, "advance", count_round)
    monkeypatch.setattr(CheckpointPace, "is_due", lambda self, round: round == 4)
    Fleet(Job(on_gpu("single", epochs=1, batch_size=2))).run(monkeypatch)
    assert copied == [0, 4, len(rounds)]


def _refuse_copy(self: DeviceLearner) -> Any:
    """Raise AssertionError: no gradient leaves the device."""
    raise AssertionError("a gradient was copied to the host")


@pytest.mark.parametrize(
    "settings",
    [{}, {"optimizer": "adamw", "momentum": 0.0}, {"clip": Clip(norm=0.1)}],
    ids=["sgd", "adamw", "clipped"],
)
def test_steps_in_the_memory_of_the_device_equal_those_on_the_host(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """Check that optimizer steps on the device and on the host end with equal models: bit for bit if the processor stands in for the
    device, otherwise nearly.
    """
    models, build = [], gpu.device_learner
    for on_device in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(gpu, "device_learner", lambda ctx, on=on_device, **_: build(ctx, keeps_vectors=on))
            models.append(Fleet(Job(on_gpu("single", epochs=1, **settings))).run(patch))
    assert distance(*models) <= (0.0 if device.type == "cpu" else 10 * FP32)


def _count_learners(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Patch the learners of devices, and return a list to which each new one adds its device."""
    made, create = list[torch.device](), DeviceLearner.__init__

    def note(self: DeviceLearner, *given: Any, **named: Any) -> None:
        """Record the device, and create the learner."""
        made.append(named["device"])
        create(self, *given, **named)

    monkeypatch.setattr(DeviceLearner, "__init__", note)
    return made


def test_a_resumed_run_in_fp16_equals_one_that_was_never_interrupted(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a run that a second program takes over has the model and loss scales of an uninterrupted one. The scale doubles after
    every third gradient here.
    """
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 3)
    monkeypatch.setattr("crossover.training.fleet.NOTICE_S", 0.0)
    experiment = on_gpu("single", precision="fp16")
    scales: list[tuple[int, float, int]] = []
    advance = Replica.advance
    with monkeypatch.context() as patch:
        patch.setattr(Replica, "advance", _note_scales(advance, scales))
        unbroken = Fleet(Job(experiment)).run(patch)
    expected, fleet = list(scales), Fleet(Job(experiment), members=2)  # the second program takes over
    scales.clear()
    note = _note_scales(advance, scales)

    def announce_interruption(replica: Replica, *given: Any, **named: Any) -> None:
        """Advance and record the scale; after round 3 mark the instance as about to be taken away."""
        note(replica, *given, **named)
        if replica.round == 3:
            member = fleet.threads[threading.current_thread()]
            assert member is not None
            member.interrupted = True

    monkeypatch.setattr(Replica, "advance", announce_interruption)
    assert fleet.run(monkeypatch) == unbroken
    assert scales == expected and len({scale for _, scale, _ in scales}) > 1


def _note_scales(advance: Any, scales: list[tuple[int, float, int]]) -> Any:
    """Return a replacement for `advance`, the method Replica.advance, that appends (round, loss scale, number of finite steps) to `scales`
    before it advances.
    """

    def note(replica: Replica, *given: Any, **named: Any) -> None:
        """Record round and loss scale, and advance."""
        scale = replica._ctx.learner.loss_scale
        assert scale is not None
        scales.append((replica.round, scale.scale, scale.finite))
        advance(replica, *given, **named)

    return note


# --- out of memory ----------------------------------------------------------------------------------------------------


def test_a_lack_of_memory_names_the_batch_size_and_what_to_try(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a lack of device memory raises ConfigError with a smaller batch size to try."""
    _, own, batch = learners(device, batch_size=20)
    images = batch.inputs
    if device.type == "cuda":  # the device's own error
        images = batch.inputs.expand(-1, -1, 8, 8).repeat(200_000, 1, 1, 1)
        torch.cuda.set_per_process_memory_fraction(0.01, device)
    else:
        forward = own._flat.module.forward

        def lack(*given: Any) -> Any:
            """Raise torch's OutOfMemoryError."""
            raise torch.OutOfMemoryError(f"no room for {forward}")

        monkeypatch.setattr(own._flat.module, "forward", lack)
    large = replace(batch, inputs=images, labels=batch.labels.repeat(len(images) // len(batch.labels)))
    large = replace(large, sample_ids=torch.arange(len(images)))
    try:
        with pytest.raises(
            ConfigError,
            match=r"training\.batch_size: 20 of small_cnn do not fit .*; try 10, or training\.precision: fp16",
        ):
            own.compute_gradient(large, **WHERE)
    finally:
        if device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0, device)
            torch.cuda.empty_cache()


# --- seconds of a step ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet18_cifar", "mobilenet"])
def test_predicted_seconds_of_a_step_are_printed_beside_the_measured_ones(
    device: torch.device, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    """Check the sizes that the probe measures, and print the measured seconds of a step beside the predicted ones. There is no bound on
    their difference.
    """
    batch_sizes, seconds = ((64, 256, 512), 10.0) if device.type == "cuda" else ((2, 4), 0.0)
    measured = gpu_probe.measure_row(
        model,
        gpu_probe.draw_samples((3, 32, 32), 10),
        device=device,
        precision="fp32",
        batch_sizes=batch_sizes,
        seconds=seconds,
    )
    size, card = MODEL_SIZES[model][3, 32, 32], card_of_device(measured["device"])
    assert (measured["parameters"], measured["macs"]) == (size.parameters, size.macs)
    lines = []
    for step in measured["steps"]:
        ruled = card and card.step_s(size.step, step["batch_size"], parameters=size.parameters)
        words = f"{ruled:.4f} s predicted" if ruled else "no prediction for this card"
        lines.append(
            f"{measured['device']}, {model}, {step['batch_size']} samples: {step['seconds']:.4f} s measured, {words}"
        )
    with capsys.disabled():
        print("", *lines, sep="\n") if device.type == "cuda" else None
    assert len(lines) == len(batch_sizes)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_a_gpu_the_check_says_so_in_one_line_and_is_not_run() -> None:
    """The check exits with status 77 and one line if there is no GPU."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.gpu"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 77
    assert ended.stdout.startswith("gpu-check: not run: needs an NVIDIA GPU") and ended.stdout.count("\n") == 1
    assert ended.stderr == ""

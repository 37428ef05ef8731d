"""The learner: torch's own gradients bit for bit, in flat memory, the same in every process and thread."""

import hashlib
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from crossover.algorithms import buffers
from crossover.errors import ConfigError, Refused
from crossover.experiment import Aggregation, Data, Experiment, ImageSize, Training
from crossover.learning import learner as learner_module
from crossover.learning.batches import Batch
from crossover.learning.learner import Learner
from crossover.learning.loss_scale import FIRST_SCALE, GROWTH_INTERVAL, LossScale
from crossover.learning.samples import Preparation, resize_images

AFFINE = {"scale": [0.02, 0.01, 0.015], "shift": [-1.0, -0.5, 0.1]}
WHERE = {"epoch": 1, "round": 3, "worker": 2, "minibatch": 1}


def experiment(model: str = "small_cnn", *, augment: Any = "none", seed: int = 1, **training: Any) -> Experiment:
    """Return an experiment that trains the model. `training`: further settings of the training."""
    return Experiment(
        name="test",
        architecture="spirt",
        seed=seed,
        training=Training(model=model, **training),
        data=Data(augment=augment),
    )


def learner(
    model: str = "small_cnn", *, shape: tuple[int, int, int] = (3, 32, 32), initial: bool = True, **settings: Any
) -> Learner:
    """Return a learner for ten classes. `initial`: give it its initial model; `settings`: as `experiment` takes them."""
    affine = {name: values[: shape[0]] for name, values in AFFINE.items()}
    own = Learner(experiment(model, **settings), classes=10, input_shape=shape, affine=affine)
    if initial:
        own.initialise_model()
    return own


def batch(samples: int = 6, shape: tuple[int, int, int] = (3, 32, 32), seed: int = 1) -> Batch:
    """Return a minibatch of random images and labels, the same for the same seed."""
    random = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (samples, *shape), dtype=torch.uint8, generator=random)
    return Batch(images, torch.randint(0, 10, (samples,), generator=random), torch.arange(samples))


def plain(model: str, data: Batch, *, smoothing: float, memory_format: str) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Return (loss, gradient, minibatch statistics) of an ordinary PyTorch module in ordinary memory."""
    torch.set_num_threads(1)
    module = learner_module._build_seeded(Training(model=model), 10, (3, 32, 32), seed_=1)
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    images = Preparation(AFFINE, memory_format=memory_format)(data.inputs)
    loss = F.cross_entropy(module(images), data.labels, label_smoothing=smoothing)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = []
    for parameter in module.parameters():
        assert parameter.grad is not None
        gradients.append(parameter.grad.reshape(-1))
    statistics = [torch.empty(0)]
    for norm in norms:
        assert norm.running_mean is not None and norm.running_var is not None
        statistics += [norm.running_mean, norm.running_var]
    return float(loss.detach()), torch.cat(gradients), torch.cat(statistics)


@pytest.mark.slow
@pytest.mark.parametrize("memory_format", ["channels_last", "contiguous"])
@pytest.mark.parametrize("model", ["small_cnn", "mobilenet", "resnet18_cifar"])
def test_gradient_and_statistics_are_torchs_own(model: str, memory_format: str) -> None:
    """Loss, gradient and minibatch statistics of a learner have the bits of an ordinary PyTorch module."""
    own = learner(model, memory_format=memory_format, label_smoothing=0.1)
    for seed in (1, 2):  # the second overwrites the first
        loss = own.compute_gradient(batch(seed=seed), **WHERE)
        flat = buffers.tensor(own.gradient)
        expected = plain(model, batch(seed=seed), smoothing=0.1, memory_format=memory_format)
        assert loss == expected[0]
        assert torch.equal(flat[: own.parameters], expected[1])
        assert torch.equal(flat[own.parameters :], expected[2])
        assert own.buffers == expected[2].numel()


@pytest.mark.parametrize("model", ["squeezenet", "mobilenet_v3_small"])
def test_dropout_is_a_function_of_round_worker_and_minibatch(model: str) -> None:
    """Gradients with dropout are equal for equal round, worker and minibatch, and differ if one of these does."""
    first, second = learner(model), learner(model)
    first.compute_gradient(batch(), **WHERE)
    second.compute_gradient(batch(seed=9), **WHERE)  # whatever came before
    second.compute_gradient(batch(), **WHERE)
    assert first.gradient == second.gradient
    for change in ({"round": 4}, {"worker": 1}, {"minibatch": 0}):
        second.compute_gradient(batch(), **(WHERE | change))
        assert first.gradient != second.gradient
    second.compute_gradient(batch(), **(WHERE | {"epoch": 2}))
    assert first.gradient == second.gradient


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_same_arguments_give_the_same_bits_in_another_process(precision: str) -> None:
    """Check that another process computes a gradient with the same digest."""
    own = learner("mobilenet", precision=precision, augment="crop_flip")
    own.compute_gradient(batch(), **WHERE)
    program = f"""
        import hashlib, sys
        sys.path.insert(0, {str(__file__.rpartition("/tests/")[0])!r})
        sys.path.insert(0, {str(__file__.rpartition("/")[0])!r})
        from test_learner import WHERE, batch, learner
        own = learner("mobilenet", precision={precision!r}, augment="crop_flip")
        own.compute_gradient(batch(), **WHERE)
        print(hashlib.sha256(own.gradient).hexdigest())
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == hashlib.sha256(own.gradient).hexdigest()


def test_early_epochs_train_on_smaller_images_and_evaluations_never_do() -> None:
    """Check that `training.image_size` makes the images of early epochs smaller, but not those of evaluations."""
    grows, plain = learner(epochs=4, image_size=ImageSize(begin=16)), learner()
    small = Batch(resize_images(batch().inputs.float(), 16), batch().labels, batch().sample_ids)
    for epoch, seen in ((1, small), (4, batch())):
        grows.compute_gradient(batch(), **(WHERE | {"epoch": epoch}))
        plain.compute_gradient(seen, **WHERE)
        torch.testing.assert_close(
            buffers.tensor(grows.gradient), buffers.tensor(plain.gradient), rtol=0, atol=0 if epoch == 4 else 1e-5
        )
    assert grows.evaluate([batch()]) == plain.evaluate([batch()])


def test_augmentation_changes_with_the_epoch() -> None:
    """Check that the gradient of an augmented minibatch differs between epochs and is equal for the same epoch."""
    own = learner(augment="crop_flip")
    seen = []
    for epoch in (1, 2, 1):
        own.compute_gradient(batch(), **(WHERE | {"epoch": epoch}))
        seen.append(bytes(own.gradient))
    assert seen[0] != seen[1]
    assert seen[0] == seen[2]


def test_bf16_is_close_to_fp32() -> None:
    """Check that loss and gradient in bf16 differ from those in fp32, but not by much."""
    losses, gradients = [], []
    for precision in ("fp32", "bf16"):
        own = learner("small_cnn", precision=precision)
        losses.append(own.compute_gradient(batch(64), **WHERE))
        gradients.append(buffers.tensor(bytes(own.gradient))[: own.parameters])
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], rel=0.02)
    assert float(F.cosine_similarity(gradients[0], gradients[1], dim=0)) > 0.98


def test_the_model_is_received_in_place() -> None:
    """A model that is copied into the learner's memory is the one that the next gradient is computed for."""
    first, second = learner(seed=1), learner(seed=2)
    assert first.model != second.model
    second.model[:] = first.model
    first.compute_gradient(batch(), **WHERE)
    second.compute_gradient(batch(), **WHERE)
    assert first.gradient == second.gradient


def test_the_first_model_depends_on_the_seed_alone() -> None:
    """Check that initial models are equal in two threads and whatever torch's global generator did before, which they leave unchanged."""
    before = torch.random.get_rng_state()
    one = bytes(learner("mobilenet_v3_small").model)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(3)
    models: list[bytes] = []
    threads = [threading.Thread(target=lambda: models.append(bytes(learner("mobilenet_v3_small").model))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert models == [one, one]
    own = learner()
    variances = buffers.tensor(own.model)[own.parameters :][16:32]
    assert variances.tolist() == [1.0] * 16  # BatchNorm's own start: mean 0, variance 1


def test_computing_leaves_no_global_random_state() -> None:
    """Check that gradient and evaluation leave torch's global generator unchanged."""
    own = learner("mobilenet_v3_small", augment="crop_flip")
    before = torch.random.get_rng_state()
    own.compute_gradient(batch(), **WHERE)
    own.evaluate([batch()])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_side_by_side_in_threads_each_has_its_own() -> None:
    """Learners in two threads give the gradients that each gives alone."""
    expected = []
    for seed in (1, 2):
        own = learner("mobilenet_v3_small")
        own.compute_gradient(batch(seed=seed), **WHERE)
        expected.append(bytes(own.gradient))
    found: dict[int, list[bytes]] = {1: [], 2: []}

    def work(seed: int) -> None:
        """Compute three gradients of one minibatch and note their bytes under the seed."""
        own = learner("mobilenet_v3_small")
        for _ in range(3):
            own.compute_gradient(batch(seed=seed), **WHERE)
            found[seed].append(bytes(own.gradient))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[1], found[2]] == [[expected[0]] * 3, [expected[1]] * 3]


# --- evaluation -------------------------------------------------------------------------------------------------------


def test_evaluation_is_torchs_own_over_all_batches() -> None:
    """Loss and accuracy of an evaluation are those of a PyTorch module over all minibatches together, without label smoothing."""
    own = learner("small_cnn", label_smoothing=0.3)  # smoothing is for training alone
    statistics = buffers.tensor(own.model)[own.parameters :]
    statistics.copy_(torch.rand(own.buffers, generator=torch.Generator().manual_seed(3)) + 0.5)
    batches = [batch(7, seed=1), batch(2, seed=2)]
    result = own.evaluate(iter(batches))

    module = learner_module._build_seeded(Training(model="small_cnn"), 10, (3, 32, 32), seed_=1).eval()
    start = 0
    for norm in (layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)):
        for value in (norm.running_mean, norm.running_var):
            assert value is not None
            value.copy_(statistics[start : start + value.numel()])
            start += value.numel()
    together = Batch(*(torch.cat([getattr(b, name) for b in batches]) for name in ("inputs", "labels", "sample_ids")))
    with torch.no_grad():
        logits = module(Preparation(AFFINE, memory_format="channels_last")(together.inputs))
    assert result.samples == 9
    assert result.loss == pytest.approx(float(F.cross_entropy(logits, together.labels)), rel=1e-5)
    assert result.metric == pytest.approx(float((logits.argmax(1) == together.labels).float().mean()))


def test_evaluation_changes_neither_model_nor_gradient() -> None:
    """Check that an evaluation changes neither `model` nor `gradient`, nor the next gradient."""
    own = learner()
    own.compute_gradient(batch(), **WHERE)
    before = bytes(own.model), bytes(own.gradient)
    own.evaluate([batch(seed=2)])
    assert (bytes(own.model), bytes(own.gradient)) == before
    own.compute_gradient(batch(), **WHERE)
    assert bytes(own.gradient) == before[1]


def test_evaluation_needs_samples() -> None:
    """Check that an evaluation without minibatches raises ValueError."""
    with pytest.raises(ValueError, match="at least one sample"):
        learner().evaluate([])


# --- slots, threads, modules from outside -----------------------------------------------------------------------------


def test_the_slot_is_held_around_computing_alone() -> None:
    """A learner holds a slot while it computes, not while it fetches minibatches."""
    told: list[str] = []

    @contextmanager
    def slot() -> Iterator[None]:
        """Note that a slot is taken and returned."""
        told.append("taken")
        yield
        told.append("returned")

    def batches() -> Iterator[Batch]:
        """Yield two minibatches and note each fetch."""
        for seed in (1, 2):
            told.append("fetch")
            yield batch(seed=seed)

    own = learner()
    own.slot = slot
    own.compute_gradient(batch(), **WHERE)
    assert told == ["taken", "returned"]
    told.clear()
    own.evaluate(batches())
    assert told == ["fetch", "taken", "returned"] * 2


def test_each_computation_has_the_experiments_threads() -> None:
    """Each gradient and evaluation sets torch's number of threads to that of its experiment."""
    own = learner(threads=2)
    torch.set_num_threads(1)
    own.compute_gradient(batch(), **WHERE)
    assert torch.get_num_threads() == 2
    learner(threads=1).evaluate([batch()])
    assert torch.get_num_threads() == 1


class Tied(nn.Module):
    """A model with one weight used twice and one weight frozen."""

    def __init__(self) -> None:
        """Make four layers: the second shares the first one's weight, the third is frozen."""
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.second = nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(8, 8, bias=False)
        self.frozen.weight.requires_grad_(False)
        self.last = nn.Linear(8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the outputs for the first channel of the images."""
        hidden = self.second(self.first(images[:, 0, 0, :]).tanh())
        logits: torch.Tensor = self.last(self.frozen(hidden))
        return logits


def test_a_module_of_ones_own_with_shared_and_frozen_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a user's module with a shared and a frozen weight is torch's, with the shared one once and without the frozen one."""
    own_module = ModuleType("own_models")
    own_module.tied = lambda classes, shape: Tied()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_models", own_module)
    own = learner("own_models:tied", shape=(1, 8, 8))
    assert (own.parameters, own.buffers) == (64 + 90, 0)  # what is frozen is not in the vector
    data = batch(shape=(1, 8, 8))
    own.compute_gradient(data, **WHERE)
    module = learner_module._build_seeded(Training(model="own_models:tied"), 10, (1, 8, 8), seed_=1)
    affine = {name: values[:1] for name, values in AFFINE.items()}
    images = Preparation(affine, memory_format="channels_last")(data.inputs)
    F.cross_entropy(module(images), data.labels).backward()  # type: ignore[no-untyped-call]
    expected = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    assert torch.equal(buffers.tensor(own.gradient), torch.cat([part.reshape(-1) for part in expected]))


# --- what is refused --------------------------------------------------------------------------------------------------


def test_fp16_is_refused_with_its_reason() -> None:
    """Check that building a learner for fp16 raises ConfigError."""
    with pytest.raises(ConfigError, match=r"training\.precision: fp16 needs a GPU .* fp32 or bf16"):
        learner(precision="fp16")


def test_one_sample_and_one_position_are_too_few_for_batchnorm() -> None:
    """A minibatch of one sample that BatchNorm cannot normalise raises ConfigError, two samples do not."""
    own = learner("mobilenet", shape=(1, 8, 8))
    with pytest.raises(ConfigError, match=r"training\.batch_size: worker 2, .* minibatch 1 has 1 sample.*drop_last"):
        own.compute_gradient(batch(1, (1, 8, 8)), **WHERE)
    own.compute_gradient(batch(2, (1, 8, 8)), **WHERE)


def test_what_is_not_finite_names_its_place() -> None:
    """A loss that is not finite raises Refused with worker, epoch, round and minibatch."""
    own = learner()
    buffers.tensor(own.model)[5] = float("inf")
    with pytest.raises(Refused, match="worker 2, epoch 1, round 3, minibatch 1: the loss is nan"):
        own.compute_gradient(batch(), **WHERE)


def test_a_gradient_that_overflows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finite loss with an infinite gradient raises Refused."""

    class Steep(nn.Module):
        """A model with finite outputs and an infinite gradient: the square root at zero."""

        def __init__(self) -> None:
            """Make ten weights of zero."""
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(10))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            """Return the square roots of the weights for each image."""
            return self.weight.sqrt().expand(images.shape[0], 10)

    own_module = ModuleType("own_models")
    own_module.steep = lambda classes, shape: Steep()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_models", own_module)
    with pytest.raises(Refused, match="round 3, minibatch 1: the gradient has values that are not finite"):
        learner("own_models:steep").compute_gradient(batch(), **WHERE)
    own = replace(experiment("own_models:steep"), aggregation=Aggregation(rule="median", non_finite="drop"))
    dropping = Learner(own, classes=10, input_shape=(3, 32, 32), affine=AFFINE)
    dropping.compute_gradient(batch(), **WHERE)  # the peers leave it out
    assert not buffers.tensor(dropping.gradient).isfinite().all()


# --- functions run without numpy --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_learner_works_where_numpy_cannot_be_imported() -> None:
    """Check that gradient, aggregation, update and evaluation work in a process in which numpy cannot be imported."""
    program = f"""
        import sys, warnings
        sys.path.insert(0, {str(__file__.rpartition("/tests/")[0])!r})

        class NoNumpy:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "numpy":
                    raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

        sys.meta_path.insert(0, NoNumpy())
        import torch
        from crossover.algorithms import averaging, buffers, compression, robust
        from crossover.algorithms.updates import step
        from crossover.algorithms.optimizers import Update
        from crossover.experiment import Aggregation, Data, Experiment, Training
        from crossover.learning.batches import Batch, decode_batch, encode_batch
        from crossover.learning.learner import Learner

        settings = Training(model="mobilenet_v3_small", precision="bf16", label_smoothing=0.1)
        experiment = Experiment(name="x", architecture="spirt", training=settings, data=Data(augment="crop_flip"))
        own = Learner(experiment, classes=10, input_shape=(1, 28, 28), affine={{"scale": [0.01], "shift": [0.0]}})
        own.initialise_model()
        raw = Batch(torch.zeros(4, 1, 28, 28, dtype=torch.uint8), torch.arange(4), torch.arange(4))
        own.compute_gradient(decode_batch(encode_batch(raw)), epoch=1, round=0, worker=0, minibatch=0)
        gradients = [buffers.tensor(bytes(own.gradient)) for _ in range(5)]
        model, state = buffers.tensor(own.model), ()
        update = Update(number=1, learning_rate=0.1, momentum=0.9, buffers=own.buffers)
        for combined in (averaging.mean(gradients, [1, 2, 3, 4, 5]), robust.median(gradients),
                         robust.trimmed_mean(gradients, trim=1), robust.krum(gradients, faulty=1)):
            model, state = step(model, combined, state, update)
        robust.attack_vector(gradients[0], attack="gaussian", scale=1.0, generator=compression.make_generator("attack", 1))
        own.model[:] = buffers.view(model)
        print(own.evaluate([raw]).samples, "numpy" in sys.modules)
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["4", "False"]


def test_a_halved_loss_scale_doubles_again_only_after_a_whole_interval_of_finite_gradients() -> None:
    """Check that halving the loss scale starts the count of finite gradients anew."""
    scale = LossScale()
    scale.count_finite()
    scale.halve()
    for _ in range(GROWTH_INTERVAL - 1):
        scale.count_finite()
    assert scale.scale == FIRST_SCALE / 2
    scale.count_finite()
    assert scale.scale == FIRST_SCALE

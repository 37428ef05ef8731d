"""Fine-tuning: a frozen base that every process reads once, and adapters, which alone travel."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
import torch
from moto import mock_aws
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from crossover import runtime, user_code
from crossover.algorithms.schedule import derive_seed
from crossover.cli.plan import plan_as_json
from crossover.errors import ConfigError
from crossover.experiment import Adapters, Data, Exchange, Experiment, Functions, Training, Weights
from crossover.learning.datasets import load as load_dataset
from crossover.learning.learner import Learner
from crossover.learning.staging import Minibatches, plan_staging
from crossover.running.inline import run_inline
from crossover.running.preparing import try_out
from crossover.simulation import AWS, Workload, simulate
from crossover.stores import memory
from crossover.stores.encoding import Vector
from crossover.stores.keys import weights as staged
from crossover.workflow.architecture import architectures
from crossover.workflow.architecture import load as architecture_of
from tests.architectures import zoo
from tests.architectures.harness import Job, small
from tests.architectures.trained import run

EPOCHS, WORKERS, STEPS = 17, 2, 50  # three of an epoch, but for the last
HEAD = "head."
WAYS: dict[str, dict[str, Any]] = {
    "adapters": {"adapters": Adapters(rank=2, alpha=4.0, targets=("body.linear?",)), "trainable": ("head.*",)},
    "head only": {"trainable": ("head.*",)},
    "all": {"trainable": ("*",)},
}


@pytest.fixture
def base(tmp_path: Path) -> Weights:
    """Write a file with the weights below the head of `zoo:transformer`, which differ from those that the run's seed would draw, and return
    its reference.
    """
    torch.manual_seed(7)
    state = zoo.transformer(zoo.CLASSES, ()).state_dict()
    return written(tmp_path / "base.safetensors", {n: v for n, v in state.items() if not n.startswith(HEAD)})


def written(path: Path, tensors: dict[str, Tensor]) -> Weights:
    """Write tensors to a safetensors file, let experiments find files in its folder, and return the reference to it with its SHA-256."""
    save_file(tensors, path)
    user_code.set_folders(Path(zoo.__file__).parent, path.parent)
    return Weights(file=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def tuned(base: Weights, way: str = "adapters", architecture: str = "all-reduce", **training: Any) -> Experiment:
    """Return an experiment that fine-tunes `zoo:transformer` from the base weights. `way`: what is trained, a key of WAYS; `training`:
    further settings.
    """
    settings: dict[str, Any] = {"epochs": EPOCHS, "batch_size": 8, "learning_rate": 0.05, "momentum": 0.9}
    return Experiment(
        name="tuned",
        architecture=architecture,
        workers=1 if architecture_of(architecture).alone else WORKERS,
        training=Training(model="zoo:transformer", weights=base, **{**settings, **WAYS[way], **training}),
        data=Data(dataset="zoo:rows", validation=0.25, preprocess="none"),
        exchange=Exchange(every=1),
        functions=Functions(checkpoint_every=64),
    )


# --- what travels -------------------------------------------------------------------------------------------------------


def forget() -> None:
    """Forget the base weights that this process has read, as if it were a new process."""
    runtime.state().pop("bases", None)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", architectures())
def test_what_is_trained_alone_travels_and_each_process_reads_the_base_once(
    architecture: str, base: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that all vectors exchanged have the size of the trained parameters alone, and that each process reads the base weights once."""
    experiment = tuned(base, architecture=architecture, epochs=2)
    if architecture == "gpu":
        experiment = replace(experiment, gpu=replace(experiment.gpu, instances=WORKERS))
    job = Job(experiment)
    forget()
    sizes, reads = set[int](), list[str]()
    elements, copied, get = Vector.elements, memory._copy_vector, memory.MemoryObjectStore.get

    def seen(vector: Vector) -> int:
        """Record the vector's size in bytes, and return its number of elements."""
        sizes.add(vector.data.nbytes)
        return elements.fget(vector)  # type: ignore[attr-defined,no-any-return]

    def copy(vector: Vector) -> Vector:
        """Record the vector's size in bytes, and return its copy."""
        sizes.add(vector.data.nbytes)
        return copied(vector)

    def read(store: memory.MemoryObjectStore, key: str) -> bytes:
        """Record the key, and return the object."""
        reads.append(key)
        return get(store, key)

    monkeypatch.setattr(Vector, "elements", property(seen))
    monkeypatch.setattr(memory, "_copy_vector", copy)
    monkeypatch.setattr(memory.MemoryObjectStore, "get", read)
    model = run(job)
    learnt = job.prepared.facts["parameters"]
    assert len(model) == 4 * learnt == 4 * (3 * 8 + 3 + 2 * (8 + 16) * 2)
    assert max(sizes) <= 1.05 * 4 * learnt + 1024
    assert 4 * learnt in sizes, "nothing was seen"
    assert reads.count(staged(str(base.sha256))) == 1


# --- what is trained is what torch makes of it --------------------------------------------------------------------------


class Beside(nn.Module):
    """A low-rank adapter beside a frozen linear layer, written independently of the project (Hu et al. 2021)."""

    def __init__(self, layer: nn.Linear) -> None:
        """Add the adapter's two matrices to `layer`; the second is zero."""
        super().__init__()
        self.layer = layer
        self.lora_A, self.lora_B = (
            nn.Linear(layer.in_features, 2, bias=False),
            nn.Linear(2, layer.out_features, bias=False),
        )
        nn.init.zeros_(self.lora_B.weight)

    @property
    def weight(self) -> Tensor:
        """The weight with the LoRA matrices' product added, which torch's fused layer reads."""
        return self.layer.weight + 2.0 * self.lora_B.weight @ self.lora_A.weight

    @property
    def bias(self) -> Tensor:
        """The layer's own bias."""
        return self.layer.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the layer's output plus twice the adapter's."""
        found: Tensor = self.layer(inputs) + 2.0 * self.lora_B(self.lora_A(inputs))
        return found


def plain(experiment: Experiment, path: Path, way: str) -> list[tuple[float, float]]:
    """Train in a plain PyTorch loop that has only minibatches and seeds from this project, and return (training loss, validation loss) of
    each epoch.
    """
    dataset = load_dataset(experiment)
    made = plan_staging(experiment, len(dataset.train_labels))
    minibatches = Minibatches(experiment, dataset, made)
    torch.manual_seed(derive_seed("model", experiment.seed))
    module = zoo.transformer(zoo.CLASSES, ())
    module.load_state_dict(load_file(path), strict=False)
    body: Any = module.body
    if way != "all":
        body.requires_grad_(False)
    if way == "adapters":
        body.linear1, body.linear2 = Beside(body.linear1), Beside(body.linear2)
    optimizer = torch.optim.SGD([each for each in module.parameters() if each.requires_grad], lr=0.05, momentum=0.9)
    losses = []
    for epoch in range(EPOCHS):
        total, numbers = 0.0, range(min(made.minibatches, STEPS - epoch * made.minibatches))
        for number in numbers:
            module.train()
            optimizer.zero_grad()
            for worker in range(WORKERS):
                batch = minibatches.build_minibatch(worker, number)
                torch.manual_seed(derive_seed("dropout", experiment.seed, epoch * made.minibatches + number, worker, 0))
                loss = F.cross_entropy(module(batch.inputs), batch.labels)
                (loss / WORKERS).backward()
                total += float(loss.detach())
            optimizer.step()
        module.eval()
        with torch.no_grad():
            held = float(F.cross_entropy(module(dataset.validation_inputs), dataset.validation_labels))
        losses.append((total / len(numbers) / WORKERS, held))
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_fifty_steps_are_a_plain_loop_of_torch(way: str, base: Weights, tmp_path: Path) -> None:
    """Check the losses of each epoch against a plain PyTorch loop, and that the base weights keep their bits unless all is trained."""
    experiment = tuned(base, way, steps=STEPS)
    found = run_inline(experiment, tmp_path / "out", lambda progress: None).result["epochs"]
    expected = plain(experiment, tmp_path / "base.safetensors", way)
    assert [(each["train_loss"], each["val_loss"]) for each in found] == [
        pytest.approx(each, abs=1e-5) for each in expected
    ]
    before, after = load_file(tmp_path / "base.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    same = [name for name, value in before.items() if torch.equal(value, after[name])]
    assert same == ([] if way == "all" else list(before))


def test_a_base_in_half_precision_stays_so_and_is_loaded_once(base: Weights, tmp_path: Path) -> None:
    """Check that bf16 computes with a base in half precision, whose bits are in the run's model file, and that fp32 refuses it.

    Vectors are stored as float32.
    """
    halves = {name: value.bfloat16() for name, value in load_file(tmp_path / "base.safetensors").items()}
    half = written(tmp_path / "half.safetensors", halves)
    found = run_inline(tuned(half, precision="bf16", epochs=1), tmp_path / "out", lambda progress: None)
    assert found.result["outcome"] == "finished"
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(value.to(after[name].dtype), after[name]) for name, value in halves.items())
    assert {after[name].dtype for name, value in halves.items() if value.ndim > 1} == {torch.bfloat16}
    with pytest.raises(ConfigError, match=r"precision: fp32 cannot compute with body\..* of half\.safetensors"):
        Job(tuned(half))


# --- refused before anything is staged ----------------------------------------------------------------------------------


def changed(base: dict[str, Tensor], **named: Tensor | None) -> dict[str, Tensor]:
    """Return the tensors with some replaced, added or, if None, removed. `named`: by name, with "__" for each dot."""
    found = {**base, **{name.replace("__", "."): value for name, value in named.items()}}
    return {name: value for name, value in found.items() if value is not None}


NAN = torch.full((8,), float("nan"))
BAD: list[tuple[dict[str, Tensor | None], str]] = [
    ({"other": torch.ones(3)}, r"no place for other of bad\.safetensors; it has body\."),
    (
        {"body__linear1__weight": torch.ones(8, 16)},
        r"body\.linear1\.weight is \(8, 16\) torch\.float32 in .*, \(16, 8\)",
    ),
    ({"body__linear1__weight": None}, r"bad\.safetensors lacks body\.linear1\.weight, which would stay as drawn"),
    ({"body__norm1__weight": NAN}, r"body\.norm1\.weight of bad\.safetensors holds NaN"),
]


@pytest.mark.parametrize(("named", "said"), BAD, ids=["name", "shape", "frozen", "nan"])
def test_a_base_that_does_not_fit_is_refused_by_name(
    named: dict[str, Tensor | None], said: str, base: Weights, tmp_path: Path
) -> None:
    """Check that base weights with a tensor too many, too few, or of another form are refused, and that the message names the tensor."""
    tensors = changed(load_file(tmp_path / "base.safetensors"), **named)
    bad = written(tmp_path / "bad.safetensors", tensors)
    with pytest.raises(ConfigError, match=rf"training\.weights.*{said}"):
        Job(tuned(bad))


def test_a_file_that_is_cut_or_another_one_or_nowhere_is_refused(base: Weights, tmp_path: Path) -> None:
    """Check that a file of base weights is refused if it is cut, has no digest in the settings, or does not exist."""
    (cut := tmp_path / "cut.safetensors").write_bytes((tmp_path / "base.safetensors").read_bytes()[:-4])
    digest = hashlib.sha256(cut.read_bytes()).hexdigest()
    with pytest.raises(ConfigError, match=r"cut\.safetensors is no whole safetensors file"):
        Job(tuned(Weights(file=cut.name, sha256=digest)))
    with pytest.raises(ConfigError, match=rf"sha256: is missing; that of cut\.safetensors is {digest}"):
        Job(tuned(Weights(file=cut.name)))
    with pytest.raises(ConfigError, match=r"file: there is no none\.safetensors in the experiment's folder"):
        Job(tuned(Weights(file="none.safetensors", sha256=digest)))
    with pytest.raises(ConfigError, match=r"there is no base\.safetensors in the package zoo_of_nobody"):
        Job(tuned(Weights(file="zoo_of_nobody:base.safetensors", sha256=digest)))


def test_a_base_that_a_function_has_no_room_for_is_refused_with_the_figures(base: Weights, tmp_path: Path) -> None:
    """Check that a run is refused if a function's memory cannot hold the base weights, and that the message contains the sizes."""
    wide = {**load_file(tmp_path / "base.safetensors"), "head.bias": torch.zeros(3)}
    experiment = tuned(written(tmp_path / "wide.safetensors", wide))
    small = replace(experiment, functions=Functions(memory_mb={"default": 256}))
    with pytest.raises(
        ConfigError, match=r"functions\.memory_mb\.\w+: 256 MB have no room for the base of 0 MB, .* 300 of torch"
    ):
        Job(small)


def test_plan_refuses_such_a_function_as_a_run_does(base: Weights) -> None:
    """Check that trying out the user's code refuses a function whose memory cannot hold the base weights."""
    with pytest.raises(ConfigError, match=r"functions\.memory_mb\.\w+: 256 MB have no room for the base"):
        try_out(replace(tuned(base), functions=Functions(memory_mb={"default": 256})))


# --- what a base takes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", architectures())
def test_a_projection_counts_the_base_once_for_each_environment_and_program(architecture: str) -> None:
    """Check that a projection adds the bytes of the base once per cold start that reads it and once per program."""
    experiment = small(architecture)
    without = simulate(experiment, AWS.without_stragglers(), workload=(sizes := Workload.from_experiment(experiment)))
    found = simulate(experiment, AWS.without_stragglers(), workload=replace(sizes, base_bytes=90 * 10**6))
    readers = sum(use.cold for use in found.steps.values() if use.base_bytes)
    if architecture_of(architecture).program is not None:
        readers += experiment.workers
    read = found.traffic["object_store"]["bytes_in"] - without.traffic["object_store"]["bytes_in"]
    assert readers >= experiment.workers
    assert read == readers * 90 * 10**6
    assert found.seconds > without.seconds + 1


def test_plan_says_what_a_base_takes(base: Weights, tmp_path: Path) -> None:
    """Check that the plan as JSON contains the base's bytes, digest and seconds of reading, and None for a run without a base."""
    experiment, size = tuned(base), (tmp_path / "base.safetensors").stat().st_size
    said = plan_as_json(experiment, architecture_of(experiment.architecture), None, None)["base"]
    assert (said["bytes"], said["sha256"]) == (size, base.sha256)
    assert set(said["read_s"]) == {"initialise", "train"} and min(said["read_s"].values()) > 0
    plain = replace(experiment, training=Training(), data=Data())
    assert plan_as_json(plain, architecture_of(plain.architecture), None, None)["base"] is None


def test_a_base_in_s3_is_read_there_and_one_that_is_not_there_is_refused(base: Weights, tmp_path: Path) -> None:
    """Check that a run reads base weights from S3 and keeps their bits, and that a missing object or an address without a key fails."""
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bases")
        client.upload_file(str(tmp_path / "base.safetensors"), "bases", "mine/base.safetensors")
        forget()
        there = replace(base, file="s3://bases/mine/base.safetensors")
        found = run_inline(tuned(there, epochs=1), tmp_path / "out", lambda progress: None)
        with pytest.raises(ConfigError, match=r"s3://bases/other cannot be read"):
            Job(tuned(replace(base, file="s3://bases/other", sha256="0" * 64)))
    with pytest.raises(ConfigError, match=r"s3://bases names no object; expected s3://bucket/key"):
        Job(tuned(replace(base, file="s3://bases", sha256="0" * 64)))
    before, after = load_file(tmp_path / "base.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert found.result["outcome"] == "finished"
    assert all(torch.equal(value, after[name]) for name, value in before.items())


# Of the vectors that a run begins with, seed 1, before there were bases and adapters.
PUBLISHED = {
    "small_cnn": "89588502990eb37ba7f00bdeab822b1025c169ebe78bf679d72c4d9bb4abe71c",
    "squeezenet": "69c25cd0921a80cc6dae14063e0d594710cea8695ffb3c611925039de06597ab",
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_model_that_comes_with_the_project_begins_with_the_bits_it_had(model: str) -> None:
    """Check that the initial bits of each built-in model equal the digests in PUBLISHED."""
    experiment = Experiment(name="plain", architecture="all_reduce", training=Training(model=model))
    ones = {"scale": [1.0] * 3, "shift": [0.0] * 3}
    learner = Learner(experiment, classes=10, input_shape=(3, 32, 32), affine=ones)
    assert hashlib.sha256(learner.initialise_model()).hexdigest() == PUBLISHED[model]


def test_a_record_says_which_base(base: Weights) -> None:
    """Check that an experiment's plain form contains the digest of its base weights."""
    assert json.loads(json.dumps(tuned(base).to_plain()))["training"]["weights"]["sha256"] == base.sha256

"""Data, model, loss and metric of the user's own: what fits is trained on, what does not is told before anything starts."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from crossover.errors import ConfigError, OwnCodeError, UserError
from crossover.experiment import Data, Experiment, Faults, ImageSize, Metric, Training
from crossover.learning.datasets import load
from crossover.learning.learner import Objective
from crossover.learning.samples import Preparation, compute_constants
from crossover.running.preparing import PreparedRun, prepare
from crossover.stores.memory import MemoryObjectStore
from crossover.stores.protocols import Traffic
from tests.unit.own_code.folders import Folders

TASK = """
import torch
from torch import nn
from crossover.learning.datasets import Samples
INPUTS, LABELS = torch.arange(40).remainder(7).float().view(20, 2), torch.arange(20) % 3
def loader(experiment): return Samples({samples})
def factory(classes, input_shape): return {model}
def loss(outputs, labels): return {loss}
def metric(outputs, labels): return {metric}
"""
SUM = """
class Sum(nn.Linear):
    def __init__(self): super().__init__(2, 3)
    def forward(self, tokens): return super().forward(tokens.float())
"""
LOADER, FACTORY, LOSS, METRIC = 6, 7, 8, 9  # their lines
GOOD = {
    "samples": "INPUTS, LABELS, 3",
    "model": "nn.Linear(2, 3)",
    "loss": "nn.functional.cross_entropy(outputs, labels)",
    "metric": "(outputs.argmax(1) == labels).float().mean()",
}
OWN = Training(
    batch_size=4, model="task:factory", loss="task:loss", metric=Metric(name="task:metric", higher_is_better=True)
)
OURS = replace(OWN, loss="cross_entropy", metric=Metric())


def prepared(
    folders: Folders, training: Training, *, data: Data | None = None, faults: Faults | None = None, **parts: str
) -> PreparedRun:
    """Write a task with `parts` of its text replaced, and prepare a run of an experiment that trains it."""
    folders.experiment(task=TASK.format(**{**GOOD, **parts}))
    experiment = Experiment(
        name="own",
        architecture="all-reduce",
        workers=2,
        training=training,
        data=data or Data(dataset="task:loader"),
        faults=faults or Faults(),
    )
    objects = MemoryObjectStore(Traffic())
    return prepare(experiment, objects=objects, data=[objects])


def refused(folders: Folders, training: Training, **parts: str) -> str:
    """Return the message, one line, with which preparing the experiment is refused."""
    with pytest.raises(UserError) as failed:
        prepared(folders, training, **parts)
    said = str(failed.value)
    assert "\n" not in said
    return said


def told(field: str, name: str, line: int) -> str:
    """Return the beginning of a message about a line of the user's task. `field`: field of the experiment; `name`: the function's name."""
    return f"{field}: 'task:{name}': your code, experiment/task.py, line {line}"


def test_model_data_loss_and_metric_may_all_be_user_code(folders: Folders) -> None:
    """An experiment whose model, data, loss and metric are user code is prepared, with the right parameters and input shape."""
    found = prepared(folders, OWN)
    assert found.facts["parameters"] == 9 and found.facts["data_manifest"]["input_shape"] == [2]


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ("INPUTS, LABELS, 2", "labels 0 to 2 for 2 classes; 0 to 1 are expected"),
        ("INPUTS, LABELS - 1, 3", "labels -1 to 1 for 3 classes"),
        ("INPUTS, LABELS[:5], 3", "there are 20 inputs and 5 labels; one label for each input is expected"),
        ("INPUTS, LABELS", "classes is None; cross_entropy needs the number of classes"),
        ("INPUTS, LABELS, 3.0", "classes is 3.0; the number of classes is expected"),
        ("INPUTS, LABELS.float(), 3", "cross_entropy takes classes, torch.int64"),
        ("INPUTS, LABELS.int(), 3", "labels are single values torch.int32; cross_entropy takes classes, torch.int64"),
        ("INPUTS.to(torch.complex64), LABELS, 3", "inputs are torch.complex64; one of torch.uint8,"),
        ("INPUTS[:0], LABELS[:0], 3", "inputs are empty: a tensor of the shape (0, 2)"),
        ("INPUTS[:, :0], LABELS, 3", "inputs have the shape (20, 0)"),
        ("INPUTS.sqrt().sub(1).log(), LABELS, 3", "inputs hold NaN or infinity in"),
        (
            "INPUTS.where(INPUTS != 5, torch.nan), LABELS, 3",
            "inputs hold NaN or infinity in 5 of 20 rows, the first is 2; fill",
        ),
        (
            "[[1.0], [1.0, 2.0]], LABELS, 3",
            "inputs are a list whose rows have 1 to 2 values; tensors of torch.int64 are expected, or one length",
        ),
        ("INPUTS.tolist(), LABELS, 3", "inputs are a list; a torch tensor is expected"),
        ("INPUTS.numpy(), LABELS, 3", "inputs are a ndarray; a torch tensor is expected"),
        ("INPUTS, LABELS, 3, INPUTS[:4]", "of test_inputs and test_labels one is None"),
        ("INPUTS, LABELS, 3, INPUTS[:4, :1], LABELS[:4]", "test_inputs rows of the shape (1) torch.float32"),
        ("INPUTS, LABELS, 3, INPUTS[:4], LABELS[:3]", "of the test split, there are 4 inputs and 3 labels"),
        (
            "INPUTS.to_sparse(), LABELS, 3",
            "inputs are a tensor of the layout torch.sparse_coo; a dense one is expected",
        ),
        ("INPUTS.clone().requires_grad_(), LABELS, 3", "inputs are a part of a graph of gradients; data are expected"),
        ("INPUTS.to('meta'), LABELS, 3", "inputs are on the device meta; a tensor in main memory is expected"),
        ("exit(3)", "ends the program when it is called"),
        ("*open('nowhere')", "FileNotFoundError"),
        ("torch.tensor([[1.0], [1.0, 2.0]]), LABELS, 3", "ValueError: expected sequence of length 1"),
    ],
)
def test_what_is_wrong_with_the_samples_of_a_loader_is_told_as_the_users(
    folders: Folders, samples: str, said: str
) -> None:
    """Samples of a user's loader that cannot be trained on are refused with the loader's line and `said`. `samples`: its result as code."""
    found = refused(folders, OURS, samples=samples)
    assert found.startswith(told("data.dataset", "loader", LOADER)) and said in found


def test_a_loader_that_returns_something_else(folders: Folders) -> None:
    """A loader that returns a tuple is refused with the type that is expected."""
    found = refused(folders, OURS, samples="INPUTS, LABELS, 3) and (INPUTS, LABELS")
    assert "returned a tuple; Samples is expected: `from crossover.learning.datasets import Samples`" in found


@pytest.mark.parametrize(
    ("loss", "samples", "said"),
    [
        (
            "mse",
            "INPUTS, INPUTS.long()",
            "labels are rows of the shape (2) torch.int64; training.loss: mse takes torch.float32 or torch.float64, such as labels.float()",
        ),
        (
            "mse",
            "INPUTS, LABELS",
            "; if they are classes, return Samples(..., classes=3) (in a YAML also training.loss: cross_entropy); if they are numbers, "
            "labels.float()",
        ),
        ("mse", "INPUTS, LABELS.int()", "return Samples(inputs, labels.long(), classes=3) ("),
        ("mse", "INPUTS, LABELS - 1", "torch.float64, such as labels.float()"),
        ("mse", "INPUTS, 1_000 * LABELS", "torch.float64, such as labels.float()"),
        ("bce_with_logits", "INPUTS, INPUTS", "labels lie beyond 0 and 1"),
    ],
)
def test_labels_that_a_loss_of_numbers_cannot_take(folders: Folders, loss: str, samples: str, said: str) -> None:
    """Labels that do not fit a loss of numbers are refused with `said` before the run. `samples`: the loader's result, as code."""
    training = replace(OURS, loss=loss, metric=Metric(name="mean_absolute_error"))
    assert said in refused(folders, training, samples=samples)


@pytest.mark.parametrize(
    ("parts", "training", "field", "line", "said"),
    [
        ({"model": "nn.Linear(3, 3)"}, OURS, "model:factory", FACTORY, "mat1 and mat2 shapes cannot be multiplied"),
        (
            {"samples": "INPUTS.long(), LABELS, 3"},
            OURS,
            "model:factory",
            FACTORY,
            ".float() in the loader makes numbers",
        ),
        (
            {"model": "nn.Linear(2, 4)"},
            OURS,
            "model:factory",
            FACTORY,
            "returned (2, 4) for labels (2,); cross_entropy needs (2, 3)",
        ),
        (
            {"samples": "torch.ones(20, 5, 2), torch.ones(20, 5).long(), 3"},
            OURS,
            "model:factory",
            FACTORY,
            "needs (2, 3, 5), the classes in dimension 1; outputs.transpose(1, -1) has it",
        ),
        (
            {"samples": "INPUTS, INPUTS[:, 0]", "model": "nn.Linear(2, 1)"},
            replace(OURS, loss="mse", metric=Metric(name="mean_absolute_error")),
            "model:factory",
            FACTORY,
            "returned (2, 1) for labels (2,); mse needs the same shape",
        ),
        (
            {"model": "nn.LSTM(2, 3)"},
            OURS,
            "model:factory",
            FACTORY,
            "returned a tuple; cross_entropy and accuracy need one tensor",
        ),
        ({"loss": "1 / 0"}, OWN, "loss:loss", LOSS, "ZeroDivisionError"),
        (
            {"loss": "(outputs[:, 0] - labels) ** 2"},
            OWN,
            "loss:loss",
            LOSS,
            "returned a tensor (2,); one number is expected",
        ),
        (
            {"loss": "float(outputs.detach().sum())"},
            OWN,
            "loss:loss",
            LOSS,
            "the mean over the minibatch is expected, made of the outputs",
        ),
        ({"loss": "outputs.detach().sum()"}, OWN, "loss:loss", LOSS, "made of the outputs by torch"),
        ({"metric": "outputs"}, OWN, "metric.name:metric", METRIC, "returned a tensor (2, 3); one number is expected"),
        ({"metric": "labels.nothing"}, OWN, "metric.name:metric", METRIC, "AttributeError"),
        ({"metric": "None"}, OWN, "metric.name:metric", METRIC, "returned a NoneType"),
        ({"metric": "float('nan')"}, OWN, "metric.name:metric", METRIC, "returned nan for 2 samples; a finite number"),
    ],
)
def test_what_a_model_a_loss_or_a_metric_does_wrongly_is_told_before_the_run(
    folders: Folders, parts: dict[str, str], training: Training, field: str, line: int, said: str
) -> None:
    """A wrong result of a user's model, loss or metric is refused before the run, with its line and `said`. `parts`: code that replaces
    the right one.
    """
    section, _, name = field.partition(":")
    found = refused(folders, training, **parts)
    assert found.startswith(told(f"training.{section}", name, line)) and said in found


IDS = """
class Ids(nn.Module):
    def __init__(self, cast):
        super().__init__()
        self.cast, self.rows, self.out = cast, nn.Embedding(7, 4), nn.Linear(4, 3)
    def forward(self, inputs):
        return self.out(self.rows(self.cast(inputs[:, 0])))
"""


@pytest.mark.parametrize(
    ("cast", "preprocess", "said"),
    [
        (
            "torch.Tensor.long",
            "standardize",
            "normalised by data.preprocess: standardize, columns of ids too; --set data",
        ),
        ("torch.Tensor.long", "none", None),
        ("lambda ids: ids", "standardize", "inputs reach the model as float32, and normalised by"),
        ("lambda ids: ids", "none", "inputs reach the model as float32 (data.preprocess: none leaves"),
    ],
)
def test_ids_that_were_normalised_are_named_as_the_cause(
    folders: Folders, cast: str, preprocess: str, said: str | None
) -> None:
    """A model that takes rows of an embedding by its inputs is refused with how these reach it, and with the setting that leaves them as
    they are. `cast`: function of the user's that makes ids of the inputs; `said`: part of the message, None if the model is right.
    """
    folders.experiment(task=TASK.format(**{**GOOD, "model": f"Ids({cast})"}) + IDS)
    data = Data(dataset="task:loader", preprocess=preprocess)  # type: ignore[arg-type]
    experiment = Experiment(name="own", architecture="all-reduce", workers=2, training=OURS, data=data)
    objects = MemoryObjectStore(Traffic())
    if said is None:
        assert prepare(experiment, objects=objects, data=[objects]).facts["parameters"] == 43
        return
    with pytest.raises(OwnCodeError) as failed:
        prepare(experiment, objects=objects, data=[objects])
    assert said in str(failed.value)


NUMBERS = replace(OURS, loss="mse", metric=Metric(name="mean_absolute_error"))


@pytest.mark.parametrize(
    ("settings", "samples", "said"),
    [
        (
            {"data": Data(dataset="task:loader", augment="crop_flip")},
            None,
            "task:loader has rows of the shape (2) torch.float32",
        ),
        (
            {"training": replace(OURS, image_size=ImageSize(begin=16))},
            None,
            "training.image_size.begin: 16 pixels are for images (C, H, W)",
        ),
        (
            {"training": replace(OURS, model="small_cnn")},
            None,
            "training.model: small_cnn tells classes of images (C, H, W) apart",
        ),
        (
            {"training": NUMBERS, "faults": Faults(attack="label_flip", workers=(1,))},
            "INPUTS, INPUTS",
            "faults.attack: label_flip exchanges classes, and task:loader has none",
        ),
    ],
)
def test_settings_that_make_no_sense_for_the_data_are_refused(
    folders: Folders, settings: dict[str, Any], samples: str | None, said: str
) -> None:
    """Settings that do not fit the data of a user's loader raise ConfigError with `said`, which does not blame user code."""
    with pytest.raises(ConfigError) as failed:
        prepared(folders, settings.pop("training", OURS), **settings, **({"samples": samples} if samples else {}))
    assert said in str(failed.value) and "your code" not in str(failed.value)


def test_numbers_are_preprocessed_by_column_and_tokens_are_left_alone() -> None:
    """Preprocessing scales inputs of floats by column, or by channel, and leaves inputs of whole numbers unchanged."""
    rows = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    tokens = torch.tensor([[1, 2], [3, 4]])
    for inputs, preprocess, expected in (
        (rows, "standardize", torch.tensor([[-1.0, -1.0], [1.0, 1.0]])),
        (rows.double(), "minmax", torch.tensor([[0.0, 0.0], [1.0, 1.0]])),
        (rows, "none", rows),
        (rows[:, 0], "minmax", torch.tensor([0.0, 1.0])),
        (
            rows.view(2, 2, 1).expand(2, 2, 3),
            "standardize",
            torch.tensor([[-1.0, -1.0], [1.0, 1.0]]).view(2, 2, 1).expand(2, 2, 3),
        ),
        (tokens, "standardize", tokens),
        (tokens.int(), "minmax", tokens.int()),
    ):
        scale, shift = compute_constants(inputs, preprocess)
        prepare = Preparation({"scale": scale, "shift": shift}, memory_format="channels_last")
        found, before = prepare(inputs), inputs.clone()
        assert torch.equal(found, expected) and found.dtype == expected.dtype
        assert torch.equal(prepare(inputs).add_(1), expected + 1) and torch.equal(inputs, before)


def test_losses_and_metrics_against_their_definitions() -> None:
    """`Objective` computes cross-entropy with label smoothing, accuracy, squared and absolute errors, and binary classification as
    defined; labels of -100 are not counted.
    """
    classes = Objective(Training(label_smoothing=0.1))
    outputs, labels = torch.randn(6, 3, 5), torch.randint(3, (6, 5))
    labels[0, 1:] = -100  # no answer is asked for
    assert torch.equal(
        classes.compute_loss(outputs, labels), torch.nn.CrossEntropyLoss(label_smoothing=0.1)(outputs, labels)
    )
    loss, answers, metric, counted = classes.score(outputs, labels)
    answered = labels != -100
    assert answers == counted == int(answered.sum()) == 26
    assert metric == int((outputs.argmax(1) == labels)[answered].sum())
    assert loss == pytest.approx(26 * float(torch.nn.CrossEntropyLoss()(outputs, labels)))
    numbers = Objective(Training(loss="mse", metric=Metric(name="mean_absolute_error")))
    assert numbers.score(torch.tensor([[1.0], [4.0]]), torch.tensor([[2.0], [1.0]])) == (10.0, 2, 4.0, 2)
    yes = Objective(Training(loss="bce_with_logits"))
    assert yes.score(torch.tensor([-1.0, 2.0, 3.0, 4.0]), torch.tensor([0.0, 1.0, 0.0, 1.0]))[2:] == (3, 4)


def test_what_is_tried_out_is_told_with_what_becomes_of_the_inputs(folders: Folders) -> None:
    """Trying an experiment out returns a sentence about parameters, samples, inputs and labels, and the same facts about the data as a
    dict.
    """
    from crossover.running.preparing import try_out

    folders.experiment(task=TASK.format(**{**GOOD, "samples": "INPUTS.long(), LABELS, 3", "model": "Sum()"}) + SUM)
    data = Data(dataset="task:loader")
    own = Experiment(name="own", architecture="all-reduce", workers=2, training=OWN, data=data)
    found, data = try_out(own)
    assert data is not None and (data["rows"], data["label"]["kind"], data["label"]["classes"]) == (20, "classes", 3)
    assert found is not None and found.endswith(
        "9 parameters; 16 samples to train on, 4 to validate; inputs: rows of the shape (2) torch.int64, as they are: whole "
        "numbers, so names; labels: single values torch.int64, 3 classes"
    )


def test_what_is_tried_out_takes_every_size_that_images_grow_to(folders: Folders) -> None:
    """A model is tried with every image size of training: one that takes 16 and 24 pixels, but not 20, is refused if 20 is a size."""
    model = "nn.Sequential(nn.PixelUnshuffle(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 3))"
    images = {"samples": "torch.rand(20, 3, 32, 32), LABELS, 3", "model": model}
    prepared(folders, replace(OURS, image_size=ImageSize(begin=16)), **images)
    with pytest.raises(OwnCodeError, match=r"(?s)training\.model: .*divisible"):
        prepared(folders, replace(OURS, image_size=ImageSize(begin=16, step=4)), **images)


def test_torchs_own_dropout_is_drawn_anew_for_each_minibatch_and_the_same_everywhere(folders: Folders) -> None:
    """PyTorch's dropout in a user's model is the same for the same minibatch, whatever was drawn before, and another for another
    minibatch.
    """
    from crossover.learning.learner import Learner
    from crossover.learning.staging import take_first_samples

    found = prepared(folders, OURS, model="nn.Sequential(nn.Linear(2, 64), nn.Dropout(0.5), nn.Linear(64, 3))")
    dataset, manifest = load(found.experiment), found.facts["data_manifest"]
    batch = take_first_samples(dataset)

    def gradient(minibatch: int) -> bytes:
        """Return the bytes of a minibatch's gradient by a new learner, after another use of PyTorch's random numbers."""
        learner = Learner(found.experiment, classes=3, input_shape=(2,), affine=manifest["affine"])
        learner.initialise_model()
        torch.rand(7)
        learner.compute_gradient(batch, epoch=1, round=0, worker=0, minibatch=minibatch)
        return bytes(learner.gradient)

    assert gradient(0) == gradient(0) != gradient(1)

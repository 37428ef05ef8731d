"""torch.compile and DataParallel around a model: what is trained and saved is the plain module, and it is said."""

import pytest

from crossover import runtime, user_code
from crossover.errors import OwnCodeError
from crossover.experiment import Data, Experiment, Training
from crossover.learning import batches
from crossover.learning.datasets import load
from crossover.learning.learner import Learner, encode_model
from crossover.learning.samples import UNMAPPED
from crossover.learning.staging import take_first_samples
from crossover.stores.encoding import Vector, VectorKind
from tests.unit.own_code.folders import Folders

TASK = """
import numpy, torch
from torch import nn
from crossover.learning.datasets import Samples

def rows(experiment):
    return Samples(torch.arange(40).remainder(7).float().view(20, 2), torch.arange(20) % 3, {classes})

def plain():
    return nn.Sequential(nn.Linear(2, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 3)))

def in_place(module, **options):
    module.compile(**options)
    return module

class Decorated(nn.Sequential):
    @torch.compile(dynamic=True)
    def forward(self, inputs):
        return super().forward(inputs)

class Optimized(nn.Module):
    def __init__(self, module):
        super().__init__()
        self._orig_mod = module
    def forward(self, inputs):
        return self._orig_mod(inputs)
Optimized.__name__ = "OptimizedModule"

def network(classes, input_shape):
    return {model}
"""
PLAIN = ["0.weight", "0.bias", "1.1.weight", "1.1.bias"]
COMPILED = "torch.compile is left out: functions have no compiler"


def trained(folders: Folders, model: str, classes: str = "3") -> tuple[bytes, list[str]]:
    """Return the bytes of a gradient of the user's model and the names of the tensors in its saved file. `classes`: Python expression of
    the number of classes.
    """
    folders.experiment(task=TASK.format(model=model, classes=classes))
    own = Experiment(
        name="own",
        architecture="single",
        workers=1,
        training=Training(model="task:network", batch_size=4, threads=1),
        data=Data(dataset="task:rows"),
    )
    dataset = load(own)
    assert type(dataset.classes) is int
    learner = Learner(own, classes=dataset.classes, input_shape=(2,), affine=UNMAPPED)
    learner.try_out(take_first_samples(dataset))
    manifest = {"classes": dataset.classes, "input_shape": [2]}
    file = encode_model(own, manifest, Vector(VectorKind.MODEL, learner.model))
    return bytes(learner.gradient), list(batches.decode_tensors(file)[0])


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("torch.compile(plain())", COMPILED),
        ("torch.compile(plain(), backend='eager')", COMPILED),
        ("nn.Sequential(plain()[0], torch.compile(plain()[1]))", COMPILED),
        ("in_place(plain())", COMPILED),
        ("in_place(plain(), backend='eager')", COMPILED),
        ("Decorated(*plain())", COMPILED),
        ("Optimized(plain())", "OptimizedModule is left out"),
        ("nn.DataParallel(plain())", "DataParallel is left out: the module within is trained"),
        ("nn.Sequential(plain()[0], nn.DataParallel(plain()[1]))", "DataParallel is left out"),
        ("nn.DataParallel(torch.compile(plain()))", "DataParallel is left out"),
    ],
)
def test_wrappers_are_left_out_and_said(
    folders: Folders, capsys: pytest.CaptureFixture[str], model: str, said: str
) -> None:
    """Wrappers around a user's model, such as DataParallel, are left out: training is as without them, and a note on stderr, once, has
    the line.
    """
    runtime.get_or_make("notes on own code", set[str]).clear()  # each note is said once in a process
    plain = trained(folders, "plain()" if "plain()[" not in model else "nn.Sequential(plain()[0], plain()[1])")
    user_code.set_folders()  # forgets the module
    user_code.set_folders(folders.root / "experiment", folders.root)
    assert trained(folders, model) == plain
    assert plain[1] == PLAIN
    said_lines = [line for line in capsys.readouterr().err.splitlines() if said in line]
    assert said_lines and all(line.startswith("note: your code, experiment/task.py, line ") for line in said_lines)
    assert len(set(said_lines)) == len(said_lines)


@pytest.mark.parametrize(
    "classes", ["numpy.int64(3)", "numpy.uint8(3)", "torch.tensor(3)", "torch.tensor([3])", "numpy.array(3)"]
)
def test_classes_of_numpy_and_torch_are_whole_numbers_too(folders: Folders, classes: str) -> None:
    """A number of classes of a NumPy or torch type is accepted; the model is the same."""
    assert trained(folders, "plain()", classes)[1] == PLAIN


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ("True", "classes is True; the number of classes is expected"),
        ("3.0", r"classes is 3\.0; the number of classes is expected, such as int\(3\.0\) makes"),
        ("'3'", "classes is '3'"),
        ("torch.tensor([3, 3])", r"classes is tensor\(\[3, 3\]\)"),
    ],
)
def test_what_is_no_number_of_classes_is_refused(folders: Folders, classes: str, said: str) -> None:
    """A loader's number of classes that is not a whole number is refused with `said`."""
    with pytest.raises(OwnCodeError, match=said):
        trained(folders, "plain()", classes)

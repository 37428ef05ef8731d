"""What a factory of one's own may return."""

import pytest

from crossover.errors import OwnCodeError
from crossover.learning import zoo
from tests.unit.own_code.folders import Folders

HEAD = "import itertools\nimport torch\nfrom torch import nn\ncount = itertools.count(1)\n\n\n"


def test_a_module_with_parameters_is_built(folders: Folders) -> None:
    """A subclass of a PyTorch layer can be the factory, called with the number of classes and the input shape."""
    net = "class Net(nn.Linear):\n    def __init__(self, classes, shape):\n        super().__init__(shape[0], classes)"
    folders.experiment(task=HEAD + net)
    assert zoo.find_factory("task:Net")(3, (5,)).weight.shape == (3, 5)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('width')", r"line 8, in factory: KeyError: 'width'"),
        ("return torch.nn.functional.linear(torch.ones(2, 3), torch.ones(2, 4))", "line 8, in factory: RuntimeError: "),
        ("return nn.Linear", "line 7: returned a type; a torch.nn.Module is expected"),
        ("return nn.ReLU()", "line 7: returned a module without parameters: there is nothing to train"),
        ("return nn.Linear(3, 2, dtype=torch.complex64)", "line 7: returned a module whose weight is torch.complex64"),
        ("return nn.Linear(3, 2, device='meta')", "line 7: returned a module whose weight is on the device meta"),
        ("m = nn.Linear(3, 2); m.bias.data[0] = torch.nan; return m", "line 7: returned a module whose bias holds NaN"),
        ("return nn.Sequential(nn.Linear(3, 2), nn.SyncBatchNorm(2))", r"line 7: .* SyncBatchNorm \(1\), which needs"),
        ("return nn.LazyLinear(2)", "line 7: returned a module whose weight gets its shape from the first input"),
    ],
)
def test_what_cannot_be_trained_names_the_line(body: str, said: str, folders: Folders) -> None:
    """A factory that returns something untrainable raises OwnCodeError with `said`, the line and the cause. `body`: the factory's code."""
    folders.experiment(task=f"{HEAD}def factory(classes, shape):\n    {body}\n")
    with pytest.raises(OwnCodeError, match=f"training.model: 'task:factory': your code, experiment/task.py, {said}"):
        zoo.find_factory("task:factory")(2, (3,))


def test_another_shape_at_the_second_call_is_refused(folders: Folders) -> None:
    """A user's factory that returns a model of another shape in its second call raises OwnCodeError with the line and both shapes."""
    folders.experiment(task=f"{HEAD}def factory(classes, shape):\n    return nn.Linear(3, next(count))\n")
    zoo.find_factory("task:factory")(2, (3,))
    with pytest.raises(
        OwnCodeError, match=r"line 7: returned another shape when called again: weight \(1, 3\), then weight \(2, 3\)"
    ):
        zoo.find_factory("task:factory")(2, (3,))

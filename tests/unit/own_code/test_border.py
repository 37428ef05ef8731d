"""Nothing that the user's code changes of the process stays, and what it prints is no answer of ours."""

import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from crossover import bundling, user_code
from crossover.errors import OwnCodeError
from crossover.experiment import Data, Experiment, Metric, Training
from crossover.learning import fitness
from crossover.learning.datasets import load
from crossover.learning.learner import learner_for
from crossover.learning.staging import take_first_samples
from tests.unit.own_code.folders import Folders

DIRTY = """
import io, os, sys, tempfile, warnings
import torch
from torch import nn
from crossover.learning.datasets import Samples

def soil(where):
    print("soiled by", where)
    sys.stdout.write(f"written by {where}\\n")
    os.chdir(tempfile.gettempdir())
    warnings.simplefilter("error")
    warnings.showwarning = None
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("cpu")
    torch.set_grad_enabled(False)
    torch.set_num_threads(torch.get_num_threads() + 3)
    sys.stdout = io.StringIO()

soil("import")

def rows(experiment):
    inputs = torch.arange(40).remainder(7).float().view(20, 2)
    soil("loader")
    return Samples(inputs, torch.arange(20) % 3, 3)

class Net(nn.Linear):
    def forward(self, inputs):
        found = super().forward(inputs)
        soil("forward")
        return found

    def train(self, mode=True):
        soil("train")
        return super().train(mode)

    def state_dict(self, *given, **named):
        soil("state_dict")
        return super().state_dict(*given, **named)

def network(classes, input_shape):
    found = Net(input_shape[0], classes, dtype=torch.float32)
    soil("factory")
    return found

def loss(outputs, labels):
    found = nn.functional.cross_entropy(outputs, labels)
    soil("loss")
    return found

def metric(outputs, labels):
    soil("metric")
    return (outputs.argmax(1) == labels).float().mean()
"""
OWN = Experiment(
    name="dirty",
    architecture="single",
    workers=1,
    training=Training(
        model="dirty:network",
        loss="dirty:loss",
        metric=Metric(name="dirty:metric", higher_is_better=True),
        batch_size=4,
        threads=1,
    ),
    data=Data(dataset="dirty:rows"),
)


def process() -> tuple[object, ...]:
    """Return the state of this process that user code may change."""
    torch_has = torch.get_default_dtype(), torch.empty(0).device, torch.is_grad_enabled(), torch.get_num_threads()
    return (
        os.getcwd(), id(sys.stdout), list(warnings.filters), warnings.showwarning, torch.compile, *torch_has
    )  # fmt: skip


@contextmanager
def clean(where: str, capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Check that user code in the block has left this process as it was: nothing on standard output, its prints on standard error.
    `where`: the name that it prints.
    """
    before = process()
    yield
    assert process() == before
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"soiled by {where}\nwritten by {where}\n" in printed.err


def test_a_module_that_soils_everything_leaves_everything_clean(
    folders: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    """Process-wide settings that a user's module changes (folder, default types, printing) are as before after each call into it."""
    folders.experiment(dirty=DIRTY)
    torch.set_num_threads(1)  # as the experiment has it
    with clean("import", capsys):
        bundling.check_user_code(OWN)
    with clean("loader", capsys):
        dataset = load(OWN)
    batch = take_first_samples(dataset)
    with clean("factory", capsys):
        learner = learner_for(OWN, dataset)
        learner.initialise_model()
    with clean("forward", capsys):
        fitness.measure_model(OWN.training, classes=3, sample=dataset.train_inputs[0])
    with clean("loss", capsys):
        loss = learner.compute_gradient(batch, epoch=1, round=0, worker=0, minibatch=0)
    assert loss > 0 and any(learner.gradient)
    with clean("metric", capsys):
        learner.evaluate([batch])
    with clean("state_dict", capsys):
        learner.try_out(batch)


def test_several_threads_are_within_at_once(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    """User code in one thread, isolated, changes neither the process's settings nor the printing of another thread, inside isolation or
    outside.
    """
    folders.experiment(dirty=DIRTY)
    before, inside, go_on = process(), threading.Event(), threading.Event()

    def theirs() -> None:
        """Run user code in isolation until the test lets it go on, and print a word."""
        with user_code.isolate():
            user_code.load("dirty:soil", field="training.model")("a thread")
            inside.set()
            go_on.wait()
            print("theirs")

    thread = threading.Thread(target=theirs)
    thread.start()
    inside.wait()
    with user_code.isolate():
        print("ours behind the border")
    assert os.getcwd() == before[0]
    print("ours")
    go_on.set()
    thread.join()
    assert process() == before
    printed = capsys.readouterr()
    assert printed.out == "ours\n"
    assert {"theirs", "ours behind the border", "soiled by a thread"} <= set(printed.err.splitlines())


def test_what_fails_within_leaves_nothing_either(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    """A user's module that changes process-wide settings and then fails at import leaves them as before."""
    folders.experiment(dirty=DIRTY + "\nraise ValueError('no')")
    with clean("import", capsys), pytest.raises(OwnCodeError, match=r"experiment/dirty\.py, line \d+: ValueError: no"):
        user_code.load("dirty:network", field="training.model")


def test_torch_that_comes_by_the_users_import_is_clean_too(tmp_path: Path) -> None:
    """PyTorch that a user's module imports first, and changes, has its usual settings when the isolated import has ended."""
    (tmp_path / "dirty.py").write_text(DIRTY)
    code = (
        "import sys, crossover.user_code as own\n"
        f"own.set_folders({str(tmp_path)!r})\n"
        "assert 'torch' not in sys.modules\n"
        "with own.isolate():\n    import dirty\n"
        "import torch\n"
        "print(torch.get_default_dtype(), torch.is_grad_enabled(), torch.empty(0).device, torch.compile.__name__)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert ended.stdout == "torch.float32 True cpu compile\n", ended


FILE = """
name: dirty
architecture: single
workers: 1
training:
  model: dirty:network
  loss: dirty:loss
  metric: {name: dirty:metric, higher_is_better: true}
  batch_size: 4
  epochs: 1
data:
  dataset: dirty:rows
"""
LOUD = """
import atexit, os, subprocess, sys, threading
def everywhere():
    print("by print")
    os.write(1, b"by the system\\n")
    subprocess.run(["echo", "by a child"], check=True)
    sys.__stdout__.write("by another name\\n")
    thread = threading.Thread(target=print, args=("by a thread",))
    thread.start()
    thread.join()
everywhere()
atexit.register(everywhere)
"""


def crossover(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in the folder and return the result, whatever its exit status."""
    command = [sys.executable, "-m", "crossover.cli", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_json_stays_json_however_the_users_code_prints(tmp_path: Path) -> None:
    """`crossover plan --json` prints only JSON on stdout; what user code prints, in any way, goes to stderr."""
    (tmp_path / "dirty.py").write_text(LOUD + DIRTY)
    (tmp_path / "dirty.yaml").write_text(FILE)
    ended = crossover(tmp_path, "plan", "dirty.yaml", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["name"] == "dirty"
    for way in ("print", "the system", "a child", "another name", "a thread"):
        assert ended.stderr.count(f"by {way}\n") >= 2


def test_results_are_where_they_were_asked_for(tmp_path: Path) -> None:
    """A relative `--out` is relative to the folder of the command, although user code changes the current folder."""
    (tmp_path / "dirty.py").write_text(DIRTY)
    (tmp_path / "dirty.yaml").write_text(FILE)
    ended = crossover(tmp_path, "run", "dirty.yaml", "--on", "inline", "--out", "o")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "o" / "result.json").is_file() and (tmp_path / "o" / "report.html").is_file()
    assert "report: o/report.html" in ended.stdout and "soiled" not in ended.stdout

"""A model and a data set of one's own, beside the experiment's file: trained without an edit of this project."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crossover import user_code, validation
from crossover.errors import CrossoverError
from crossover.experiment import Experiment
from crossover.local import cloud
from crossover.running import deployed, inline, preparing, resume
from stacks.synthesis import synthesize
from tests.commands import status

TASK = '''
from pathlib import Path

import torch
from crossover.learning.datasets import Samples
from parts import layers


def factory(classes, shape):
    import late  # bundled as well

    return layers.network(shape[-1], late.WIDTH, classes)


def load(experiment):
    """Read here; functions get what is staged, not the file."""
    lines = Path(__file__).with_name("table.csv").read_text().splitlines()
    rows = torch.tensor([[float(value) for value in line.split(",")] for line in lines])
    return Samples(rows[:, None, None, :-1].contiguous(), rows[:, -1].long(), 2)
'''
LAYERS = """
from torch import nn
from .names.space import activation


class Network(nn.Module):
    def __init__(self, columns, width, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(columns, width), activation(), nn.Linear(width, classes))

    def forward(self, rows):
        return self.body(rows)


def network(columns, width, classes):
    print("building")
    return Network(columns, width, classes)
"""
CONFIG = """
name: own
architecture: {architecture}
workers: 2
training: {{model: "mytask:factory", epochs: 2, batch_size: 8, learning_rate: 0.05, memory_format: contiguous}}
data: {{dataset: "mytask:load", validation: 0.25}}
"""
FILES = {"mytask.py", "late.py", "parts/__init__.py", "parts/layers.py", "parts/names/space.py"}


def write(folder: Path, *, architecture: str = "all_reduce", **changed: str) -> Path:
    """Write an experiment with modules of the user's own, and return the experiment's path. `changed`: texts of modules that differ, by
    name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f"{x / 64},{(x * 7 % 64) / 64},{(x * 13 % 64) / 64},{int(x > 31)}" for x in range(64)]
    texts = {
        "mytask.py": TASK,
        "late.py": "WIDTH = 5\n",
        "parts/__init__.py": "",
        "parts/layers.py": LAYERS,
        "parts/names/space.py": "from torch.nn import ReLU as activation\n",  # a folder without __init__.py
        "table.csv": "\n".join(rows),
        "unrelated.py": "raise RuntimeError('nobody imports this')\n",
        "own.yaml": CONFIG.format(architecture=architecture),
    } | {f"{name}.py": text for name, text in changed.items()}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "own.yaml"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Reset the folders of user code after each test."""
    yield
    user_code.set_folders()


def crossover(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the installed `crossover` command in the folder, without PYTHONPATH, and return the ended process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(Path(sys.executable).parent / "crossover"), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("on", ["inline", "local"])
def test_a_run_by_the_command_line(on: str, tmp_path: Path) -> None:
    """Check that the installed command runs an experiment with the user's own modules and projects it on AWS, and that the result contains
    no path of this machine.
    """
    write(tmp_path / "study")
    done = crossover("run", "study/own.yaml", "--on", on, "--out", "out", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out" / "projection.json").exists(), done.stdout
    assert str(tmp_path) not in (tmp_path / "out" / "result.json").read_text()


@pytest.mark.slow
def test_functions_zips_hold_what_computing_needs_and_nothing_else(tmp_path: Path) -> None:
    """Check that the bundles of computing functions contain exactly the user's files that the experiment needs."""
    experiment = validation.load(write(tmp_path / "study"))
    folders = bundles(experiment, tmp_path / "assembly")
    computing = [files for files in folders if "mytask.py" in files]
    assert len(folders) > 0 and computing
    for files in computing:
        ours = {name for name in files if name.split("/")[0] not in ("crossover", "functions")}
        assert ours == FILES
        assert {"crossover/learning/datasets.py", "crossover/user_code.py"} <= files


def bundles(experiment: Experiment, out: Path) -> list[set[str]]:
    """Synthesize the experiment into `out`, and return the names of the files in each of the assembly's code assets."""
    synthesize(experiment, out)
    assets = [each.path for each in cloud.read_assembly(out)[1] if each.zipped and each.path.is_dir()]
    return [{path.relative_to(each).as_posix() for path in each.rglob("*") if path.is_file()} for each in assets]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["p2p_instance", "gpu"])
def test_bundles_of_programs_contain_own_modules(architecture: str, tmp_path: Path) -> None:
    """Check that the bundle of the instances' program contains the user's files."""
    experiment = validation.load(write(tmp_path / "study", architecture=architecture), ["workers=4"])
    assert any(files >= FILES for files in bundles(experiment, tmp_path / "assembly"))


@pytest.mark.slow
def test_container_images_contain_own_modules(tmp_path: Path) -> None:
    """Check that the folder of the container image contains the user's files."""
    config = write(tmp_path / "study")
    experiment = validation.load(config, ["functions.packaging=image"])
    synthesize(experiment, tmp_path / "assembly")
    assert list((tmp_path / "assembly").glob("asset.*/code/parts/names/space.py"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import numpy\n",
            r"mytask.py, line 1: imports numpy, .*they import this file with the model; .* move the import into",
        ),
        ("import sortedcontainers\n", r"written in Python alone: with a copy of sortedcontainers beside mytask.py"),
        ("import yaml._yaml\n", r"it is compiled, and neither layer nor image can carry it"),
        ("import stacks\n", r"imports stacks, which functions have not"),
    ],
)
def test_what_cannot_travel_is_named_with_what_would_help(text: str, said: str, tmp_path: Path) -> None:
    """Check that synthesis refuses user code that functions could not import, and that the message says what would help."""
    experiment = validation.load(write(tmp_path / "study", mytask=text))
    with pytest.raises(CrossoverError, match=said):
        synthesize(experiment, tmp_path / "assembly")


@pytest.mark.slow
@pytest.mark.parametrize("on", ["inline", "local"])
def test_an_error_of_own_code_in_training_is_reported_as_the_users(on: str, tmp_path: Path) -> None:
    """Check that an error in the user's model during training ends the run with the file and line of the user's code, and exit code 2."""
    later = "assert not self.training or next(calls) < 5, 'not like this'\n        return self.body(rows)"
    failing = LAYERS.replace("return self.body(rows)", later)
    config = write(tmp_path / "study", **{"parts/layers": f"import itertools{failing}\n\ncalls = itertools.count()\n"})
    run = deployed.run_local if on == "local" else inline.run_inline
    with pytest.raises(
        CrossoverError, match=r"your code, .*parts/layers.py, line 12, in forward: AssertionError"
    ) as failed:
        run(validation.load(config), tmp_path / "out", lambda progress: None)
    assert failed.value.exit_code == 2


@pytest.mark.slow
def test_a_package_copied_beside_the_module_travels(tmp_path: Path) -> None:
    """Check that a third-party package which lies beside the user's module is bundled with it."""
    import sortedcontainers

    config = write(
        tmp_path / "study", late="from sortedcontainers import SortedList\n\nWIDTH = len(SortedList(range(5)))\n"
    )
    shutil.copytree(Path(sortedcontainers.__file__).parent, tmp_path / "study" / "sortedcontainers")
    computing = [files for files in bundles(validation.load(config), tmp_path / "assembly") if "mytask.py" in files]
    assert all("sortedcontainers/sortedlist.py" in files for files in computing)


@pytest.mark.parametrize("command", ["plan", "doctor"])
def test_plan_and_doctor_say_what_was_found(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that `plan` and `doctor` print the parameters of the user's model and the samples of the user's data."""
    config = write(tmp_path / "study")
    status(command, str(config))
    found = (
        "your code: mytask:load, mytask:factory: 32 parameters; 48 samples to train on, 16 to validate; inputs: rows of"
    )
    assert found in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("setting", ["exchange.every=7", "training.batch_size=40"])
def test_plan_refuses_what_the_loaded_data_is_too_small_for(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that `plan` refuses a setting for which the user's data has too few samples."""
    assert status("plan", str(write(tmp_path / "study")), "--set", setting) == 2
    assert f"{setting.replace('=', ': ')} is " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "doctor", "run"])
def test_every_command_reports_a_fault_of_own_code_as_the_users(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that each command reports an error at the import of user code with its file and line, without a traceback."""
    config = write(tmp_path / "study", late="WIDTH = None.width\n")
    assert status(command, str(config)) == 2
    told = capsys.readouterr().err
    assert "training.model: 'mytask:factory': your code, " in told and "late.py, line 1: AttributeError" in told
    assert "fault of Crossover" not in told and "Traceback" not in told


def test_a_run_is_not_resumed_with_other_own_code(tmp_path: Path) -> None:
    """Check that resuming is refused if a file that the user's code imports has changed, and not if another file has."""
    experiment = validation.load(write(tmp_path / "study"))
    began = {"run": "r", "code": preparing.digest_code(experiment)}
    write(tmp_path / "study", unrelated="x = 1\n")
    resume.check_code(began, preparing.digest_code(experiment))
    write(tmp_path / "study", late="WIDTH = 6\n")
    with pytest.raises(CrossoverError, match=r"other code: late\.py is changed"):
        resume.check_code(began, preparing.digest_code(experiment))

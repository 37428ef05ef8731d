"""An architecture in a package of one's own, beside the experiment's file: what this project's have, it has."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crossover import user_code, validation
from crossover.errors import ConfigError, CrossoverError
from crossover.running import deployed, inline, preparing, resume
from stacks.synthesis import synthesize
from tests.architectures.test_own_code import bundles
from tests.commands import status

MINE = """
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

from crossover.workflow.architecture import Architecture
from crossover.training import long_worker, synchronous
from crossover.workflow import step
from functions.all_reduce import AllReduce
from my_package.names import NAME


@dataclass(frozen=True, kw_only=True)
class Settings:
    factor: Annotated[float, Gt(0)] = 1.0


@step(torch=True, uses={"tensors"})
def initialise(ctx, event):
    return long_worker.start(ctx, event, AllReduce())


@step(torch=True, uses={"tensors"}, waits=True)
def train(ctx, event):
    from my_package.arithmetic import Scaled

    return synchronous.train(ctx, event, Scaled(ctx.experiment.settings(Settings).factor))


@step(uses={"tensors"})
def collect(ctx, event):
    long_worker.collect(ctx, event, AllReduce())


ARCHITECTURE = Architecture(NAME, run=long_worker.tree(initialise, train, collect), tensor_hosts="shared", settings=Settings)
"""
ARITHMETIC = """
import torch

from functions.all_reduce import AllReduce


class Scaled(AllReduce):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def exchange(self, group, own, out):
        super().exchange(group, torch.mul(own, self.factor), out)
"""
CONFIG = """
name: own
architecture: my_package.mine
workers: 2
training: {epochs: 2, batch_size: 12}
exchange: {every: 1}
data: {limit: 40, validation: 0.02}
mine: {factor: 0.5}
"""
FILES = {f"my_package/{name}.py" for name in ("__init__", "mine", "names", "arithmetic")}


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Yield a function that writes an experiment and the modules of `my_package`, and returns the experiment's path. `changed`: texts of
    modules that differ, by name.
    """

    def write(architecture: str = "my_package.mine", **changed: str) -> Path:
        """Write the modules and the experiment, and forget the modules that were loaded from another folder."""
        texts = {"__init__": "", "names": 'NAME = "mine"\n', "mine": MINE, "arithmetic": ARITHMETIC, **changed}
        (tmp_path / "study" / "my_package").mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (tmp_path / "study" / "my_package" / f"{name}.py").write_text(text)
        (tmp_path / "study" / "own.yaml").write_text(CONFIG.replace("my_package.mine", architecture))
        user_code.set_folders()
        return tmp_path / "study" / "own.yaml"

    yield write
    user_code.set_folders()


@pytest.mark.slow
def test_an_own_architecture_trains_the_same_bits_in_one_process_and_on_the_cloud(
    config: Callable[..., Path], tmp_path: Path
) -> None:
    """Check that a user's architecture ends with the same bits inline and on the local cloud, and that its settings count."""
    found = {}
    for name, factor in (("inline", 0.5), ("local", 0.5), ("whole", 1.0)):
        run = deployed.run_local if name == "local" else inline.run_inline
        run(validation.load(config(), [f"mine.factor={factor}"]), tmp_path / name, lambda progress: None)
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert result["experiment"]["mine"] == {"factor": factor} and result["incomplete"] == []
        found[name] = result["final"]["parameters_sha256"]
    assert found["inline"] == found["local"] != found["whole"]


@pytest.mark.slow
def test_every_function_holds_its_files(config: Callable[..., Path], tmp_path: Path) -> None:
    """Check that the files of one's own architecture are in every function's zip, also of functions that do not compute.

    They need them too, because the step is in the module with ARCHITECTURE.
    """
    folders = bundles(validation.load(config()), tmp_path / "assembly")
    holding = [files for files in folders if files & FILES]
    assert len(holding) == 2  # one with torch, one without: functions share a zip
    assert all(files >= FILES for files in holding)
    assert all("functions/all_reduce.py" in files for files in holding)
    assert {"crossover/algorithms/averaging.py" in files for files in holding} == {True, False}


def test_a_run_is_not_resumed_with_another_state_of_it(config: Callable[..., Path]) -> None:
    """Check that resuming is refused if a file of the user's architecture has changed since the start."""
    experiment = validation.load(config())
    began = {"run": "r", "code": preparing.digest_code(experiment)}
    assert "functions/all_reduce.py" in began["code"]["files"]  # which its files import
    resume.check_code(began, preparing.digest_code(experiment))
    experiment = validation.load(config(arithmetic=ARITHMETIC.replace("torch.mul", "torch.div")))
    with pytest.raises(CrossoverError, match=r"other code: my_package/arithmetic\.py is changed"):
        resume.check_code(began, preparing.digest_code(experiment))


def test_plan_says_what_would_be_made(config: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Check that `plan` lists the state machines of a user's architecture and says that there is no projection."""
    assert status("plan", str(config())) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "state machines: run, worker, epoch" in told and f"no projection of a run: {UNDESCRIBED}" in told


UNDESCRIBED = (
    "architecture: mine: crossover/simulation/mirror/mine.py with MODELS of its steps is not there; simulation= of its"
)


@pytest.mark.parametrize("command", ["project", "breakeven"])
def test_what_only_a_projection_could_answer_is_refused(
    command: str, config: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that `project` and `breakeven` refuse a user's architecture that names no projection."""
    assert status(command, str(config())) == 2
    assert UNDESCRIBED in " ".join(capsys.readouterr().err.split())


def test_an_own_architecture_may_name_one_with_the_same_requests(
    config: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a user's architecture is projected as the built-in one that it names as making the same requests."""
    said = MINE.replace("settings=Settings)", 'settings=Settings, simulation="all_reduce")')
    out = tmp_path / "out.json"
    assert status("project", str(config(mine=said)), "--repetitions", "20", "--out", str(out)) == 0
    assert json.loads(out.read_text())["label"] == "projected"


def test_a_run_without_a_projection_says_so(
    config: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a run of an architecture without a projection prints a note and writes its report without one."""
    assert status("run", str(config()), "--on", "inline", "--out", str(tmp_path / "out")) == 0
    assert f"note: no projection.json: {UNDESCRIBED}" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "out" / "report.html").exists() and not (tmp_path / "out" / "projection.json").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"architecture": "my_package.mien"},
            "'my_package.mien:ARCHITECTURE': your code: there is no module my_package.mien",
        ),
        ({"architecture": "functions.mine"}, "functions is the name of a package of this project"),
        ({"mine": "ARCHITEKTUR = 1\n"}, "mine.py: defines no 'ARCHITECTURE'; did you mean ARCHITEKTUR?"),
        ({"mine": "ARCHITECTURE = 1\n"}, "mine.py: ARCHITECTURE is of type int; Architecture is expected"),
        ({"names": "NAME = None.name\n"}, "names.py, line 1: AttributeError"),
        ({"names": 'NAME = "other"\n'}, "line 36: is named 'other'; expected 'mine', as its file is"),
        ({"mine": MINE.replace("0)] = 1.0", "0)]")}, "settings=Settings: expected a frozen dataclass"),
        (
            {
                "mine": "import peers.gpu\n"
                + MINE.replace("run=long_worker.tree(initialise, train, collect)", "program=peers.gpu.PROGRAM")
            },
            "'my_package.mine' is a program for EC2; one outside this project is a tree of steps",
        ),
    ],
)
def test_a_fault_of_an_own_architecture_is_reported_as_the_users(
    config: Callable[..., Path], changed: dict[str, str], said: str
) -> None:
    """Check that a faulty definition of a user's architecture is refused with a message of two lines that says what is wrong."""
    with pytest.raises(ConfigError) as caught:
        validation.load(config(**changed))
    assert said in str(caught.value) and "unknown" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2  # the experiment's file, and the problem


def test_an_error_of_an_own_step_is_reported_as_the_users(config: Callable[..., Path], tmp_path: Path) -> None:
    """Check that an error in a user's step ends the run with the file and line of the user's code, and exit code 2."""
    experiment = validation.load(config(arithmetic=ARITHMETIC.replace("self.factor = factor", "self.factor = 1 / 0")))
    with pytest.raises(
        CrossoverError, match=r"your code, .*my_package/arithmetic.py, line 10, in __init__: ZeroDiv"
    ) as failed:
        inline.run_inline(experiment, tmp_path / "out", lambda progress: None)
    assert failed.value.exit_code == 2


@pytest.mark.slow
def test_a_container_image_contains_an_own_architecture(config: Callable[..., Path], tmp_path: Path) -> None:
    """Check that the folders of both container images contain the module of the user's architecture."""
    synthesize(validation.load(config(), ["functions.packaging=image"]), tmp_path / "assembly")
    assert len(list((tmp_path / "assembly").glob("asset.*/code/my_package/mine.py"))) == 2

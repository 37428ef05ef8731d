"""Wrong without a word: what strangers found with models, seeds, servers and faults of their own, a section for each kind of finding.

Each test here goes in by the door that the stranger took. What a finding's mend is made of has its tests where it lies.
"""

import errno
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from chaos.schedule import Fault
from chaos.trials import Trials, reduced
from crossover import own_code, validation
from crossover.algorithms.seeds import seed as seed_of
from crossover.cli.main import main
from crossover.errors import UserError
from crossover.experiment import Data, Experiment, Training
from crossover.learning.datasets import load as load_dataset
from crossover.local.cloud import LocalCloud
from crossover.reports import folder
from crossover.running import run_inline
from crossover.simulation import AWS, assumptions
from crossover.simulation.calibration import Calibration
from crossover.validation import load
from tests.commands import status
from tests.local import parts, stranger
from tests.local.listening import listening
from tests.mutation import protocol, silent
from tests.unit.advice.few import few_candidates
from tests.unit.reports import recorded

FAULTS = silent.listed()
ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"


# --- faults planted again: the old behaviours, each found by the test that it names -----------------------------------


def test_each_silent_fault_can_be_planted() -> None:
    planted = [protocol.Fault(fault.name, "planted", fault.loses, (), fault.edits) for fault in FAULTS]
    assert [why for fault in planted for why in protocol.missing(fault, protocol.ROOT)] == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_silent_fault_is_found(fault: silent.Fault) -> None:
    assert silent.outcome(fault) == "found"


# --- the cloud on this machine asks who is there (1) ------------------------------------------------------------------


@pytest.mark.slow
def test_another_user_of_this_machine_gets_nothing_from_the_cloud(cloud: LocalCloud) -> None:
    """He has found its port: he makes no function that runs as its owner, and no page that he shows ends a run."""
    with stranger.asking() as ask:
        answers = ask("over_http", address=str(cloud.endpoint.port))
    assert {what: answer for what, answer in answers if answer != "403"} == {}
    session = cloud.session()
    assert session.client("lambda").list_functions()["Functions"] == []
    assert session.client("s3").list_buckets()["Buckets"], "it has forgotten everything"


@pytest.mark.slow
def test_another_user_takes_no_invocation_away(cloud: LocalCloud) -> None:
    """Whatever this process listens on, a function's own address among it, is asked."""
    session = cloud.session()
    session.client("iam").create_role(RoleName="local", AssumeRolePolicyDocument="{}")
    functions = session.client("lambda")
    code = {"ZipFile": parts.zipped(handlers=parts.HANDLERS)}
    functions.create_function(
        FunctionName="echo", Runtime="python3.13", Role=parts.ROLE, Handler="handlers.echo", Code=code
    )

    def call() -> int:
        return int(json.load(functions.invoke(FunctionName="echo", Payload=b"{}")["Payload"])["calls"])

    assert call() == 1
    ports = {each.address for each in listening([os.getpid()])} - {str(cloud.endpoint.port)}
    assert ports
    with stranger.asking() as ask:
        answers = [(what, answer) for port in ports for what, answer in ask("over_http", address=port)]
    assert [each for each in answers if each[1] != "403"] == []
    assert call() == 2
    functions.delete_function(FunctionName="echo")


# --- damage: a byte, a kill, a full disk (2, 3) -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_full_disk_at_the_end_loses_neither_model_nor_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Experiment(
        name="mine",
        architecture="all_reduce",
        workers=2,
        training=Training(epochs=2, batch_size=60),
        data=Data(dataset="digits", limit=240),
    )
    out, elsewhere, write = tmp_path / "out", tmp_path / "elsewhere", folder.write_atomically
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))

    def full(path: Path, data: bytes) -> None:
        if out in path.parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(folder, "write_atomically", full)
        with pytest.raises(UserError, match=r"the run is finished, and its folder lies in .*elsewhere"):
            run_inline(found, out, lambda progress: None)
    (saved,) = elsewhere.glob("crossover-mine-*")
    again = run_inline(found, out, lambda progress: None, resume=(out / "unfinished").is_dir())
    assert (again.path / "model.safetensors").read_bytes() == (saved / "model.safetensors").read_bytes()


# --- waits, space, decoders, certificates (4) -------------------------------------------------------------------------


def on_a_small_disk(folder: Path, megabytes: int, *arguments: str, **variables: str) -> tuple[int, str]:
    """A command line where `folder` is a disk of that size: its exit status, and what it said on standard error."""
    mounted = f'mount -t tmpfs -o size={megabytes}m none "{folder}" && exec "$0" "$@"'
    namespace = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    command = [*namespace, "sh", "-c", mounted, sys.executable, "-m", "crossover.cli", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.slow
def test_too_little_room_for_a_broker_is_told_before_anything_is_started(tmp_path: Path) -> None:
    (disk := tmp_path / "disk").mkdir()
    run = ("run", "config/p2p-instance.yaml", "--on", "local", "--set", "training.epochs=1")
    status, said = on_a_small_disk(disk, 150, *run, "--out", str(tmp_path / "run"), TMPDIR=str(disk))
    assert status == 2
    for words in (str(disk), "300 MB are needed", "157 MB are free", "200 MB", "TMPDIR"):
        assert words in said

    status, said = on_a_small_disk(disk, 20, *run, "--out", str(disk / "run"))
    assert status == 2
    for words in (str(disk / "run"), "50 MB are needed", "20 MB are free", "--out"):
        assert words in said


@pytest.mark.slow
def test_a_home_that_cannot_be_written_hinders_nothing(tmp_path: Path) -> None:
    (home := tmp_path / "home").touch()  # no folder: not even root can write into it
    surroundings = {"HOME": str(home), "CDK_OUTDIR": str(tmp_path / "assembly"), "CROSSOVER_WITHOUT_LAYERS": "1"}
    commands: list[list[str]] = [
        ["app.py", "-c", "config=config/single.yaml"],
        [
            "-m",
            "crossover.cli",
            "run",
            "config/single.yaml",
            "--on",
            "inline",
            "--set",
            "training.epochs=1",
            "--out",
            str(tmp_path / "run"),
        ],
        ["-m", "crossover.cli", "plan", "config/single.yaml"],
    ]
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, **surroundings},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


# --- what the virtual world sees (5) ----------------------------------------------------------------------------------

SEEN = {  # of the faults that it was blind to: a seed that finds each
    "dead-worker-not-removed": "49",
    "resumed-at-the-oldest-common-round": "6",
    "report-before-update": "0",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEN)
def test_what_the_world_was_blind_to_is_found(name: str) -> None:
    fault = next(each for each in protocol.listed() if each.name == name)
    chaos = [str(Path(sys.executable).with_name("crossover")), "chaos", "{config}", "--first", "--processes", "1"]

    assert protocol.outcome(fault, [*chaos, "--seeds", SEEN[name]]).startswith("found")
    assert protocol.outcome(replace(fault, edits=()), [*chaos, "--seeds", SEEN[name]]) == "missed"


def test_a_worker_whose_twin_has_finished_goes_on_by_itself() -> None:
    faults = [
        Fault(kind="duplicate", role="train 1", request=1, side="after", seconds=0.209),
        Fault(kind="lose", role="train 1", request=129, side="after", silent=True),
    ]

    assert not Trials(reduced(load("config/scatter-reduce.yaml"))).under(faults, 930_035).findings


# --- a model is the model that was trained (8 to 12) ------------------------------------------------------------------

NETS = """
import torch
from torch import nn
from crossover.learning.datasets import Samples

def rows(experiment):
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(80, 4, generator=random)
    labels = (inputs.prod(1) > 0).long()
    labels[torch.rand(80, generator=random) < 0.5] = -100
    return Samples(inputs, labels, 2)

class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("directions", torch.randn(4, 32))
        self.head = nn.Linear(32, 2)
    def forward(self, inputs):
        return self.head(torch.cos(inputs @ self.directions))

class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).requires_grad_(False)
        self.body[1].running_mean.fill_(0.5)
        self.head = nn.Linear(8, 2)
    def train(self, mode=True):
        super().train(mode)
        self.body.eval()
        return self
    def forward(self, inputs):
        return self.head(self.body(inputs).relu())

class Power(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2))
    def forward(self, inputs):
        return self.layer(inputs)

def features(classes, shape): return Features()
def frozen(classes, shape): return Frozen()
def power(classes, shape): return Power()
"""


def trained(folder: Path, model: str, *, where: str = "inline", seed: int = 1) -> int:
    """What the command ends with; its results in `folder`/out."""
    (folder / "nets.py").write_text(NETS)
    settings = {
        "optimizer": "adamw",
        "momentum": 0,
        "weight_decay": 0.1,
        "learning_rate": 0.01,
        "epochs": 2,
        "batch_size": 4,
    }
    (folder / "nets.yaml").write_text(
        f"name: nets\narchitecture: all-reduce\nworkers: 2\nseed: {seed}\ntraining:\n  model: nets:{model}\n"
        + "".join(f"  {name}: {value}\n" for name, value in settings.items())
        + "exchange:\n  every: 1\ndata:\n  dataset: nets:rows\n  preprocess: none\n"
    )
    asked = ["run", str(folder / "nets.yaml"), "--on", where, "--out", str(folder / "out")]
    if where == "local":  # a process has one cloud at a time, and a test before this one may have had it
        return subprocess.run([sys.executable, "-m", "crossover.cli", *asked], check=False).returncode
    own_code.look_in(folder)
    try:
        main(asked)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def reloaded(folder: Path, model: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    space: dict[str, Any] = {}
    exec((folder / "nets.py").read_text(), space)
    module, saved = space[model](2, (4,)), load_file(folder / "out" / "model.safetensors")
    module.load_state_dict(saved, strict=True)
    return module.eval(), saved


@pytest.mark.slow
@pytest.mark.parametrize(("model", "where"), [("features", "inline"), ("frozen", "inline"), ("features", "local")])
def test_a_reloaded_file_scores_what_the_run_reported(model: str, where: str, tmp_path: Path) -> None:
    """In plain torch: random features in a buffer, and a frozen body kept in evaluation; half of the labels ask for nothing."""
    assert trained(tmp_path, model, where=where) == 0
    module, saved = reloaded(tmp_path, model)
    experiment = validation.load(tmp_path / "nets.yaml")
    dataset = load_dataset(experiment)
    with torch.inference_mode():
        found = module(dataset.validation_inputs).argmax(1)
    asked = dataset.validation_labels != -100
    share = int((found == dataset.validation_labels)[asked].sum()) / int(asked.sum())
    assert json.loads((tmp_path / "out" / "result.json").read_text())["final"]["val_metric"] == share
    torch.manual_seed(seed_of("model", 1))
    space: dict[str, Any] = {}
    exec(NETS, space)
    begun = space[model](2, (4,))
    still = {*dict(begun.named_buffers()), *(name for name, each in begun.named_parameters() if not each.requires_grad)}
    assert {name for name, value in begun.state_dict().items() if torch.equal(value, saved[name])} == still


def test_what_is_not_carried_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trained(tmp_path, "power") != 0
    said = capsys.readouterr().err
    assert "nets:power" in said and "_u" in said and not (tmp_path / "out" / "model.safetensors").exists()


# --- a verdict is one (13 to 15) --------------------------------------------------------------------------------------


def test_of_three_runs_of_one_file_none_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"seed": 1, "paper_method_usd": 7e-6, "full_usd": 0.002, "cpu_share": 0.9}
    for name, seconds in (("same1", 0.152), ("same2", 0.149), ("same3", 0.116)):
        run = recorded.as_run(figures | {"elapsed_s": seconds}, "same")
        folder.write(tmp_path / name, result=run.result, records=run.records)
    with pytest.raises(SystemExit) as ended:
        main(["compare", *(str(tmp_path / f"same{n}") for n in (1, 2, 3)), "--out", str(tmp_path / "out")])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "soonest with" not in said and "sooner than" not in said


NETWORK = """
from torch import nn

def network(classes, input_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, classes))
"""
OWN = """
name: mine
architecture: all_reduce
workers: 2
training: {model: "mine:network", epochs: 3, batch_size: 60, target: null}
data: {dataset: digits, validation: 0.2}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(NETWORK)
    (tmp_path / "mine.yaml").write_text(OWN)
    return tmp_path / "mine.yaml"


@pytest.mark.slow
def test_project_says_of_the_files_that_advise_wrote_what_advise_said(own: Path, tmp_path: Path) -> None:
    """Of a model of one's own; seconds apart from those until everything stands, which a run does not have."""
    with few_candidates():
        assert status("advise", str(own), "--on-hand", "lambda,ec2", "--out", str(tmp_path / "advice")) == 0
    advised = json.loads((tmp_path / "advice" / "advice.json").read_text())
    files = sorted(tmp_path.glob("mine-advice-*.yaml"))
    named = [each["finalist"] for each in advised["cards"]]
    told = {str(each["candidate"]): each for each in (advised["winner"], *named, *advised["alternatives"])}
    for path, said in zip(files, told.values(), strict=True):
        assert status("project", str(path), "--out", str(tmp_path / "out.json")) == 0
        projected = json.loads((tmp_path / "out.json").read_text())["repetitions"]
        assert projected["usd"]["p50"] == pytest.approx(said["usd"]["p50"], rel=0.01)
        assert projected["seconds"]["p50"] == pytest.approx(said["seconds"]["p50"] - said["before_s"], rel=0.01)


def test_nothing_holds_that_is_no_advice(own: Path, tmp_path: Path) -> None:
    with few_candidates():
        assert (
            status("advise", str(own), "--on-hand", "lambda", "--deadline", "1s", "--out", str(tmp_path / "advice"))
            == 3
        )


def test_what_cannot_run_has_no_total(capsys: pytest.CaptureFixture[str]) -> None:
    config = str(CONFIG / "all-reduce-cifar10.yaml")
    sized = ("--parameters", "1300000000", "--set", "training.epochs=1", "--repetitions", "20")
    assert status("project", config, *sized) == 2
    said = capsys.readouterr()
    assert "$" not in said.out and "AWS would not run it so, and there is no total" in said.err


def test_what_an_answer_rests_on_turns_it_by_the_factor_that_is_told() -> None:
    """Of three by construction: a function's dollars follow the vCPU's speed, and a GPU's the GPU's."""

    def cheapest(cloud: Calibration) -> str:
        usd = {"a function": cloud.mac_s / AWS.mac_s, "a GPU": 2.5 * AWS.gpu_efficiency / cloud.gpu_efficiency}
        return min(usd, key=lambda name: usd[name])

    for what, paced in assumptions.assumed(AWS, gpus=True):
        (turn,) = assumptions.turns(cheapest, paced)
        assert cheapest(paced(turn.before)) == cheapest(AWS) != cheapest(paced(turn.after)) == turn.other
        assert turn.after == pytest.approx(2.5 if "vCPU" in what else 0.4, rel=0.011)
    said = assumptions.words(cheapest, AWS, gpus=True)
    assert (
        said.startswith("It rests on a core of this machine for a vCPU of ARM (2.5")
        and "x slower, it would be a GPU)" in said
    )

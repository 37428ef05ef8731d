"""`crossover probe`, and `crossover advise --measured` with its row."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover.advice import question as question_
from crossover.errors import ConfigError
from crossover.learning.sizes import digest_of_model
from crossover.simulation import measured_steps
from crossover.simulation.calibration import AWS
from crossover.simulation.gpu_steps import card_of_device, load_cards
from crossover.simulation.measured_steps import MEASURED_SIGMA, read_measured_steps
from crossover.simulation.workload import MODEL_SIZES, Workload
from crossover.validation import load
from tests.commands import status

ROOT = Path(__file__).parents[3]
MODEL = """import torch


def network(classes, input_shape):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, classes))
"""
# As on a notebook: PyTorch and typer are there, and nothing else of ours.
ALONE = """import sys
absent = ("boto3", "botocore", "yaml", "simpy", "sklearn", "scipy", "matplotlib", "jinja2", "psutil", "safetensors", "tenacity")
sys.modules |= dict.fromkeys(absent)
from crossover.cli.main import main
main(sys.argv[1:])
"""


def workload() -> Workload:
    """Return the workload of MobileNet on CIFAR-10 with one worker."""
    return Workload.from_experiment(load(ROOT / "config/single-cifar10.yaml", ["training.model=mobilenet"]))


def row(path: Path, **changes: Any) -> Path:
    """Write a row of MobileNet on a T4 and return its path: 10 ms and 0.1 ms a sample."""
    size = MODEL_SIZES["mobilenet"][3, 32, 32]
    plain: dict[str, Any] = {
        "format": 1,
        "device": "Tesla T4",
        "precision": "fp32",
        "model": "mobilenet",
        "parameters": size.parameters,
        "buffers": size.buffers,
        "macs": size.macs,
        "digest": digest_of_model(size.parameters, size.buffers, size.macs),
        "steps": [{"batch_size": n, "seconds": 0.01 + 0.0001 * n} for n in (32, 128, 512)],
        "torch": "2.13.0",
    }
    path.write_text(json.dumps(plain | changes), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_row_needs_pytorch_alone_and_says_what_was_measured(tmp_path: Path) -> None:
    """`probe` runs with PyTorch and typer alone, and prints the model's counts and a time for each batch size."""
    (tmp_path / "mine.py").write_text(MODEL)
    asked = ["probe", str(tmp_path / "mine.py:network"), "--device", "cpu", "--input", "3x2x2", "--classes", "5"]
    ended = subprocess.run(
        [sys.executable, "-c", ALONE, *asked, "--batch", "2,4", "--seconds", "0"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    found = json.loads(ended.stdout)
    assert (found["device"], found["precision"], found["model"]) == ("cpu", "fp32", "mine:network")
    assert (found["parameters"], found["buffers"], found["macs"]) == (65, 0, 60)
    assert found["digest"] == digest_of_model(65, 0, 60) and found["torch"]
    assert [each["batch_size"] for each in found["steps"]] == [2, 4]
    for each in found["steps"]:
        assert each["count"] >= 5 and 0 < each["p5"] <= each["seconds"] <= each["p95"]


def test_tokens_are_measured_from_ones_own_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`probe` of a user's model and data of tokens prints input shape, classes, parameters, and a step for each batch size."""
    (tmp_path / "words.py").write_text(
        """import torch
from crossover.learning.samples import Samples


def rows(experiment):
    return Samples(torch.arange(12).view(3, 4), torch.tensor([0, 1, 2]), 3)


class Network(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(12, 5), torch.nn.Linear(5, classes)

    def forward(self, tokens):
        return self.head(self.words(tokens).mean(1))


def network(classes, input_shape):
    return Network(classes)
"""
    )
    here = str(tmp_path / "words.py")
    asked = [f"{here}:network", "--data", f"{here}:rows", "--device", "cpu", "--batch", "2,8", "--seconds", "0"]
    assert status("probe", *asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["input"], found["classes"], found["parameters"]) == ([4], 3, 12 * 5 + 5 * 3 + 3)
    assert [each["batch_size"] for each in found["steps"]] == [2, 8]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["mobilenet", "--device", "cpu", "--precision", "fp16"], "--precision: fp16 needs a GPU"),
        (["mobilenett", "--device", "cpu"], "mobilenett: is no model; expected file.py:factory"),
        (["nowhere.py:network", "--device", "cpu"], "nowhere.py: no such file"),
        (["mobilenet", "--device", "cpu", "--input", "3x0"], "--input: '3x0' is not allowed"),
        (["mobilenet", "--device", "cpu", "--batch", "a"], "--batch: 'a' is not allowed"),
        (["mobilenet", "--device", "cpu", "--data", "rows.csv"], "--data: rows.csv: a table's steps need no file"),
        (
            ["mobilenet", "--device", "cpu", "--data", "nowhere.py:rows"],
            "nowhere.py: no such file; expected file.py:loader",
        ),
        (["mobilenet", "--device", "cpu", "--data", "digits", "--classes", "3"], "digits supplies samples"),
    ],
    ids=lambda each: each[-1] if isinstance(each, list) else "",
)
def test_what_cannot_be_measured_is_refused(asked: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`probe` ends with status 2 and the message `told` for options that do not fit."""
    assert status("probe", *asked) == 2
    assert told in capsys.readouterr().err


# --- the row in advice ------------------------------------------------------------------------------------------------


def test_a_measured_card_replaces_the_rule_and_the_others_keep_it(tmp_path: Path) -> None:
    """Measured steps replace the calculated ones on the measured GPU only, and make them less uncertain."""
    work = workload()
    measured = replace(AWS, gpu_measured=read_measured_steps(row(tmp_path / "t4.json"), work, "fp32"))

    def seconds(cloud: Any, instance: str, level: float = 0.0, precision: str = "fp32") -> float:
        """Return the seconds of a gradient of 256 samples. `level`: position of the drawn GPU speed in standard deviations."""
        found: float = replace(cloud, gpu_level=level).gpu_gradient_s(
            work, 256, instance_type=instance, precision=precision
        )
        return found

    assert seconds(measured, "g4dn.xlarge") == pytest.approx(0.01 + 0.0001 * 256)
    assert seconds(measured, "g6.xlarge") == seconds(AWS, "g6.xlarge")
    assert seconds(measured, "g4dn.xlarge", precision="fp16") == seconds(AWS, "g4dn.xlarge", precision="fp16")
    wide, narrow = (seconds(each, "g4dn.xlarge", 1.0) / seconds(each, "g4dn.xlarge") for each in (AWS, measured))
    assert 1 < narrow < wide
    assert min(load_cards()["T4"].sigmas.values()) > MEASURED_SIGMA


def test_the_rule_is_shown_beside_each_measured_step(tmp_path: Path) -> None:
    """The notes have a line for each measured step with the calculated seconds beside it."""
    experiment = load(ROOT / "config/single-cifar10.yaml", ["training.model=mobilenet"])
    question, _, notes = question_.build_question(experiment, gpu_row=row(tmp_path / "t4.json"))
    (first, *_, last) = notes[1:]
    assert first.startswith("a step of 32 samples on Tesla T4, fp32: 0.0132 s [measured], 0.0")
    assert "[projected] by the rule" in first
    assert last.startswith("t4.json replaces the rule on g4dn alone")
    assert question.calibration.gpu_measured is not None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"device": "NVIDIA GeForce RTX 3090"},
            r"measured on NVIDIA GeForce RTX 3090, which no instance has; .*T4 \(g4dn\)",
        ),
        ({"device": "cpu"}, "measured on cpu, which no instance has"),
        ({"torch": "2.13.0+cpu"}, r"is from PyTorch 2\.13\.0\+cpu, which cannot use a Tesla T4"),
        ({"digest": "0"}, "measured mobilenet with .* parameters .*; mobilenet has"),
        ({"precision": "fp16"}, r"measured in fp16, and training\.precision is fp32; .*--precision fp32"),
        ({"steps": []}, "is no row of crossover probe: steps"),
        ({"steps": [{"batch_size": 8, "seconds": 0}]}, "is no row of crossover probe: steps"),
        ({"format": 2}, "is no row of crossover probe: format 2 is unknown"),
        ({"macs": "many"}, "is no row of crossover probe: macs"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_row_of_another_card_model_or_precision_is_refused(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    """`read_measured_steps` raises ConfigError with `told` if the row's `changes` make it unusable for the question."""
    with pytest.raises(ConfigError, match=f"--measured: .*{told}"):
        read_measured_steps(row(tmp_path / "t4.json", **changes), workload(), "fp32")


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cu130", "2.5.0a0+872d972e41.nv24.08"])
def test_a_row_of_a_pytorch_for_nvidia_gpus_is_read(tmp_path: Path, version: str) -> None:
    """Versions of PyTorch that may have used an NVIDIA GPU are accepted, those of NVIDIA's own containers among them."""
    assert read_measured_steps(row(tmp_path / "t4.json", torch=version), workload(), "fp32").card == "T4"


def test_a_card_that_no_candidate_has_is_refused(tmp_path: Path) -> None:
    """`build_question` raises ConfigError for a measured GPU that no candidate has; the error lists the expected ones."""
    experiment = load(ROOT / "config/single-cifar10.yaml", ["training.model=mobilenet"])
    with pytest.raises(ConfigError, match="measured on Tesla K80, which no candidate has; expected a row of A10G, L4"):
        question_.build_question(experiment, gpu_row=row(tmp_path / "k80.json", device="Tesla K80"))


def test_cards_are_known_by_the_names_that_drivers_give_them() -> None:
    """A GPU is recognized by the name that its driver reports; an unknown name gives None."""
    names = {
        "Tesla T4": "T4",
        "NVIDIA L4": "L4",
        "NVIDIA L40S": "L40S",
        "NVIDIA A100-SXM4-40GB": "A100",
        "NVIDIA A10G": "A10G",
    }
    assert {name: card.name for name in names if (card := card_of_device(name))} == names
    assert card_of_device("NVIDIA T4G") is None


@pytest.mark.parametrize(
    ("points", "line"),
    [
        ([(32, 0.5), (64, 0.9)], (0.1, 0.0125)),
        ([(32, 0.5)], (0.0, 0.5 / 32)),
        ([(10, 0.2), (20, 0.1)], (0.0, None)),
    ],
)
def test_a_line_goes_through_the_measured_steps(
    points: list[tuple[int, float]], line: tuple[float, float | None]
) -> None:
    """The line fitted to (batch size, seconds) `points` has the constant and the slope of `line`."""
    constant_s, sample_s = measured_steps._fit_line(points)
    assert constant_s == pytest.approx(line[0])
    assert sample_s == pytest.approx(line[1]) if line[1] else sample_s > 0

"""Whether Docker can build functions' images is known before anything is deployed."""

from dataclasses import replace
from pathlib import Path

import pytest

from crossover import validation
from crossover.cli import deployment
from crossover.cli.deployment import check_docker
from crossover.errors import MissingTool
from crossover.experiment import Experiment

CONFIG = Path(__file__).parents[3] / "config"


@pytest.fixture
def image() -> Experiment:
    """Return SPIRT with its functions packaged as container images."""
    experiment = validation.load(CONFIG / "spirt.yaml")
    return replace(experiment, functions=replace(experiment.functions, packaging="image"))


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path at which a stand-in for Docker is found, on a machine that reports an Intel processor."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CDK_DOCKER", raising=False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return tmp_path / "docker"


def says(program: Path, *, info: str = "exit 0", inspect: str = "exit 1") -> None:
    """Write a program in the place of Docker. `info`, `inspect`: shell commands for `docker info` and `docker buildx`."""
    program.write_text(f'#!/bin/sh\ncase "$1" in info) {info} ;; buildx) {inspect} ;; esac\n')
    program.chmod(0o755)


ONLY_INTEL = "echo 'Name: default'; echo 'Platforms: linux/amd64, linux/386'"


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (None, r"it is not installed; install or start it, or set functions\.packaging: layer"),
        (
            {"info": "echo 'Cannot connect to the Docker daemon' >&2; exit 1"},
            "it does not answer: Cannot connect to the Docker daemon; install or start it",
        ),
        ({"info": "exec /bin/sleep 30"}, "it did not answer in 0 s"),
        ({"inspect": ONLY_INTEL}, r"builds only for linux/amd64, linux/386; let it emulate ARM .*--install arm64"),
    ],
    ids=["absent", "not running", "hangs", "not for ARM"],
)
def test_a_docker_that_cannot_is_refused_with_the_way_out(
    image: Experiment, program: Path, answers: dict[str, str] | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images and a Docker that is missing, does not answer or does not build for ARM raise MissingTool with `words`."""
    if answers is not None:
        says(program, **answers)
        if "sleep" in answers.get("info", ""):
            monkeypatch.setattr(deployment, "_TIMEOUT_S", 0.05)
    with pytest.raises(MissingTool, match=words):
        check_docker(image)


@pytest.mark.parametrize(
    "inspect", ["exit 1", "echo 'Platforms: linux/amd64, linux/arm64'"], ids=["no buildx", "emulated"]
)
def test_a_docker_that_can_is_accepted(image: Experiment, program: Path, inspect: str) -> None:
    """`check_docker` accepts a Docker that emulates ARM, and one whose platforms it cannot ask for."""
    says(program, inspect=inspect)
    check_docker(image)


def test_doctor_asks_the_same_before_a_deployment(image: Experiment, program: Path) -> None:
    """`doctor` has a finding on whether Docker can build the images."""

    def builder() -> list[tuple[str, bool]]:
        """Return (name, whether it holds) of doctor's findings on packaging."""
        return [(finding.name, finding.holds) for finding in deployment._check_packaging(image)]

    assert builder() == [("image builder", False)]
    says(program)
    assert builder() == [("image builder", True)]


def test_an_arm_machine_needs_no_emulation(image: Experiment, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check_docker` accepts a Docker that builds only for amd64 if this machine is an ARM one."""
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    says(program, inspect=ONLY_INTEL)
    check_docker(image)


def test_another_builder_is_asked_where_the_cdk_would_call_it(
    image: Experiment, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program that CDK_DOCKER names is checked in place of Docker."""
    monkeypatch.setenv("CDK_DOCKER", "finch")
    says(program)
    with pytest.raises(
        MissingTool, match="image needs finch to build the image at deployment, but it is not installed"
    ):
        check_docker(image)
    program.rename(program.with_name("finch"))
    check_docker(image)


@pytest.mark.parametrize("config", ["spirt", "gpu", "p2p-instance"])
def test_nobody_needs_docker_without_images(program: Path, config: str) -> None:
    """Experiments with layers or without functions pass the check without Docker."""
    experiment = validation.load(CONFIG / f"{config}.yaml")
    packaging = "layer" if config == "spirt" else "image"  # programs have no functions
    check_docker(replace(experiment, functions=replace(experiment.functions, packaging=packaging)))


def test_a_missing_cdk_is_a_finding_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` reports that the CDK is missing beside its other findings, and does not end there."""

    def fail() -> list[str]:
        """Raise MissingTool as if node_modules had no CDK."""
        raise MissingTool("aws-cdk: not in node_modules")

    monkeypatch.setattr(deployment, "cdk_command", fail)
    found = next(deployment.check_account(validation.load(CONFIG / "spirt.yaml")))
    assert (found.name, found.holds) == ("CDK", False) and "node_modules" in found.detail

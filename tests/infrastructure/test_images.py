"""`functions.packaging: image`: the same functions as container images, which nothing builds before they are deployed."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdk.packaging import DOCKERFILE
from crossover import user_code, workflow
from crossover.experiment import Experiment
from crossover.workflow.architecture import steps
from functions.spirt import ARCHITECTURE
from layer.contents import PYTHON, ROOT, TORCH
from tests.infrastructure.assemblies import Assembly, Json, actions_of, resources
from tests.infrastructure.conftest import Synthesize
from tests.infrastructure.test_synthesis import app, warnings

STEPS = steps(ARCHITECTURE)
BASE = f"public.ecr.aws/lambda/python:{PYTHON}"


@pytest.fixture(scope="module")
def image(synth: Synthesize, spirt: Experiment) -> Assembly:
    """Return the assembly of SPIRT with its functions packaged as container images."""
    return synth(functions=replace(spirt.functions, packaging="image"))


def sources(assembly: Assembly) -> dict[str, Json]:
    """Return the source of each container image that the assembly has to build, by the Dockerfile's target."""
    manifest = json.loads((assembly.folder / f"{assembly.name}.assets.json").read_text())
    found = [each["source"] for each in manifest.get("dockerImages", {}).values()]
    return {each["dockerBuildTarget"]: each for each in found}


def context(assembly: Assembly, target: str) -> Path:
    """Return the folder from which Docker would build the image of one of the Dockerfile's targets."""
    return assembly.folder / sources(assembly)[target]["directory"]


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below the folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_function_is_its_image_and_its_handler(
    image: Assembly, assembly: Assembly, spirt: Experiment, step: workflow.Step
) -> None:
    """Check that a function from an image names its image and handler, and is otherwise as with layers, permissions included."""
    function, zipped = dict(image.function(step.name)), dict(assembly.function(step.name))
    assert function.pop("PackageType") == "Image"
    assert function.pop("ImageConfig") == {"Command": [f"{step.module}.{step.name}"]}
    (uri,) = function.pop("Code").values()
    target = sources(image)["torch" if step.needs_torch(spirt) else "dataplane"]
    assert target["directory"].removeprefix("asset.") in json.dumps(uri)
    for name in ("Code", "Handler", "Runtime", "Layers"):
        del zipped[name]
    assert function == zipped
    assert actions_of(image.experiment, function["Role"]) == actions_of(assembly.experiment, zipped["Role"])


def test_there_are_no_layers_and_nothing_that_refuses_their_absence(image: Assembly, assembly: Assembly) -> None:
    """Check that templates with container images have no layers and no rules about layers."""
    assert not resources(image.experiment, "AWS::Lambda::LayerVersion")
    assert not [name for name in image.experiment["Rules"] if name.endswith("LayerIsBuilt")]
    assert not sources(assembly)


def test_two_images_for_arm_are_built_at_deployment(image: Assembly) -> None:
    """Check that the assembly names two container images to build, both for ARM."""
    assert set(sources(image)) == {"dataplane", "torch"}
    assert {source["platform"] for source in sources(image).values()} == {"linux/arm64"}


def test_an_image_holds_the_files_that_the_zip_holds(image: Assembly, assembly: Assembly) -> None:
    """Check that an image's folder contains the same project files as the zip of the same function."""
    for step, target in (("compute_gradients", "torch"), ("notify_peers", "dataplane")):
        zipped = assembly.asset(assembly.experiment, assembly.function(step)["Code"])
        assert files(context(image, target) / "code") == files(zipped), step
    assert "crossover/learning/learner.py" not in files(context(image, "dataplane") / "code")


def pins(text: str) -> dict[str, str]:
    """Return the version that a requirements text pins for each package, by name, with `_` for `-` and without extras."""
    found = [re.split("#| --hash", line)[0].strip().partition("==")[::2] for line in text.splitlines() if "==" in line]
    return {name.partition("[")[0].replace("-", "_"): version for name, version in found}


def test_versions_are_those_of_the_requirements(image: Assembly) -> None:
    """Check that images install the versions of requirements.txt, and a newer torch than the layer's."""
    required = pins((ROOT / "requirements.txt").read_text())
    for target in ("dataplane", "torch"):
        dataplane, torch = (
            pins((context(image, target) / f"{name}.txt").read_text()) for name in ("dataplane", "torch")
        )
        assert dataplane == {name: required[name] for name in user_code.DATAPLANE}
        assert torch == {"torch": required["torch"]}
    newer, layers = ([int(part) for part in version.split(".")] for version in (required["torch"], TORCH))
    assert newer > layers, "the image is there for what does not fit into a layer"


# --- the Dockerfile, which nothing here can build ---------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions as (instruction, arguments), in order, with continued lines joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def test_it_builds_on_awss_own_image_of_the_layers_python() -> None:
    """Check that the Dockerfile's stages begin with AWS's image and leave its entry point and user as they are."""
    stages: list[str] = []
    for instruction, arguments in instructions():
        if instruction == "FROM":
            origin, _, stage = arguments.partition(" AS ")
            assert origin in (BASE, *stages), origin
            stages.append(stage)
    assert stages[-2:] == ["dataplane", "torch"]
    assert {instruction for instruction, _ in instructions()} == {
        "FROM",
        "COPY",
        "RUN",
    }  # entry point and user are AWS's


def test_what_it_copies_is_in_its_context(image: Assembly) -> None:
    """Check that the Dockerfile copies exactly what its folder contains."""
    copied = {arguments.split()[0] for instruction, arguments in instructions() if instruction == "COPY"}
    for target in ("dataplane", "torch"):
        present = {path.name + "/" * path.is_dir() for path in context(image, target).iterdir()}
        assert present == copied | {"Dockerfile"}


def test_it_installs_pinned_wheels_alone_and_torch_without_cuda() -> None:
    """Check that the Dockerfile installs only pinned wheels, and torch for CPUs."""
    installs = [
        command.strip()
        for instruction, arguments in instructions()
        if instruction == "RUN"
        for command in arguments.split("&&")
        if "install" in command
    ]
    assert len(installs) == 3
    for command in installs:
        assert command.startswith("pip install ")
        assert "--only-binary=:all:" in command
        assert "--no-cache-dir" in command
        words = command.split()
        named = [
            word
            for word, before in zip(words[2:], words[1:], strict=False)
            if not word.startswith("-") and not before.startswith("--")
        ]
        assert named == [], f"beside the requirement files: {named}"
    indexed = [command for command in installs if "--index-url https://download.pytorch.org/whl/cpu" in command]
    (torch,) = indexed
    assert "--no-deps" in torch
    assert "torch.txt" in torch
    assert installs.index(torch) < next(n for n, c in enumerate(installs) if "torch.txt" in c and c not in indexed)


# --- neither Docker nor network ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("packaging", ["layer", "image"])
def test_synthesis_needs_neither_docker_nor_network(packaging: str, tmp_path: Path) -> None:
    """Check that synthesis, with cdk-nag and the validator, succeeds with no program on the PATH and a Docker that fails."""
    nothing = tmp_path / "bin"
    nothing.mkdir()
    done = app(
        *("-c", "config=config/spirt.yaml", "-c", f"set=functions.packaging={packaging}"),
        out=tmp_path / "out",
        PATH=str(nothing),
        CDK_DOCKER="/bin/false",
    )
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stderr
    assert warnings(done.stderr) == []
    made = Assembly(tmp_path / "out")
    assert bool(sources(made)) is (packaging == "image")


@pytest.mark.slow
def test_two_syntheses_name_the_same_images(image: Assembly, synth: Synthesize, spirt: Experiment) -> None:
    """Check that two syntheses give the images the same sources and digests."""
    again: dict[str, Any] = sources(synth(functions=replace(spirt.functions, packaging="image")))
    assert again == sources(image)

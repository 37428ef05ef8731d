"""The layers themselves: built as `make layer` builds them, looked at, and used on Lambda's processor and Python in an emulator."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crossover.errors import MissingTool
from layer import build, checks
from layer.contents import ROOT, TORCH, layers
from layer.wheels import NoWheels
from tools.arm_emulator import Emulator, unpack_emulator

pytestmark = pytest.mark.slow
FOLDER = ROOT / "build"


@pytest.fixture(scope="module")
def zipped() -> list[Path]:
    """Build both layers in the checkout's build folder, where they stay for the next run, and return the paths of the zip files. Skips the
    test if they cannot be built here.
    """
    try:
        for layer in layers():
            build.build(layer, FOLDER)
    except (NoWheels, MissingTool) as error:
        pytest.skip(f"the layers cannot be built here: {error}")
    return [FOLDER / f"layer-{layer.name}.zip" for layer in layers()]


@pytest.fixture(scope="module")
def arm(zipped: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """Yield an emulator of ARM whose Python finds the unpacked layers and the project. Skips if a tool is missing."""
    opt = tmp_path_factory.mktemp("opt")
    for path in zipped:
        shutil.unpack_archive(path, opt)  # a layer as it stands on Lambda
    try:
        yield unpack_emulator(FOLDER / "layer", [opt / "python", ROOT])
    except MissingTool as error:
        pytest.skip(str(error))


def test_they_fit_beside_the_largest_function(zipped: list[Path]) -> None:
    """Check that both layers leave room for a function."""
    assert checks.check_size(zipped) >= 0


def test_they_ask_for_nothing_that_the_runtime_lacks(zipped: list[Path]) -> None:
    """Check that the layers' libraries need no newer GLIBC and libstdc++ than the functions' runtime has."""
    dataplane, torch = (checks.check_native(path) for path in zipped)
    assert (2, 17) <= torch.glibc <= (2, 28) and torch.glibcxx <= (3, 4, 22)
    assert dataplane.glibc <= (2, 28)
    assert "libc.so.6" in torch.libraries


def test_every_library_that_torch_names_is_there(zipped: list[Path]) -> None:
    """Check that the layer of PyTorch contains the libraries that it loads."""
    found = {name.rpartition("/")[2] for name, _ in checks.read_native_files(zipped[1])}
    assert {"libtorch_cpu.so", "libtorch_python.so", "libarm_compute.so", "libgomp.so.1"} <= found


def test_training_in_the_emulator_gives_what_it_gives_here(arm: Emulator) -> None:
    """Check that emulated ARM gives the same losses and gradients as this machine, up to the order of float32 additions.

    This machine's PyTorch may be of another version.
    """
    script = str(ROOT / "tools" / "layer_workload.py")
    there: dict[str, Any] = json.loads(arm.run(script, timeout_s=1_800))
    ended = subprocess.run([sys.executable, "-m", "tools.layer_workload"], cwd=ROOT, capture_output=True, check=True)
    here: dict[str, Any] = json.loads(ended.stdout)
    assert there["machine"] == "aarch64" and there["python"].startswith("3.13.")
    assert there["torch"].split("+")[0] == TORCH
    assert there["packages"] == here["packages"]
    assert there["absent"] == ["jinja2", "networkx", "numpy", "sympy"]
    for model, expected in here["models"].items():
        found = there["models"][model]
        assert found["parameters"] == expected["parameters"]
        for value, rel in (("loss", 1e-5), ("val_loss", 1e-5), ("gradient_norm", 5e-3)):
            assert found[value] == pytest.approx(expected[value], rel=rel), (model, value)

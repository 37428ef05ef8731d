"""Every architecture that has Lambda functions, on Lambda's processor: the deployed zips and the real layers on an emulated Graviton2 with
Python 3.13, called by AWS's own runtime client, beside real Redis and RabbitMQ; loss and gradient compared with this machine's.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crossover.errors import MissingTool
from crossover.experiment import Data, Experiment, Functions, PeerToPeer, Training
from crossover.learning.learner import Learner, encode_model
from crossover.local.cloud import LocalCloud
from crossover.reports.folder import MODEL, RunFolder
from crossover.running.deployed import run_deployed
from crossover.running.inline import run_inline
from crossover.stores.encoding import Vector, VectorKind
from crossover.workflow.architecture import architectures, load, steps
from functions.mlless.settings import MLLess
from layer import build
from layer.contents import ROOT, layers
from layer.wheels import NoWheels
from stacks.synthesis import synthesize
from tests.layer.lambda_on_arm import runtime

pytestmark = pytest.mark.deep
FOLDER = ROOT / "build"
ARCHITECTURES = [name for name in architectures() if steps(load(name))]
WORKERS = 2


def experiment(architecture: str) -> Experiment:
    """Return an experiment of one epoch with two workers of two minibatches each. It uses plain SGD, so that the model moves by the
    gradient, or by the sum of two gradients.
    """
    settings = Experiment(
        name=f"arm-{architecture.replace('_', '-')}",
        architecture=architecture,
        workers=WORKERS,
        training=Training(model="small_cnn", epochs=1, batch_size=8, learning_rate=0.05, momentum=0.0, optimizer="sgd"),
        data=Data(dataset="digits", limit=32, validation=0.02),
        p2p=PeerToPeer(average_in="lambda"),  # so that both of its functions are called
        functions=Functions(memory_mb={"default": 3_008}),  # the emulator's own memory counts as the function's
    )
    # What a filter lets through near its threshold is a matter of the last bit.
    return settings.with_settings(MLLess(threshold=0.0))


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    """Yield the local cloud with functions on emulated ARM, from layers that are built first. Skips if wheels or the emulator are
    missing.
    """
    try:
        for layer in layers():
            build.build(layer, FOLDER)
        zips = [FOLDER / f"layer-{layer.name}.zip" for layer in layers()]
        arm = runtime(tmp_path_factory.mktemp("arm"), layers=zips, cache=FOLDER / "layer")
    except (NoWheels, MissingTool) as error:
        pytest.skip(f"no emulated Lambda here: {error}")
    with LocalCloud(tmp_path_factory.mktemp("cloud"), cores=2, runtime=arm) as running:
        yield running


def moved(folder: RunFolder) -> Any:
    """Return the difference between the trained and the seeded model as one float64 vector of P elements, with the parameters in the order
    of their names.
    """
    import torch
    from safetensors.torch import load, load_file

    data, settings = folder.result["data"], experiment(folder.result["architecture"])
    learner = Learner(settings, classes=data["classes"], input_shape=tuple(data["input_shape"]), affine=data["affine"])
    seeded = load(encode_model(settings, data, Vector(VectorKind.MODEL, learner.initialise_model())))
    trained = load_file(folder.path / MODEL)
    names = sorted(name for name in trained if "running" not in name)
    return torch.cat([(trained[name].double() - seeded[name].double()).flatten() for name in names])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_handler_computes_on_arm_what_it_computes_here(
    cloud: LocalCloud, architecture: str, tmp_path: Path
) -> None:
    """Check that a run on emulated ARM has the same losses as here, and moves the model alike, up to the order of float32 additions."""
    here = run_inline(experiment(architecture), tmp_path / "here", lambda progress: None)
    cloud.deploy(synthesize(experiment(architecture), tmp_path / "assembly"))
    try:
        there = run_deployed(
            experiment(architecture), tmp_path / "there", lambda progress: None, session=cloud.session(), where="local"
        )
        processes = {Path(f"/proc/{each.pid}/exe").resolve().name for each in cloud.lambdas.environments()}
    finally:
        cloud.destroy(f"crossover-{experiment(architecture).name}")
    assert all(name.startswith("qemu-aarch64") for name in processes), processes
    assert processes
    assert there.result["incomplete"] == []
    invoked = {record["step"] for record in there.records if record["outcome"] == "ok"}
    assert invoked >= {step.name for step in steps(load(architecture))}
    (found,), (expected,) = there.result["epochs"], here.result["epochs"]
    for value in ("train_loss", "val_loss"):
        assert found[value] == pytest.approx(expected[value], rel=1e-5), value
    assert found["val_metric"] == expected["val_metric"]
    way, same = moved(there), moved(here)
    assert float((way - same).norm()) <= 1e-4 * float(same.norm())  # measured: 1.4e-5 and less

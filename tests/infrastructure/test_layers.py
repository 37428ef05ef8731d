"""Two layers; a placeholder where they were not built, which CloudFormation refuses to deploy."""

import zipfile
from pathlib import Path

import pytest

from tests.infrastructure.assemblies import Assembly, resources
from tests.infrastructure.conftest import Synthesize


@pytest.fixture(scope="module")
def built(synth: Synthesize, tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    """Return an assembly whose layers are two small zip files, as if both layers had been built."""
    folder = tmp_path_factory.mktemp("layers")
    for name in ("dataplane", "torch"):
        with zipfile.ZipFile(folder / f"layer-{name}.zip", "w") as archive:
            archive.writestr(f"python/{name}.txt", name)
    return synth(layers=folder)


def test_layers_are_for_arm_and_python_3_13(assembly: Assembly) -> None:
    """Check the names, architecture and runtime of both layers."""
    layers = resources(assembly.experiment, "AWS::Lambda::LayerVersion").values()
    assert sorted(layer["LayerName"] for layer in layers) == [
        "crossover-spirt-layer-dataplane",
        "crossover-spirt-layer-torch",
    ]
    for layer in layers:
        assert layer["CompatibleArchitectures"] == ["arm64"]
        assert layer["CompatibleRuntimes"] == ["python3.13"]


def test_a_placeholder_refuses_deployment_and_says_what_to_do(assembly: Assembly) -> None:
    """Check that a template with placeholders for layers has rules which refuse its deployment and name `make layer`."""
    template = assembly.experiment
    for name in ("Dataplane", "Torch"):
        (assertion,) = template["Rules"][f"{name}LayerIsBuilt"]["Assertions"]
        reference, wanted = assertion["Assert"]["Fn::Equals"]
        assert template["Parameters"][reference["Ref"]]["Default"] != wanted
        assert "`make layer`" in assertion["AssertDescription"]


@pytest.mark.slow
def test_built_layers_deploy(built: Assembly) -> None:
    """Check that a template with built layers has no such rules and contains the built zip files."""
    assert not [name for name in built.experiment["Rules"] if name.endswith("LayerIsBuilt")]
    for layer in resources(built.experiment, "AWS::Lambda::LayerVersion").values():
        archive = built.asset(built.experiment, layer["Content"])
        assert archive.suffix == ".zip"
        assert zipfile.ZipFile(archive).namelist() == [f"python/{layer['LayerName'].rpartition('-')[2]}.txt"]


@pytest.mark.slow
def test_one_layer_is_not_enough(synth: Synthesize, tmp_path: Path) -> None:
    """Check that a template with only one built layer refuses deployment because of the other."""
    with zipfile.ZipFile(tmp_path / "layer-dataplane.zip", "w") as archive:
        archive.writestr("python/x.txt", "x")
    assert [n for n in synth(layers=tmp_path).experiment["Rules"] if n.endswith("LayerIsBuilt")] == [
        "TorchLayerIsBuilt"
    ]

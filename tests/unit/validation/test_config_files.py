"""The experiments that come with the project, and their schema."""

import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from crossover.errors import ConfigError
from crossover.validation import check_deployment, documents, fields, load
from crossover.workflow.architecture import architectures

CONFIG = Path(__file__).parents[3] / "config"
EXPERIMENTS = sorted(path for path in CONFIG.glob("*.yaml") if "architecture" in documents.read(path))


def test_there_is_one_on_digits_and_one_at_the_papers_setting_for_each() -> None:
    """Every architecture has a file for digits and one for CIFAR-10 in config."""
    names = {path.stem for path in EXPERIMENTS}
    digits = {name.replace("_", "-") for name in architectures()}
    assert names >= digits | {f"{name}-cifar10" for name in digits}


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_each_configuration_file_is_valid_here_and_on_aws(path: Path) -> None:
    """Every file in config is valid, on AWS too, and its experiment has the file's name."""
    found = load(path)
    assert found.name == path.stem
    check_deployment(found)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_it_names_the_schema_and_keeps_it(path: Path) -> None:
    """Every file in config names the JSON schema in its first line and follows it."""
    assert path.read_text().startswith("# yaml-language-server: $schema=experiment.schema.json\n")
    jsonschema.validate(documents.read(path), yaml.safe_load(fields.render_schema()))


def test_the_committed_schema_is_current() -> None:
    """The committed JSON schema is what `crossover schema` prints."""
    assert (CONFIG / "experiment.schema.json").read_text() == fields.render_schema(), (
        "crossover schema > config/experiment.schema.json"
    )


def test_the_schema_is_the_same_whoever_has_named_a_type_before() -> None:
    """The JSON schema is the same if Pydantic made an equal type before."""
    before = (
        "import pydantic.types; pydantic.types.NonNegativeFloat"  # Annotated[float, Ge(0)]: equal to ours with Ge(0.0)
    )
    source = f"{before}; from crossover.validation import fields; print(fields.render_schema(), end='')"
    said = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True).stdout

    assert said == (CONFIG / "experiment.schema.json").read_text()


def test_the_schema_refuses_what_validation_refuses() -> None:
    """The JSON schema refuses wrong values, types and names."""
    text = yaml.safe_load(fields.render_schema())
    for wrong in ({"training": {"epochs": 0}}, {"trainig": {}}, {"training": {"epoch": 1}}, {"workers": "4"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"name": "a", "architecture": "spirt", **wrong}, text)


def test_overrides_and_the_file_are_checked_together(tmp_path: Path) -> None:
    """Overrides replace values of the file, and all wrong ones are reported under the file's name."""
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\narchitecture: spirt\ntraining:\n  epochs: 5\n")
    assert load(path, ["training.epochs=3", "data.directory=/data"]).training.epochs == 3
    with pytest.raises(ConfigError) as caught:
        load(path, ["training.epochs=0", "workers=99"])
    assert str(caught.value).splitlines() == [
        f"{path}:",
        "  workers: 99 is not allowed; expected an integer >= 1 and <= 64",
        "  training.epochs: 0 is not allowed; expected an integer >= 1",
    ]

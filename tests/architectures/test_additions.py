"""An optimizer, a rule and a storage channel are one file each, and the line by which they are found: tests/additions has an example."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossover import validation
from crossover.algorithms.optimizers import OPTIMIZERS
from crossover.algorithms.rules import RULES
from crossover.algorithms.update import Update
from crossover.architecture import load
from crossover.clients.deployed import DeployedClients
from crossover.context import Context, Resources
from crossover.dataplane import connecting
from crossover.dataplane.protocols import StateKeys
from crossover.dataplane.redis_compute import RedisCompute
from crossover.dataplane.traffic import Traffic
from crossover.dataplane.vector import decode
from crossover.errors import ConfigError, Refused
from crossover.experiment import Aggregation, Experiment, Storage
from crossover.learning.datasets import load as load_dataset
from crossover.learning.reference import train_reference
from crossover.running.preparing import prepare
from crossover.workflow import execute, first_event
from tests.additions.geometric_median import GEOMETRIC_MEDIAN
from tests.additions.lion import LION
from tests.additions.sqlite_store import SqliteObjectStore
from tests.architectures.harness import small
from tests.architectures.test_equality import assert_equal_to_reference


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line each."""
    monkeypatch.setitem(OPTIMIZERS, LION.name, LION)
    monkeypatch.setitem(RULES, GEOMETRIC_MEDIAN.name, GEOMETRIC_MEDIAN)


def validated(**sections: object) -> Experiment:
    return validation.validate({"name": "small", "architecture": "spirt", "workers": 5, **sections})


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize("architecture", ["spirt", "all_reduce"])
def test_lion_and_the_geometric_median_train_like_the_reference(architecture: str) -> None:
    """SPIRT keeps its state in the database, all-reduce in its workers."""
    experiment = small(architecture, workers=3, optimizer="lion", learning_rate=0.001)
    assert_equal_to_reference(replace(experiment, aggregation=Aggregation(rule="geometric_median")))


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize(
    "settings", [{"training": {"optimizer": "lion"}}, {"aggregation": {"rule": "geometric_median"}}], ids=str
)
def test_what_the_database_has_no_command_for_is_computed_by_functions(settings: dict[str, object]) -> None:
    assert validated(**settings).database.compute == "fetch"
    assert validated().database.compute == "in_database"


@pytest.mark.usefixtures("found")
def test_the_database_is_not_asked_for_a_command_that_it_lacks() -> None:
    store: Any = SimpleNamespace(traffic=Traffic())
    state, compute = StateKeys("m0", ("v0",)), RedisCompute(store)
    with pytest.raises(Refused, match=r"lion: has no command in the tensor database; database\.compute: fetch"):
        compute.update(state, "g", out=StateKeys("m1", ("v1",)), update=Update(optimizer="lion", learning_rate=0.1))
    with pytest.raises(Refused, match="geometric_median: has no command"):
        compute.combine(["a", "b"], rule=Aggregation(rule="geometric_median"), out="c")


@pytest.mark.usefixtures("found")
def test_what_is_found_can_be_named_and_nothing_else() -> None:
    with pytest.raises(ConfigError, match=r"'tiger' is not allowed; expected one of adam, adamw, sgd, lion"):
        validated(training={"optimizer": "tiger"})
    with pytest.raises(ConfigError, match="geometric_median measures distances between whole gradients, ScatterReduce"):
        validated(architecture="scatter-reduce", aggregation={"rule": "geometric_median"})


def test_a_channel_carries_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All-reduce through an SQLite file: data, gradients, checkpoints and the trained model. The conformance suite holds the store."""
    monkeypatch.setitem(connecting.OBJECT_STORES, "sqlite", SqliteObjectStore)  # the one line
    experiment = replace(small("all_reduce"), storage=Storage(channel="s3"))
    clients = DeployedClients({"CROSSOVER_BUCKET": f"sqlite://{tmp_path}/run"})
    objects = clients.objects(Traffic())
    prepared = prepare(experiment, objects=objects, data=[objects])
    tree = load(experiment.architecture).run
    assert tree is not None
    execute(tree, Context(Resources(clients), run=prepared.run), first_event(prepared.run, workers=experiment.workers))
    digest = json.loads(objects.get(prepared.keys.outcome))["parameters_sha256"]
    trained = decode(objects.get(prepared.keys.final_model(digest)), key="model").data
    assert bytes(trained) == train_reference(prepared.experiment, load_dataset(experiment))[0]

"""Optimizers, rules, codecs and stores are one object each, found in their module: tests/additions has an example of each."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from crossover import validation
from crossover.algorithms.codecs import CODECS, build_codec
from crossover.algorithms.optimizers import OPTIMIZERS, Update
from crossover.algorithms.rules import RULES
from crossover.errors import ConfigError, Refused
from crossover.experiment import Aggregation, Exchange, Experiment, Storage
from crossover.learning.datasets import load as load_dataset
from crossover.learning.reference import train_reference
from crossover.running.preparing import prepare
from crossover.stores import connecting
from crossover.stores.deployed_clients import DeployedClients
from crossover.stores.encoding import decode
from crossover.stores.protocols import StateKeys, Traffic
from crossover.stores.redis_tensors import RedisCompute
from crossover.workflow import execute, first_event
from crossover.workflow.architecture import load
from crossover.workflow.context import Context, Resources
from tests.additions.geometric_median import GEOMETRIC_MEDIAN
from tests.additions.lion import LION
from tests.additions.sign import Sign
from tests.additions.sqlite_store import SqliteObjectStore
from tests.additions.sqlite_vectors import SqliteTensorStore
from tests.architectures.harness import small
from tests.architectures.test_equality import assert_equal_to_reference


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the optimizer, the rule and the codec of this page, as their modules would, for one test."""
    monkeypatch.setitem(OPTIMIZERS, LION.name, LION)
    monkeypatch.setitem(RULES, GEOMETRIC_MEDIAN.name, GEOMETRIC_MEDIAN)
    monkeypatch.setitem(CODECS, Sign.name, Sign)


def validated(**sections: object) -> Experiment:
    """Return the validated experiment of five SPIRT workers with these sections."""
    return validation.validate({"name": "small", "architecture": "spirt", "workers": 5, **sections})


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize("architecture", ["spirt", "all_reduce"])
def test_lion_and_the_geometric_median_train_like_the_reference(architecture: str) -> None:
    """Check that the added optimizer and rule end with the reference's bits, on SPIRT with its state in a database and on AllReduce with
    its state in the workers.
    """
    experiment = small(architecture, workers=3, optimizer="lion", learning_rate=0.001)
    assert_equal_to_reference(replace(experiment, aggregation=Aggregation(rule="geometric_median")))


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize("architecture", ["all_reduce", "p2p_instance"])
def test_signs_train_like_the_reference_and_move_a_bit_an_element(architecture: str) -> None:
    """Check the added codec: the model has the reference's bits, and a projection counts one bit per element. The architectures exchange
    through a shared store and through mailboxes.
    """
    experiment = replace(small(architecture, workers=3), exchange=Exchange(every=1, compression="sign"))
    assert_equal_to_reference(experiment)
    assert build_codec(experiment.exchange).exchanged_bytes(1_000, 3, workers=3, shapes=list) == [(4 + 125 + 12, 4_012)]


@pytest.mark.usefixtures("found")
@pytest.mark.parametrize(
    "settings", [{"training": {"optimizer": "lion"}}, {"aggregation": {"rule": "geometric_median"}}], ids=str
)
def test_what_the_database_has_no_command_for_is_computed_by_functions(settings: dict[str, object]) -> None:
    """Check that `database.compute` becomes `fetch` for an optimizer or a rule that the tensor database lacks, and stays `in_database`
    otherwise.
    """
    assert validated(**settings).database.compute == "fetch"
    assert validated().database.compute == "in_database"


@pytest.mark.usefixtures("found")
def test_the_database_is_not_asked_for_a_command_that_it_lacks() -> None:
    """Check that RedisCompute refuses an optimizer and a rule that the tensor database lacks, without calling it."""
    nobody: Any = None
    state, compute = StateKeys("m0", ("v0",)), RedisCompute(nobody, Traffic(), time_to_live_s=1)
    with pytest.raises(Refused, match=r"lion: has no command in the tensor database; database\.compute: fetch"):
        compute.update(state, "g", out=StateKeys("m1", ("v1",)), update=Update(optimizer="lion", learning_rate=0.1))
    with pytest.raises(Refused, match="geometric_median: has no command"):
        compute.combine(["a", "b"], rule=Aggregation(rule="geometric_median"), out="c")


@pytest.mark.usefixtures("found")
def test_what_is_found_can_be_named_and_nothing_else() -> None:
    """Check that error messages list the added optimizer and codec among the allowed values, and that combinations which the added parts do
    not support are refused.
    """
    with pytest.raises(ConfigError, match=r"'tiger' is not allowed; expected one of adam, adamw, sgd, lion"):
        validated(training={"optimizer": "tiger"})
    with pytest.raises(ConfigError, match=r"'sing' is not allowed; expected one of none, .*, sign; did you mean sign"):
        validated(architecture="all_reduce", exchange={"compression": "sing"})
    robust = {"rule": "median", "non_finite": "drop"}
    with pytest.raises(ConfigError, match="non_finite: drop must see what is not finite, and sign cannot encode it"):
        validated(architecture="all_reduce", exchange={"compression": "sign"}, aggregation=robust)
    with pytest.raises(
        ConfigError, match="geometric_median measures distances between whole gradients, but ScatterReduce"
    ):
        validated(architecture="scatter-reduce", aggregation={"rule": "geometric_median"})


@pytest.mark.parametrize("channel", ["redis", "s3"])
def test_stores_carry_a_whole_run(
    channel: Literal["redis", "s3"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run AllReduce through SQLite files: data, gradients, checkpoints and the trained model. The conformance suite checks the stores
    themselves.
    """
    monkeypatch.setitem(connecting.OBJECT_STORES, "sqlite", SqliteObjectStore)  # the one line each
    monkeypatch.setitem(connecting.TENSOR_STORES, "sqlite", SqliteTensorStore)
    experiment = replace(small("all_reduce"), storage=Storage(channel=channel))
    database = {"CROSSOVER_REDIS": f"sqlite://{tmp_path}/vectors"} if channel == "redis" else {}
    clients = DeployedClients({"CROSSOVER_BUCKET": f"sqlite://{tmp_path}/run", **database})
    objects = clients.objects(Traffic())
    prepared = prepare(experiment, objects=objects, data=[objects])
    tree = load(experiment.architecture).run
    assert tree is not None
    execute(tree, Context(Resources(clients), run=prepared.run), first_event(prepared.run, workers=experiment.workers))
    digest = json.loads(objects.get(prepared.keys.outcome))["parameters_sha256"]
    trained = decode(objects.get(prepared.keys.final_model(digest)), key="model").data
    assert bytes(trained) == train_reference(prepared.experiment, load_dataset(experiment))[0]

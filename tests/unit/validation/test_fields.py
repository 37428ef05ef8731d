"""Types, bounds, choices and unknown names: each problem in one line that says what would do."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.errors import ConfigError
from crossover.experiment import MOVED, Exchange, Experiment, from_plain
from crossover.validation import fields
from crossover.workflow.architecture import find_settings_classes

LEAST = {"name": "spirt", "architecture": "spirt"}


def problems(**changes: Any) -> list[str]:
    """Return the lines of the error with which a minimal experiment with these changes is refused."""
    with pytest.raises(ConfigError) as caught:
        fields.build_experiment({**LEAST, **changes})
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"epochs": -3}}, "training.epochs: -3 is not allowed; expected an integer >= 1"),
        ({"training": {"epochs": 3.0}}, "training.epochs: 3.0 is not allowed; expected an integer >= 1"),
        ({"training": {"epochs": "3"}}, "training.epochs: '3' is not allowed; expected an integer >= 1"),
        ({"training": {"epochs": True}}, "training.epochs: true is not allowed; expected an integer >= 1"),
        ({"training": {"momentum": 1}}, "training.momentum: 1 is not allowed; expected a number >= 0 and < 1"),
        ({"training": {"nesterov": 1}}, "training.nesterov: 1 is not allowed; expected true or false"),
        ({"training": {"model": 5}}, "training.model: 5 is not allowed; expected text"),
        (
            {"training": {"optimizer": "sdg"}},
            "training.optimizer: 'sdg' is not allowed; expected one of adam, adamw, sgd; did you mean sgd?",
        ),
        (
            {"exchange": {"every": 0}},
            "exchange.every: 0 is not allowed; expected an integer >= 1, or epoch, or null (none)",
        ),
        (
            {"training": {"learning_rate": float("inf")}},
            "training.learning_rate: 'inf' is not allowed; expected a number > 0",
        ),
        ({"data": {"validation": "tests"}}, None),
        ({"training": {"metric": "accuracy"}}, None),
        ({"faults": {"workers": [1, "a"]}}, "faults.workers.1: 'a' is not allowed; expected an integer"),
        ({"faults": {"workers": 1}}, "faults.workers: 1 is not allowed; expected a list, each an integer"),
        (
            {"functions": {"memory_mb": {"collect": 64}}},
            "functions.memory_mb.collect: 64 is not allowed; expected an integer >= 128 and <= 10240",
        ),
        ({"workers": None}, "workers: null is not allowed; expected an integer >= 1 and <= 64"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(changes: dict[str, Any], message: str | None) -> None:
    """One wrong value gives one problem: `message`, with the field and what is expected; None skips the comparison."""
    found = problems(**changes)
    assert len(found) == 1
    if message is not None:
        assert found == [message]


def test_what_is_required_is_asked_for() -> None:
    """An experiment without fields raises ConfigError, which names the required ones."""
    with pytest.raises(ConfigError) as caught:
        fields.build_experiment({})
    assert str(caught.value).splitlines() == [
        "name: is missing; expected text",
        "architecture: is missing; expected text",
    ]


def test_an_unknown_name_gets_the_nearest_and_all() -> None:
    """An unknown field is reported with the nearest name and all names of its section."""
    assert problems(training={"epoch": 3})[0].startswith(
        "training.epoch: is unknown; did you mean epochs?; one of model, weights, adapters,"
    )
    assert problems(trainig={})[0].startswith("trainig: is unknown; did you mean training?; one of name, architecture,")


def test_all_problems_are_reported_at_once() -> None:
    """Four problems in different sections are reported together, each with a proposal after "; "."""
    found = problems(training={"epochs": 0, "lr": 1}, workers=65, gpus={})
    assert len(found) == 4
    assert all("; " in line for line in found)


def test_a_section_left_empty_is_its_defaults() -> None:
    """A section that is null has its defaults."""
    assert fields.build_experiment({**LEAST, "training": None}) == fields.build_experiment(LEAST) == Experiment(**LEAST)


def test_an_integer_does_for_a_number() -> None:
    """An integer is accepted for a float field and converted."""
    found = fields.build_experiment({**LEAST, "training": {"learning_rate": 1}})
    assert found.training.learning_rate == 1.0
    assert isinstance(found.training.learning_rate, float)


@pytest.mark.slow
@given(
    epochs=st.integers(1, 10_000),
    rate=st.floats(1e-9, 1e3),
    workers=st.integers(1, 64),
    attackers=st.lists(st.integers(0, 63), max_size=5),
    memory=st.dictionaries(st.sampled_from(["default", "collect"]), st.integers(128, 10_240)),
    accuracy=st.none() | st.floats(0.01, 1.0),
)
def test_what_is_resolved_is_read_back(
    epochs: int, rate: float, workers: int, attackers: list[int], memory: dict[str, int], accuracy: float | None
) -> None:
    """An experiment that is written as JSON is read back equal."""
    plain = {
        **LEAST,
        "workers": workers,
        "training": {"epochs": epochs, "learning_rate": rate, "target": accuracy},
        "faults": {"workers": attackers},
        "functions": {"memory_mb": memory},
    }
    once = fields.build_experiment(plain)
    assert fields.build_experiment(json.loads(json.dumps(once.to_plain()))) == once


def test_every_annotation_has_words() -> None:
    """Every type of a field can be described in words."""

    def leaves(cls: Any) -> list[Any]:
        """Return the types of all fields of the class and of the dataclasses in it."""
        hints = fields._hints(cls)
        return [
            h for hint in hints.values() for h in (leaves(hint) if hasattr(hint, "__dataclass_fields__") else [hint])
        ]

    whole = fields.with_sections(tuple(find_settings_classes(None).items()))
    assert all(fields.describe(annotation) for annotation in leaves(whole))


def test_an_old_name_is_refused_with_the_new_one() -> None:
    """A field's former name is refused with its present one, and a field that is gone with the advice to leave it out."""
    (problem,) = problems(training={"target_accuracy": 0.9})
    assert problem.startswith("training.target_accuracy: is unknown; is called training.target now")
    for old, new in MOVED.items():
        section, name = old.split(".")
        (problem,) = problems(**{section: {name: 4}})
        assert problem.startswith(f"{old}: is unknown; is called {new} now")
    (problem,) = problems(database={"engine": "redisai"})
    assert problem.startswith("database.engine: is unknown; leave it out")
    (problem,) = problems(database={"variant": "torch"})
    assert problem.startswith("database.variant: is unknown; leave it out: the module with PyTorch")


def test_a_run_of_an_earlier_version_is_read_with_the_names_of_today() -> None:
    """The stored experiment of an earlier version, with former field names, is read as today's."""
    kept = Experiment(name="x", architecture="p2p_instance", exchange=Exchange(every=3, compression="qsgd", bits=4))
    earlier = json.loads(json.dumps(kept.to_plain()))
    earlier["training"]["sync_every"] = earlier["exchange"].pop("every")
    for name in ("compression", "bits", "bucket", "norm"):
        earlier["p2p"][name] = earlier["exchange"].pop(name)
    earlier["database"]["variant"] = "core"
    assert from_plain(earlier) == kept

"""Every TensorCompute: the same bits as crossover.algorithms, wherever the arithmetic happens."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from crossover.algorithms import robust, rules
from crossover.algorithms.aggregation import apply_rule
from crossover.algorithms.averaging import mean
from crossover.algorithms.buffers import tensor
from crossover.algorithms.optimizers import OPTIMIZERS, Update
from crossover.algorithms.updates import step
from crossover.errors import Corrupt, Missing, Refused
from crossover.experiment import Aggregation
from crossover.stores import connecting
from crossover.stores.encoding import VectorKind
from crossover.stores.protocols import StateKeys, TensorCompute, TensorStore, Traffic
from tests.conformance.conftest import MakeTensors
from tests.conformance.vectors import at_once, of, random, vector

PLACES = {
    "memory": ("memory", "fetch"),
    "fetch-objects": ("objects", "fetch"),
    "fetch-redis": ("redis", "fetch"),
    "redis": ("redis", "in_database"),
}


@dataclass(frozen=True)
class Database:
    """A tensor store, the computation on its vectors and its traffic."""

    store: TensorStore
    compute: TensorCompute
    traffic: Traffic

    def put(self, name: str, values: Tensor, kind: VectorKind = VectorKind.GRADIENT, samples: int = 0) -> str:
        """Store a tensor at the key `name`, and return the key."""
        self.store.put(name, of(values, kind, samples))
        return name

    def get(self, name: str, kind: VectorKind | None = None) -> Tensor:
        """Return the vector at the key `name` as a tensor."""
        return tensor(self.store.get(name, kind=kind).data)


@pytest.fixture(scope="module", params=PLACES)
def database(request: pytest.FixtureRequest, make_tensors: MakeTensors) -> Database:
    """Return a tensor store of each kind with its computation: inside the database or in the caller."""
    name, where = PLACES[request.param]
    traffic = Traffic()
    store = make_tensors(name, traffic)
    return Database(store, connecting.choose_tensor_compute(store, compute=where), traffic)  # type: ignore[arg-type]


def by_rule(rule: Aggregation, compute: TensorCompute, keys: list[str], out: str) -> None:
    """Combine the vectors at `keys` by an aggregation rule into the vector at `out`."""
    compute.combine(keys, rule=rule, out=out)


def bits(values: Tensor) -> bytes:
    """Return the bytes of a tensor's values, for exact comparison."""
    return values.numpy().tobytes()


SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 300), st.integers(0, 2**31))


# --- means ------------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(shape=SHAPES, weights=st.lists(st.integers(1, 70_000), min_size=6, max_size=6), equal=st.booleans())
def test_mean_has_the_bits_of_our_own(
    database: Database, shape: tuple[int, int, int], weights: list[int], equal: bool
) -> None:
    """Check that the database's mean equals our own bit for bit, which tests/unit/algorithms/test_averaging.py checks."""
    count, elements, seed = shape
    weights = [weights[0]] * count if equal else weights[:count]
    vectors = [random(elements, seed=seed + i, scale=10.0**i) for i in range(count)]
    keys = [database.put(f"m{i}", each, samples=w) for i, (each, w) in enumerate(zip(vectors, weights, strict=True))]
    database.store.delete("mean")
    database.compute.mean(keys, out="mean")
    got = database.store.get("mean", kind=VectorKind.GRADIENT)
    assert bytes(got.data) == bits(mean(vectors, weights))
    assert got.samples == sum(weights)


def test_a_vector_without_samples_counts_once(database: Database, run: str) -> None:
    """Check that a vector of zero samples has the weight of one in the mean."""
    for name, samples in (("a", 0), ("b", 3)):
        database.put(f"{run}/{name}", torch.full((5,), float(samples)), VectorKind.MODEL, samples)
    database.compute.mean([f"{run}/a", f"{run}/b"], out=f"{run}/out")
    assert database.store.get(f"{run}/out") == of(torch.full((5,), 9 / 4), VectorKind.MODEL, 4)


def test_a_mean_of_nan_is_nan(database: Database, run: str) -> None:
    """Check that NaN in an input gives NaN in the same place of the mean only."""
    database.put(f"{run}/a", torch.tensor([1.0, math.nan]))
    database.put(f"{run}/b", torch.tensor([3.0, 1.0]))
    database.compute.mean([f"{run}/a", f"{run}/b"], out=f"{run}/out")
    out = database.get(f"{run}/out")
    assert out[0] == 2.0
    assert out[1].isnan()


# --- robust rules -----------------------------------------------------------------------------------------------------


@st.composite
def robust_rules(draw: st.DrawFn) -> tuple[int, Aggregation]:
    """Draw a number of workers, and a robust aggregation rule with parameters that are allowed for so many workers."""
    count = draw(st.integers(3, 7))
    faulty = draw(st.integers(0, (count - 3) // 2))
    krum = Aggregation(rule="krum", faulty=faulty, select=draw(st.integers(1, count - faulty - 2)))
    trimmed = Aggregation(rule="trimmed_mean", trim=draw(st.integers(0, (count - 1) // 2)))
    return count, draw(st.sampled_from([Aggregation(rule="median"), trimmed, krum]))


@settings(max_examples=60)
@given(case=robust_rules(), elements=st.integers(1, 300), seed=st.integers(0, 2**31))
def test_robust_rules_have_the_bits_of_our_own(
    database: Database, case: tuple[int, Aggregation], elements: int, seed: int
) -> None:
    """Check that the database's robust rules equal our own bit for bit, which tests/unit/algorithms/test_robust.py checks."""
    count, rule = case
    vectors = [random(elements, seed=seed + i) for i in range(count)]
    if rule.rule == "krum":  # distances that are equal but for the last bit of a sum choose differently
        vectors = [torch.randn(elements, generator=torch.Generator().manual_seed(seed + i)) for i in range(count)]
    vectors[-1] = vectors[0].clone()  # a tie
    keys = [database.put(f"d{i}", each, samples=i + 1) for i, each in enumerate(vectors)]
    database.store.delete("robust")
    database.compute.combine(keys, rule=rule, out="robust")
    assert bits(database.get("robust")) == bits(apply_rule(vectors, [1] * count, rule))
    assert database.store.get("robust").samples == sum(range(1, count + 1))


BY_RULE = {
    "mean": Aggregation(),
    "median": Aggregation(rule="median"),
    "trimmed_mean": Aggregation(rule="trimmed_mean", trim=1),
    "krum": Aggregation(rule="krum", faulty=0),
}
RULES: dict[str, Callable[[TensorCompute, list[str], str], None]] = {
    "mean of minibatches": lambda compute, keys, out: compute.mean(keys, out=out),
    **{name: partial(by_rule, rule) for name, rule in BY_RULE.items()},
}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rule", BY_RULE)
def test_an_input_that_is_not_finite_is_named(database: Database, run: str, rule: str, bad: float) -> None:
    """Check that a rule refuses NaN or infinity, names the input and stores nothing."""
    values = [torch.ones(70_000) for _ in range(3)]
    values[1][66_000] = bad
    keys = [database.put(f"{run}/{i}", each) for i, each in enumerate(values)]
    with pytest.raises(Refused, match=f"{run}/1.*NaN or infinite"):
        RULES[rule](database.compute, keys, f"{run}/out")
    assert not database.store.exists(f"{run}/out")


DROPPING = (
    Aggregation(rule="median", non_finite="drop"),
    Aggregation(rule="trimmed_mean", trim=2, non_finite="drop"),
    Aggregation(rule="krum", faulty=2, select=3, non_finite="drop"),
)


@pytest.mark.parametrize("found_elsewhere", [[], [5]])
@pytest.mark.parametrize("rule", DROPPING, ids=lambda rule: rule.rule)
def test_a_dropped_input_is_as_if_it_had_not_come(
    database: Database, run: str, rule: Aggregation, found_elsewhere: list[int]
) -> None:
    """Check that a rule combines what is left after inputs were dropped as so many fewer, of whom so many fewer may be faulty."""
    values = [random(3_000, seed=i) for i in range(7)]
    keys = [database.put(f"{run}/{i}", each, samples=i + 1) for i, each in enumerate(values)]
    database.put(keys[2], torch.full((3_000,), math.nan))
    asked: list[list[int]] = []

    def agree(bad: list[int]) -> list[int]:
        """Note the inputs found bad here, and return them with those found elsewhere."""
        asked.append(bad)
        return bad + found_elsewhere

    database.compute.combine(keys, rule=rule, out=f"{run}/out", agree=agree)
    assert asked == [[2]]
    dropped = [2, *found_elsewhere]
    kept = [values[i] for i in range(7) if i not in dropped]
    match rule.rule:
        case "median":
            expected = robust.median(kept)
        case "trimmed_mean":
            expected = robust.trimmed_mean(kept, trim=2 - len(dropped))
        case _:
            expected = robust.krum(kept, faulty=2 - len(dropped), select=3)
    assert bits(database.get(f"{run}/out")) == bits(expected)
    assert database.store.get(f"{run}/out").samples == sum(i + 1 for i in range(7) if i not in dropped)
    database.store.delete(*keys)
    database.compute.combine(keys, rule=rule, out=f"{run}/out", agree=agree)  # finished: nobody is asked again
    assert asked == [[2]]


@pytest.mark.parametrize("rule", DROPPING, ids=lambda rule: rule.rule)
def test_more_dropped_than_the_rule_bears_are_named(database: Database, run: str, rule: Aggregation) -> None:
    """Check that a rule refuses more inputs with infinity than it bears, names them and stores nothing."""
    bears = rules.count_tolerated(rule, 7)
    keys = [database.put(f"{run}/{i}", torch.full((4,), math.inf if i <= bears else 1.0)) for i in range(7)]
    with pytest.raises(Refused, match=f"{run}/0, {run}/1.*: {bears + 1} of 7 .*{rule.rule} bears {bears}"):
        database.compute.combine(keys, rule=rule, out=f"{run}/out")
    assert not database.store.exists(f"{run}/out")


@pytest.mark.parametrize("rule", RULES)
def test_rules_refuse_what_does_not_fit_and_store_nothing(database: Database, run: str, rule: str) -> None:
    """Check that a rule refuses inputs of another kind or length and missing ones, and stores nothing."""
    apply = RULES[rule]
    database.put(f"{run}/gradient", torch.ones(4))
    database.put(f"{run}/model", torch.ones(4), VectorKind.MODEL)
    database.put(f"{run}/short", torch.ones(1))
    good, out = f"{run}/gradient", f"{run}/out"
    with pytest.raises(Refused, match="model"):
        apply(database.compute, [good, good, f"{run}/model"], out)
    with pytest.raises(Refused, match="short"):
        apply(database.compute, [good, good, f"{run}/short"], out)
    with pytest.raises(Missing) as caught:
        apply(database.compute, [good, f"{run}/nothing", good], out)
    assert caught.value.key == f"{run}/nothing"
    assert not database.store.exists(out)


def test_rules_refuse_impossible_parameters(database: Database, run: str) -> None:
    """Check that a rule refuses parameters which are impossible for the number of inputs."""
    keys = [database.put(f"{run}/{i}", torch.ones(4)) for i in range(4)]
    for impossible in (
        Aggregation(rule="trimmed_mean", trim=2),
        Aggregation(rule="krum", faulty=1),
        Aggregation(rule="krum", faulty=0, select=3),  # of four, with none faulty: 4 - 0 - 2
    ):
        with pytest.raises(Refused):
            database.compute.combine(keys, rule=impossible, out=f"{run}/out")
    assert not database.store.exists(f"{run}/out")


@pytest.mark.parametrize("rule", RULES)
def test_a_finished_step_changes_nothing_even_when_its_inputs_are_gone(database: Database, run: str, rule: str) -> None:
    """Check that a repeated rule keeps its result, whether its inputs have changed or are gone."""
    keys = [database.put(f"{run}/{i}", torch.full((4,), float(i))) for i in range(3)]
    RULES[rule](database.compute, keys, f"{run}/out")
    before = database.store.get(f"{run}/out")
    database.put(keys[0], torch.full((4,), 100.0))
    RULES[rule](database.compute, keys, f"{run}/out")
    database.store.delete(*keys)
    RULES[rule](database.compute, keys, f"{run}/out")
    assert database.store.get(f"{run}/out") == before


# --- optimizer steps --------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    parameters=st.integers(1, 300),
    seed=st.integers(0, 2**31),
    options=st.fixed_dictionaries(
        {
            "optimizer": st.sampled_from(["sgd", "adam", "adamw"]),
            "number": st.integers(0, 2),
            "momentum": st.sampled_from([0.0, 0.9, 0.5]),
            "nesterov": st.booleans(),
            "learning_rate": st.sampled_from([0.1, 0.01, 1.0, 1 / 3]),
            "weight_decay": st.sampled_from([0.0, 5e-4, 0.1]),
            "buffers": st.integers(0, 9),
            "statistics_momentum": st.sampled_from([1.0, 0.1]),
        }
    ),
)
def test_an_update_is_our_own(database: Database, parameters: int, seed: int, options: dict[str, Any]) -> None:
    """Check that the database's update equals our own: SGD to the bit, Adam within a millionth of the change.

    tests/unit/algorithms/test_optimizer.py checks our own against torch's.
    """
    update = Update(**{**options, "nesterov": options["nesterov"] and options["momentum"] > 0})
    optimizer = OPTIMIZERS[update.optimizer]
    model, gradient = (random(parameters + update.buffers, seed=seed + i) for i in range(2))
    vectors = [random(parameters, seed=seed + 2 + i).abs() for i in range(len(optimizer.vectors(update.momentum)))]
    held = [] if update.is_first else vectors
    kind, names = VectorKind(optimizer.kind), [f"optimizer{i}" for i in range(len(vectors))]
    state = StateKeys(
        database.put("model", model, VectorKind.MODEL),
        tuple(database.put(name, each, kind) for name, each in zip(names, held, strict=False)),
    )
    out = StateKeys("model'", tuple(f"{name}'" for name in names))
    database.store.delete(out.model, *out.optimizer)
    database.compute.update(state, database.put("gradient", gradient), out=out, update=update)
    expected, others = step(model, gradient, held, update)
    exact = update.optimizer == "sgd"
    last_place = 0.0 if exact else 2.0**-23 * float(model.abs().max())  # the sum is rounded to the model's own
    within = 0.0 if exact else 1e-6 * float((expected - model)[:parameters].abs().max()) + last_place
    found = database.get(out.model, VectorKind.MODEL)
    assert float((found - expected)[:parameters].abs().max()) <= within
    assert bits(found[parameters:]) == bits(expected[parameters:])
    for key, other in zip(out.optimizer, others, strict=True):
        torch.testing.assert_close(database.get(key, kind), other, rtol=0.0 if exact else 1e-6, atol=0.0)


def step_of(database: Database, run: str, **options: Any) -> Callable[[], None]:
    """Store a model, a gradient and a velocity, and return a function that does an SGD step with momentum on them. `options`: keys or
    settings of the update that differ.
    """
    database.put(f"{run}/model", torch.ones(8), VectorKind.MODEL)
    database.put(f"{run}/gradient", torch.full((8,), 2.0), samples=9)
    database.put(f"{run}/velocity", torch.full((6,), 3.0), VectorKind.VELOCITY)
    keys = {
        "state": StateKeys(f"{run}/model", (f"{run}/velocity",)),
        "gradient": f"{run}/gradient",
        "out": StateKeys(f"{run}/model1", (f"{run}/velocity1",)),
    }
    given: dict[str, Any] = {name: options.pop(name, key) for name, key in keys.items()}
    own = Update(number=1, **{"learning_rate": 0.5, "momentum": 0.5, "buffers": 2} | options)
    return lambda: database.compute.update(**given, update=own)


def test_the_whole_state_appears_once(database: Database, run: str) -> None:
    """Check that an update stores model and velocity once, and leaves its inputs as they were."""
    step_of(database, run)()
    expected = [1 - 0.5 * 3.5] * 6 + [2.0] * 2
    assert database.get(f"{run}/model1").tolist() == expected
    step_of(database, run, learning_rate=7.0)()
    assert database.get(f"{run}/model1").tolist() == expected
    assert database.get(f"{run}/velocity1").tolist() == [3.5] * 6
    assert database.get(f"{run}/model").tolist() == [1.0] * 8  # nothing is changed in place


def test_a_finished_update_is_free(database: Database, run: str) -> None:
    """Check that a repeated update succeeds although its inputs are gone."""
    step_of(database, run)()
    again = step_of(database, run)
    database.store.delete(f"{run}/model", f"{run}/gradient", f"{run}/velocity")
    again()


def test_many_attempts_make_one_state(database: Database, run: str) -> None:
    """Check that six attempts at once at an update store its result."""
    steps = [step_of(database, run) for _ in range(6)]
    at_once(6, lambda i: steps[i]())
    assert database.get(f"{run}/velocity1", VectorKind.VELOCITY).tolist() == [3.5] * 6


def test_updates_refuse_what_does_not_fit_and_store_nothing(database: Database, run: str) -> None:
    """Check that an update refuses vectors of another kind or length and missing ones, and stores nothing."""
    gradient, model = f"{run}/gradient", f"{run}/model"
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (Corrupt, {"gradient": model}),
        (Corrupt, {"state": StateKeys(gradient, (f"{run}/velocity",))}),
        (Corrupt, {"state": StateKeys(model, (gradient,))}),
        (Missing, {"gradient": f"{run}/nothing"}),
        (Missing, {"state": StateKeys(model, (f"{run}/nothing",))}),
        (Refused, {"buffers": 3}),  # velocity of 6 for 5 parameters
        (Refused, {"state": StateKeys(model)}),
        (Refused, {"out": StateKeys(f"{run}/model1")}),
        (Refused, {"momentum": 0.0}),
    ]
    for error, options in wrong:
        with pytest.raises(error):
            step_of(database, run, **options)()
        assert not database.store.exists(f"{run}/model1"), options
        assert not database.store.exists(f"{run}/velocity1"), options


# --- questions --------------------------------------------------------------------------------------------------------


def test_vectors_with_nan_or_infinity_are_not_finite(database: Database, run: str) -> None:
    """Check that is_finite is False for NaN and infinity only, not for large values."""
    database.put(f"{run}/v", torch.tensor([3.0, 4.0]))
    database.put(f"{run}/large", torch.full((10_000,), 1e30))  # its squares pass float32
    database.put(f"{run}/nan", torch.tensor([1.0, math.nan]))
    database.put(f"{run}/inf", torch.tensor([1.0, math.inf]))
    assert [database.compute.is_finite(f"{run}/{name}") for name in ("v", "large", "nan", "inf")] == [
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(Missing):
        database.compute.is_finite(f"{run}/nothing")


def test_in_database_no_vector_leaves_it(make_tensors: MakeTensors, run: str) -> None:
    """Check that Redis computes means and rules without sending or receiving a vector, and that the results expire."""
    traffic = Traffic()
    store = make_tensors("redis", traffic)
    keys = [f"{run}/{i}" for i in range(4)]
    for key in keys:
        store.put(key, vector(1, 2, 3))
    sent = traffic.as_record()["bytes_out"]
    compute = connecting.choose_tensor_compute(store, compute="in_database")
    compute.mean(keys, out=f"{run}/mean")
    for non_finite in ("refuse", "drop"):
        rule = Aggregation(rule="median", non_finite=non_finite)  # type: ignore[arg-type]
        compute.combine(keys, rule=rule, out=f"{run}/median/{non_finite}")
    assert (traffic.as_record()["bytes_in"], traffic.as_record()["bytes_out"]) == (0, sent)
    assert all(store.client.command("PTTL", f"{run}/{out}") > 0 for out in ("mean", "median/refuse", "median/drop"))  # type: ignore[attr-defined]

"""Aggregation by shards, a tree and levels: the bits of one process, whatever call fails, in this process and on the local cloud."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover import running, validation
from crossover.algorithms.aggregators import one_process
from crossover.algorithms.aggregators.gradients import gradient
from crossover.architecture import architectures, load
from crossover.errors import ConfigError, RunFailed, Unavailable
from crossover.experiment import Experiment
from crossover.local.cloud import LocalCloud
from crossover.reports import comparison
from crossover.reports.folder import RunFolder
from crossover.simulation import PURE_COMPUTE, simulate
from tests.architectures.harness import Job, standing

DESIGNS = [name for name in architectures() if not load(name).trains]


def experiment(architecture: str, *, clients: int = 7, parameters: int = 1_001) -> Experiment:
    plain = {
        "name": "means",
        "architecture": architecture,
        "workers": clients,
        architecture: {"parameters": parameters},
    }
    return validation.validate(plain)


def inline(architecture: str, out: Path, **size: int) -> RunFolder:
    return running.run_inline(experiment(architecture, **size), out / architecture, lambda progress: None)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", DESIGNS)
def test_a_run_ends_with_the_means_of_one_process_and_asks_what_its_projection_says(
    architecture: str, tmp_path: Path
) -> None:
    result = inline(architecture, tmp_path).result
    assert (result["outcome"], result["incomplete"]) == ("finished", [])
    assert result["final"]["equals_one_process"] is True
    plan = load(architecture).aggregates
    assert plan is not None
    projected = simulate(experiment(architecture), PURE_COMPUTE, keep_records=True)
    assert {step["step"]: step["count"] for step in result["steps"]} == {
        name: use.invocations for name, use in projected.steps.items()
    }
    cold = sum(use.cold for use in projected.steps.values())  # each reads the run's facts, which one process does once
    there, here = projected.traffic["object_store"], result["traffic"]["object_store"]
    assert here["requests"] - 1 == there["requests"] - cold
    assert there["bytes_out"] == pytest.approx(here["bytes_out"], abs=100 * len(means(result)))
    assert Counter((r["round"], r["minibatch"]) for r in projected.records if r["step"] == "aggregate") == Counter(
        (level, n) for level, row in enumerate(plan(experiment(architecture)).levels, 1) for n, _ in enumerate(row)
    )


def means(result: Any) -> list[str]:
    found: list[str] = result["final"]["means"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("architecture", DESIGNS)
def test_whatever_call_fails_the_means_are_the_same(architecture: str) -> None:
    """Before or after any call of a store: the step is tried again, and nothing but the means is left."""
    setting, calls = experiment(architecture, clients=4, parameters=40), list[str]()
    undisturbed = left(setting, lambda moment, operation: calls.append(moment))
    for number in range(len(calls)):
        ahead = iter(range(number + 1))

        def fails_once(moment: str, operation: str, ahead: Any = ahead, number: int = number) -> None:
            if next(ahead, None) == number:
                raise Unavailable(f"call {number}, {moment} {operation}")

        assert left(setting, fails_once) == undisturbed, number


def left(setting: Experiment, hook: Any) -> dict[str, bytes]:
    """What lies in the bucket at the end, without facts and records, by the key's end."""
    job = Job(setting)
    job.clients.hook = hook
    job.execute()
    store, keys = job.clients.object_store, job.prepared.keys
    return {key.removeprefix(keys.prefix): bytes(store.get(key)) for key in store.list(f"{keys.prefix}mean/")}


def test_a_mean_of_other_bits_fails_the_run_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_process, "gradient", lambda seed, client, part: gradient(seed + 1, client, part))
    with pytest.raises(RunFailed, match="level 1, aggregator 0: other bits"):
        inline("grads_sharding", tmp_path)


@pytest.mark.slow
def test_on_the_cloud_on_this_machine(cloud: LocalCloud, tmp_path: Path) -> None:
    """Three levels, deployed: every function, the state machine, the same bits and the same number of invocations."""
    setting = replace(experiment("lifl"), name="means")
    with standing(cloud, setting, tmp_path / "assembly"):
        found = running.run_deployed(
            setting, tmp_path / "out", lambda progress: None, session=cloud.session(), where="local"
        )
    assert (found.result["outcome"], found.result["incomplete"]) == ("finished", [])
    assert found.result["final"]["equals_one_process"] is True
    here = inline("lifl", tmp_path).result
    assert [(each["step"], each["count"]) for each in found.result["steps"]] == [
        (each["step"], each["count"]) for each in here["steps"]
    ]


def test_what_does_not_apply_is_refused_in_words(tmp_path: Path) -> None:
    plain = {"name": "means", "architecture": "lifl", "training": {"epochs": 3}, "storage": {"channel": "s3"}}
    with pytest.raises(ConfigError, match=r"training: lifl trains nothing: .* leave out training and storage"):
        validation.validate(plain)
    with pytest.raises(
        ConfigError, match=r"(?m)^functions.memory_mb.aggregate: 1,769 MB do not hold 2 x 4,096 MB .* at least 8,392"
    ):
        inline("lambda_fl", tmp_path, parameters=2**30)


@pytest.mark.slow
def test_designs_are_compared_and_not_with_another_number_of_clients(tmp_path: Path) -> None:
    runs = [inline(name, tmp_path, clients=4, parameters=50) for name in DESIGNS]
    assert comparison.of(runs).verdict.startswith("no verdict on measured seconds: ")  # one run each
    other = inline("lifl", tmp_path / "other", clients=5, parameters=50)
    with pytest.raises(ConfigError, match=r"data\.clients differs: 4 in grads_sharding, 5 in lifl"):
        comparison.of([runs[0], other])

"""What exchanges move in a projection: the closed forms of docs/exchange.md, which are what the real steps move."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover import validation
from crossover.errors import NoProjection
from crossover.experiment import Exchange
from crossover.running.inline import run_inline
from crossover.simulation import AWS, Workload, simulate
from tests.architectures.harness import small

STILL = AWS.without_stragglers()
D = 4 * (3_217_226 + 21_888)  # bytes of MobileNet
W, EPOCH = 4, 24  # workers, minibatches


@pytest.mark.slow
@pytest.mark.parametrize(
    "exchange",
    [
        Exchange(compression="fp16"),
        Exchange(compression="qsgd", bits=4, bucket=130),
        Exchange(compression="powersgd", rank=2),
    ],
    ids=lambda exchange: exchange.compression,
)
def test_projected_bytes_are_those_of_the_real_steps(exchange: Exchange, tmp_path: Path) -> None:
    """Check that a simulated run moves the same bytes through the tensor store as a run inline."""
    experiment = replace(small("all_reduce", workers=3, epochs=1), exchange=exchange)
    run, told = run_inline(experiment, tmp_path, lambda progress: None), simulate(experiment, STILL, keep_records=True)
    moved = []
    for records in (run.records, told.records):
        traffics = [record["traffic"]["tensor_store"] for record in records if record["step"] == "train"]
        moved.append([sum(each[way] for each in traffics) for way in ("bytes_out", "bytes_in")])
    assert moved[0] == moved[1]


def test_a_program_alone_reads_as_much_as_projected_each_object_once(tmp_path: Path) -> None:
    """Check that a single program reads data in its first epoch only, with as many requests as simulated."""
    experiment = replace(small("single", epochs=3), sections={"single": {"on": "instance"}})
    experiment = replace(experiment, functions=replace(experiment.functions, checkpoint_every=1_000))
    run, told = run_inline(experiment, tmp_path, lambda progress: None), simulate(experiment, STILL, keep_records=True)
    read = []
    for records in (run.records, told.records):
        traffics = [record["traffic"]["object_store"] for record in records if record["step"] == "train_single"]
        read.append([(each["bytes_in"] > 1_000, each["operations"].get("get", 0)) for each in traffics])
    assert read[0] == read[1]
    assert [much for much, _ in read[0]] == [True, False, False]


@pytest.mark.parametrize(
    ("architecture", "moving"), [("all_reduce", "store"), ("gpu", "send"), ("p2p_instance", "send")]
)
def test_compressing_takes_a_stage_and_moving_less_then(architecture: str, moving: str) -> None:
    """Check that compression adds the stage `compress` and shortens the stage `moving`."""
    stages: list[dict[str, float]] = []
    for exchange in (Exchange(), Exchange(compression="fp16")):
        told = simulate(replace(small(architecture), exchange=exchange), STILL, keep_records=True)
        stages.append({each["stage"]: each["wall_s"] for record in told.records for each in record["stages"]})
    plain, packed = stages
    assert packed.keys() - plain.keys() == {"compress"}
    assert packed["compress"] > 0 and packed[moving] < plain[moving]


def test_an_epoch_of_mobilenet_by_powersgd_moves_at_most_an_eighth_of_a_gigabyte() -> None:
    """AllReduce of MobileNet by 4 workers with PowerSGD of rank 4 moves the bytes of its matrices' parts, at most an eighth of a
    gigabyte per epoch.
    """
    experiment = validation.load(
        "config/all-reduce-cifar10.yaml", ["training.epochs=1", "exchange.compression=powersgd", "exchange.rank=4"]
    )
    told = simulate(experiment, STILL, keep_records=True)
    traffics = [record["traffic"]["tensor_store"] for record in told.records if record["step"] == "train"]
    rounds = Workload.from_experiment(experiment).minibatches
    assert sum(each["bytes_out"] + each["bytes_in"] for each in traffics) == rounds * 11 * 4 * (
        43_816 + 24_512 + 21_898 + 21_888
    )
    assert rounds * 11 * 4 * 112_114 <= 0.12e9


def test_a_model_that_is_only_a_number_has_no_matrices() -> None:
    """Check that PowerSGD raises NoProjection if only the number of parameters is known."""
    experiment = replace(small("all_reduce"), exchange=Exchange(compression="powersgd"))
    with pytest.raises(NoProjection, match="follows from its matrices"):
        simulate(experiment, STILL, workload=Workload.from_experiment(experiment, parameters=1_000))


@pytest.mark.parametrize(
    ("architecture", "vectors"), [("all-reduce", 3 * W - 1), ("scatter-reduce", 3 * W - 2)], ids=str
)
@pytest.mark.parametrize(("every", "what"), [(1, "gradients"), (24, "model"), (24, "delta")])
def test_an_epochs_exchange_is_the_closed_form(architecture: str, vectors: int, every: int, what: str) -> None:
    """The bytes of an epoch's exchange are the number of `vectors` times their size times the rounds, with a round after `every`
    minibatches.
    """
    settings: list[Any] = ["training.epochs=1", f"exchange.every={every}", f"exchange.what={what}"]
    moved = simulate(validation.load(f"config/{architecture}-cifar10.yaml", settings)).traffic["tensor_store"]

    assert moved["bytes_in"] + moved["bytes_out"] == vectors * D * EPOCH // every
    assert every == 1 or vectors * D <= 0.16e9

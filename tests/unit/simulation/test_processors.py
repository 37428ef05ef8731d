"""vCPUs that are paid for: how many threads they are worth, what those cost that idle, and how sure that is."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from crossover import validation
from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.simulation import AWS, simulate
from crossover.simulation.processors import count_paid_vcpus, describe_idle_vcpus, fix_threads
from crossover.simulation.repetitions import project

CONFIG = Path(__file__).parents[3] / "config"


def experiment(name: str, *overrides: str) -> Experiment:
    """Return the experiment of config/`name`.yaml with overrides."""
    return validation.load(CONFIG / f"{name}.yaml", [*overrides])


@pytest.mark.parametrize(
    ("memory_mb", "threads"), [(512, 1), (1_769, 1), (1_770, 2), (3_008, 2), (3_009, 2), (3_538, 2), (10_240, 6)]
)
def test_auto_is_every_vcpu_of_a_function_that_is_begun(memory_mb: int, threads: int) -> None:
    """`auto` is the function's vCPUs rounded up, at most the cores of a local machine; a number is kept."""
    asked = experiment("all-reduce", "training.threads=auto", f"functions.memory_mb.default={memory_mb}")
    assert fix_threads(asked).training.threads == threads
    assert fix_threads(asked, cores=1).training.threads == 1  # of the machine that it runs on
    assert fix_threads(replace(asked, training=replace(asked.training, threads=3)), cores=1).training.threads == 3


def test_of_an_instance_it_is_its_own_and_what_computes_decides() -> None:
    """Check the vCPUs that a worker pays for: those of its instance, or of its largest computing function."""
    assert count_paid_vcpus(experiment("p2p-instance", "p2p.instance_type=c7g.xlarge")) == 4
    assert count_paid_vcpus(experiment("single", "single.on=instance")) == 4
    serverless = experiment("p2p-serverless", "p2p.instance_type=c7g.xlarge", "functions.memory_mb.default=1769")
    assert count_paid_vcpus(serverless) == 1  # functions compute for its peers
    trained = experiment("all-reduce", "functions.memory_mb.train=7000")
    assert count_paid_vcpus(trained) == pytest.approx(7_000 / 1_769)


def test_vcpus_that_idle_are_told_with_the_dollars_that_they_waste() -> None:
    """Idle vCPUs are described with the dollars that they waste, without dollars if the data set is unknown; with "" if none are idle."""
    asked = experiment("all-reduce-cifar10")
    one, two = (
        simulate(replace(asked, training=replace(asked.training, epochs=1, threads=n)), AWS).usd for n in (1, 2)
    )
    assert (
        f"leaves 0.52 of the 1.52 vCPUs idle that a worker pays for: ${one - two:.4f} of ${one:.4f}"
        in describe_idle_vcpus(asked)
    )
    assert describe_idle_vcpus(experiment("all-reduce-cifar10", "training.threads=auto")) == ""
    assert describe_idle_vcpus(experiment("spirt")) == describe_idle_vcpus(experiment("gpu-cifar10")) == ""
    unknown = experiment("all-reduce-cifar10", "data.dataset=some:loader", "data.validation=0.2")
    assert "vCPUs idle" in describe_idle_vcpus(unknown) and "$" not in describe_idle_vcpus(unknown)


@pytest.mark.parametrize(("name", "every"), [("all-reduce-cifar10", 48), ("gpu", 12), ("p2p-instance", 18)])
def test_of_rounds_that_go_on_beyond_an_epoch_one_is_projected(name: str, every: int) -> None:
    """Check that describe_idle_vcpus works if a round covers several epochs, although a run of one epoch would not be valid."""
    asked = experiment(name, "exchange.what=model", f"exchange.every={every}", "training.epochs=3")
    assert ("an epoch [projected]" in describe_idle_vcpus(asked)) is (
        name == "all-reduce-cifar10"
    )  # the others would waste next to nothing


def test_more_threads_than_there_are_vcpus_are_told() -> None:
    """More threads than vCPUs are described with the number that `auto` would be."""
    asked = experiment("all-reduce-cifar10", "training.threads=3")
    assert describe_idle_vcpus(asked).startswith("training.threads: 3 share the 1.52 vCPUs")
    assert "2, which auto would be" in describe_idle_vcpus(asked)


def test_two_threads_are_as_measured_and_more_are_a_range() -> None:
    """The speed-up is as measured for two threads, lies between two bounds for more, and always grows."""
    assert [AWS.speed_up(n) for n in (0.5, 1.0)] == [0.5, 1.0]
    assert AWS.speed_up(2) == pytest.approx(1.87, abs=0.01)
    least, most = (replace(AWS, parallel_beyond=share) for share in (AWS.parallel_least, AWS.parallel_most))
    assert least.speed_up(2) == most.speed_up(2) and 3.5 < least.speed_up(6) < AWS.speed_up(6) < most.speed_up(6) < 6
    for each in (least, AWS, most):
        assert all(a < b for a, b in pairwise(each.speed_up(n / 4) for n in range(1, 40)))


def test_beyond_two_threads_a_projection_is_less_sure() -> None:
    """Check that the projected band is wider with more than two threads."""

    def spread(threads: int) -> float:
        """Return the width of the projected band of seconds, as a share of the middle."""
        asked = experiment("single-cifar10", f"training.threads={threads}", "training.epochs=1")
        low, middle, high = project(asked, replace(AWS, session_sigma=0.0, host_sigma=0.0), repetitions=20).band(
            "seconds"
        )
        return (high - low) / middle

    assert spread(6) > 3 * spread(2)


def test_as_the_papers_train_the_count_is_fixed(tmp_path: Path) -> None:
    """Check that the recipe `paper` sets one thread and refuses another value."""
    path = tmp_path / "a.yaml"
    path.write_text("name: a\narchitecture: all_reduce\nrecipe: paper\ntraining: {threads: auto}\n")
    with pytest.raises(ConfigError, match=r"training\.threads"):
        validation.load(path)
    assert experiment("all-reduce", "recipe=paper").training.threads == 1

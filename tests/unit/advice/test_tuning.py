"""Memory by step for one experiment; a model of one's own measured beside MobileNet."""

from dataclasses import replace
from math import exp
from pathlib import Path

import pytest
import torch

from crossover.advice import explain, probe, tuning
from crossover.advice import question as subject
from crossover.advice.evaluation import Question
from crossover.advice.own_speed import Probe
from crossover.errors import ConfigError
from crossover.experiment import Experiment, ImageSize
from crossover.learning.batches import Batch
from crossover.learning.learner import Learner
from crossover.learning.memory import keep_freed_memory
from crossover.simulation.gpu_steps import card_of
from crossover.simulation.repetitions import Draw, apply_draw
from crossover.validation import load

CONFIG = Path(__file__).parents[3] / "config"


def test_the_cheapest_size_of_each_function_holds_what_it_works_on() -> None:
    """Tuning tries each function at several sizes, reports sizes that are too small, and picks the smallest that holds a minibatch."""
    question, sizes, _ = subject.build_question(load(CONFIG / "all-reduce-cifar10.yaml", ["training.epochs=2"]))
    found = tuning.simulate_sizes(question, sizes)
    chosen = tuning.cheapest_sizes(found)["train"]
    assert chosen.memory_mb == sizes.least_mb(question.base.training.batch_size) == 2_432, (
        "more would be paid for and stand idle, with one thread"
    )
    assert all(each.problem for each in found if each.step == "train" and each.memory_mb < 2_424)
    assert {each.step for each in found} == {"initialise", "train", "collect"}
    assert sum(each.own for each in found) == 3


def test_what_is_measured_is_the_dearest_function_at_sizes_that_hold_its_work() -> None:
    """The function to measure is the most expensive one, at five sizes that hold a minibatch, the file's size among them."""
    question, sizes, _ = subject.build_question(load(CONFIG / "all-reduce-s3.yaml", ["training.epochs=2", "workers=2"]))
    step, chosen, seconds = tuning.choose_sizes_to_measure(question, sizes)
    assert step == "train"
    assert len(chosen) == tuning.MAX_MEASURED_SIZES
    assert 1_769 in chosen, "what the file says"
    assert min(chosen) >= sizes.step_mb(60)
    assert seconds > 0


def test_what_no_function_could_hold_is_not_measured() -> None:
    """A model that fits into no function raises ConfigError before anything is measured."""
    question, sizes, _ = subject.build_question(load(CONFIG / "all-reduce-s3.yaml", ["training.epochs=2", "workers=2"]))
    with pytest.raises(ConfigError, match=r"train needs .* expected a smaller training\.batch_size"):
        tuning.choose_sizes_to_measure(question, replace(sizes, evaluation_bytes=2**40))


@pytest.mark.parametrize(
    ("count", "own", "places"), [(16, 3, [0, 3, 8, 11, 15]), (10, 9, [0, 2, 4, 7, 9]), (3, 1, [0, 1, 2])]
)
def test_sizes_to_measure_reach_from_the_smallest_to_the_largest(count: int, own: int, places: list[int]) -> None:
    """`pick_evenly` returns the smallest and the largest of `count` sizes and some between; `own` takes its neighbour's place."""
    sizes = list(range(512, 512 + 256 * count, 256))
    assert tuning.pick_evenly(sizes, [sizes[own]]) == [sizes[place] for place in places]


def test_what_has_no_functions_is_refused() -> None:
    """Tuning the memory of an experiment without functions raises ConfigError."""
    question, sizes, _ = subject.build_question(load(CONFIG / "gpu.yaml"))
    with pytest.raises(ConfigError, match="--tune: gpu has no functions"):
        tuning.simulate_sizes(question, sizes)


def test_only_the_ratio_to_mobilenet_is_carried_over() -> None:
    """The question takes the ratio of the measured model to MobileNet times MobileNet's speed on AWS, which is less uncertain than
    counting.
    """
    asked = load(CONFIG / "all-reduce-s3.yaml")
    measured = Probe(ratio=0.5, spread=0.1, pairs=9, batch_size=60, seconds=1.0, peak_mb=300.0, batch_ratio=2.0)
    question, _, (note,) = subject.build_question(asked, measured=measured)
    assert question.calibration.sample_gradient_s(question.workload) == pytest.approx(
        0.5 * question.calibration.sample_s["mobilenet"]
    )
    assert note.startswith("[measured-local]")
    counted, _, (guess,) = subject.build_question(asked)
    assert counted.calibration.level_sigma > question.calibration.level_sigma > 0
    assert "multiply-accumulates" in guess
    slower, cloud = apply_draw(question.calibration, Draw(1, 0.0, 1.0)), question.calibration
    factor = slower.sample_gradient_s(question.workload) / cloud.sample_gradient_s(question.workload)
    assert factor > 1
    assert slower.function_batch_s / cloud.function_batch_s == pytest.approx(factor)
    assert slower.instance_batch_s / cloud.instance_batch_s == pytest.approx(factor)
    smaller, larger = next(
        each[1:] for each in explain._vary_assumptions(question, 1) if each[0].startswith("functions' speed")
    )
    assert smaller.calibration.function_batch_s == 4 * larger.calibration.function_batch_s


def test_what_is_measured_on_processors_leaves_a_gpus_speed_as_unsure_as_it_was() -> None:
    """A measurement on this machine's CPU does not narrow the uncertainty of the model's speed on a GPU."""
    known = subject.build_question(load(CONFIG / "all-reduce-cifar10.yaml"))[0]
    measured = Probe(ratio=0.5, spread=0.1, pairs=9, batch_size=60, seconds=1.0, peak_mb=300.0)
    probed = subject.build_question(load(CONFIG / "all-reduce-s3.yaml"), measured=measured)[0]

    def factor(question: Question) -> float:
        """Return how much longer a GPU's gradient takes at the slow end of the drawn calibrations than at the middle."""
        drawn, cloud = apply_draw(question.calibration, Draw(1, 0.0, 1.645)), question.calibration
        slow, middle = (
            each.gpu_gradient_s(question.workload, 60, instance_type="g4dn.xlarge") for each in (drawn, cloud)
        )
        return slow / middle

    def unsure(question: Question) -> float:
        """Return the factor by which the GPU's speed is uncertain at its 95th percentile."""
        return exp(1.645 * card_of("g4dn.xlarge").sigma(question.workload.step))

    assert apply_draw(known.calibration, Draw(1, 0.0, 1.645)).sample_s == known.calibration.sample_s
    for question in (known, probed):
        assert unsure(question) > 1.2
        assert factor(question) == pytest.approx(unsure(question))


@pytest.mark.slow
def test_a_probe_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe of the small network returns at least LEAST_PAIRS turns and plausible figures."""
    monkeypatch.setattr(probe, "QUIET", 0.0)  # whoever else works here
    found = probe.probe(load(CONFIG / "all-reduce-s3.yaml"), least_s=0.0)
    assert found.pairs == probe.LEAST_PAIRS
    assert 0 < found.ratio < 1, "a network of 26,000 parameters on 64 pixels is not MobileNet"
    assert found.batch_ratio >= 0
    assert found.two_threads is not None
    assert "as other programs used the machine" in replace(found, two_threads=None).words
    assert 0.01 < found.largest <= 1, "its largest elements hold more than their share"
    assert f"median of {found.pairs} measurements" in found.words


def test_a_step_on_images_scaled_down_is_not_what_a_probe_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe times steps on images of full size, even if the experiment begins with smaller ones."""
    seen = list[ImageSize]()

    def learner_for(experiment: Experiment, _: object) -> None:
        """Note the image size of the experiment, and end the probe with InterruptedError."""
        seen.append(experiment.training.image_size)
        raise InterruptedError

    monkeypatch.setattr(probe, "learner_for", learner_for)
    with pytest.raises(InterruptedError):
        probe.probe(load(CONFIG / "all-reduce-s3.yaml", ["training.image_size.begin=4"]), least_s=0.0)
    assert seen == [ImageSize()]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak")
def test_the_peak_of_a_step_is_its_own_whatever_ran_before() -> None:
    """The peak memory of a call does not include what earlier calls used, although the process keeps freed memory."""
    keep_freed_memory()

    def peak(mb: int) -> int:
        """Return the measured peak in bytes of making a tensor of `mb` MiB."""
        return probe._measure_peak_bytes(lambda: torch.ones(mb * 2**18))

    peak(300)
    assert peak(200) - peak(40) == pytest.approx(160 * 2**20, rel=0.1)


def test_a_probe_bounds_candidates_and_says_what_threads_are_worth() -> None:
    """A probe's bytes per sample raise the needed memory, and its speed with two threads replaces the assumed gain of threads."""
    asked = load(CONFIG / "all-reduce-s3.yaml")
    plain = Probe(ratio=0.5, spread=0.1, pairs=9, batch_size=60, seconds=1.0, peak_mb=300.0)
    hungry = replace(plain, sample_bytes=20e6, two_threads=1.0, batch_ratio=2.0)
    (_, small, _), (question, large, _) = (subject.build_question(asked, measured=each) for each in (plain, hungry))
    assert large.step_mb(60) - small.step_mb(60) > 1_000, "60 samples of 20 MB, and a third more"
    cloud = question.calibration
    assert (cloud.parallel_share, cloud.parallel_least) == (0.0, 0.0)
    assert cloud.function_batch_s == pytest.approx(4 * cloud.sample_gradient_s(question.workload))


def test_what_torch_prepares_at_the_first_pass_does_not_pass_for_a_large_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """If only the first pass is slow, whole minibatches are measured."""
    monkeypatch.setattr(probe, "MOST_S", 0.0)
    spent = iter((5.0,))
    monkeypatch.setattr(probe, "_time_gradient_s", lambda learner, batch, round: next(spent, 1e-4 * batch.samples))
    monkeypatch.setattr(probe, "_largest_elements_share", lambda learner: 0.5)
    asked = load(CONFIG / "all-reduce-s3.yaml")
    assert probe.probe(asked, least_s=0.0).batch_size == asked.training.batch_size


def test_a_large_models_step_is_measured_with_few_samples_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """If two samples already take too long, they are all that is measured, in one turn."""
    monkeypatch.setattr(probe, "QUICK_S", 0.0)
    monkeypatch.setattr(probe, "MOST_S", 0.0)
    timed = list[int]()

    def count(learner: Learner, batch: Batch, round: int) -> float:
        """Compute a gradient, note the number of samples, and return 1 second."""
        timed.append(batch.samples)
        learner.compute_gradient(batch, epoch=1, round=round, worker=0, minibatch=0)
        return 1.0

    monkeypatch.setattr(probe, "_time_gradient_s", count)
    found = probe.probe(load(CONFIG / "all-reduce-s3.yaml"), least_s=0.0)
    assert (found.batch_size, found.pairs, timed.count(probe.FEWEST)) == (2, 1, 4)  # one of them before any is timed
    assert found.of_samples == load(CONFIG / "all-reduce-s3.yaml").training.batch_size
    assert "are extrapolated from a batch of 2" in found.words

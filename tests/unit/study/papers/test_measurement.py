"""What is run, whole and cut down."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.errors import ConfigError
from crossover.reports import published
from crossover.study import runs_2023, runs_2025
from crossover.study.paper_runs import Measurement, Scale, make_cut
from crossover.study.papers import PARTS, choose_parts, list_measurements
from crossover.validation import load

WHOLE, SMALL = Scale(1), Scale(0.02)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.01])
def test_a_scale_is_a_share(share: float) -> None:
    """A scale of zero, below zero or above one raises ConfigError."""
    with pytest.raises(ConfigError, match="--scale"):
        Scale(share)


def test_figure_2_has_the_papers_numbers_of_workers_at_large_scales() -> None:
    """The numbers of workers at scale 0.5 are those of the paper's figure 2."""
    assert runs_2025.list_worker_counts(Scale(0.5), "resnet50") == (4, 8, 12, 16)


@given(st.integers(1, 1000), st.floats(0.001, 1.0), st.integers(1, 8))
def test_a_count_is_cut_but_not_to_nothing(count: int, share: float, least: int) -> None:
    """A scaled count is at least `least`, or the whole count if that is smaller, and never above the whole count."""
    cut = Scale(share).reduce(count, least=least)
    assert min(least, count) <= cut <= count


def every(scale: Scale) -> list[Measurement]:
    """Return the measurements of all parts at this scale."""
    return list_measurements(choose_parts(["all"]), scale)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [WHOLE, Scale(0.5), SMALL, Scale(0.001)], ids=lambda scale: str(scale.share))
def test_every_experiment_is_valid_and_its_command_makes_it(scale: Scale) -> None:
    """The command of each measurement gives the measurement's experiment at every scale."""
    for each in every(scale):
        words = shlex.split(each.command(scale))
        assert words[:2] == ["crossover", "run"] and words[-2:] == ["--out", f"results/{each.key}"]
        overrides = [words[n + 1] for n, word in enumerate(words) if word == "--set"]
        assert load(words[2], overrides) == each.experiment(scale)


def test_parts_share_their_runs() -> None:
    """A measurement that several parts need has the same settings in all of them, and is listed once."""
    keys = [each.key for each in every(SMALL)]
    assert len(keys) == len(set(keys))
    by_key = {each.key: each for part in PARTS.values() for each in part.measurements(SMALL)}
    for part in PARTS.values():
        for each in part.measurements(SMALL):
            assert each.overrides(SMALL) == by_key[each.key].overrides(SMALL)


def test_the_published_size_is_the_papers() -> None:
    """The experiments at scale 1 have the papers' workers, minibatches, epochs and data."""
    for row in runs_2025.load_rows("Table 2"):
        e = runs_2025.make_epoch_run(row).experiment(WHOLE)
        assert (e.workers, e.training.batch_size, e.data.drop_last, e.data.limit) == (4, 512, True, None)
        assert e.training.epochs == 1 and e.recipe == "none"
    for row in runs_2023.load_rows("Table I"):
        assert runs_2023.make_stages_run(row, WHOLE).experiment(WHOLE).workers == 4
    for row in runs_2025.load_rows("Table 3"):
        e = runs_2025.make_convergence_run(row.figures["architecture"]).experiment(WHOLE)
        assert (e.recipe, e.workers, e.training.batch_size, e.data.validation) == ("fast", 4, 512, "test")


def test_what_the_scale_cuts_is_said() -> None:
    """`list_cuts` returns {field: (published value, scaled value)} of what the scale changes, and {} at scale 1."""
    row = published.rows(table="Table 2", model="resnet18", architecture="spirt")[0]
    cuts = runs_2025.make_epoch_run(row).list_cuts(SMALL)
    assert cuts["training.batch_size"] == (512, 61)
    assert cuts["data.limit"] == (None, 4 * 61)
    assert cuts["data.validation"] == ("test", 0.004)
    assert set(cuts) == {"training.batch_size", "data.limit", "data.validation"}
    assert runs_2025.make_epoch_run(row).list_cuts(WHOLE) == {}


def test_mobilenet_keeps_the_papers_minibatch() -> None:
    """MobileNet keeps minibatches of 512 at small scales; the number of samples shrinks instead."""
    row = published.rows(table="Table 2", model="mobilenet", architecture="spirt")[0]
    assert runs_2025.make_epoch_run(row).experiment(SMALL).training.batch_size == 512
    assert runs_2025.make_epoch_run(row).experiment(SMALL).data.limit == 4 * 512
    assert runs_2025.make_epoch_run(row).experiment(Scale(0.5)).data.limit == 4 * 512 * 12


def test_a_minibatch_shrinks_where_few_are_left() -> None:
    """A cut that would leave fewer than `least_minibatches` makes the minibatches smaller and keeps that number."""
    cut = dict(each.split("=") for each in make_cut(batch=512, minibatches=24, epochs=30, least_minibatches=4)(SMALL))
    assert cut == {
        "data.limit": str(4 * 61 * 4),
        "data.validation": "0.004",
        "training.batch_size": "61",
        "training.epochs": "1",
    }


def test_a_small_run_is_forecast_to_be_short() -> None:
    """All runs are forecast to take under 20 minutes at scale 0.02, and over 20 hours at scale 1."""
    small, whole = (sum(each.forecast_s(scale, cores=2) for each in every(scale)) for scale in (SMALL, WHOLE))
    assert small < 20 * 60 < 20 * 3_600 < whole


def test_parts_are_found_by_name_and_others_refused() -> None:
    """Parts are chosen by name, by a paper's year or by `all`, in a fixed order; other names raise ConfigError with the nearest."""
    assert [part.name for part in choose_parts(["2025-table-3", "2025-table-2"])] == ["2025-table-2", "2025-table-3"]
    assert choose_parts(["all"]) == list(PARTS.values())
    assert {part.name[:4] for part in choose_parts(["2023"])} == {"2023"}
    with pytest.raises(
        ConfigError, match=r"2025-table-4: is no table or figure.*did you mean 2025-table-\d.*one of all, 2025"
    ):
        choose_parts(["2025-table-4"])

"""Recipes: what they settle, and who wins where the file, the recipe and the command line differ."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover.errors import ConfigError
from crossover.experiment import Data, Experiment, Training, from_plain
from crossover.validation import load, recipes, validate

CONFIG = Path(__file__).parents[3] / "config"
LEAST = {"name": "mine", "architecture": "all_reduce"}
# Of four workers: one alone has a quarter of their images per update.
PAPERS = sorted(path.stem for path in CONFIG.glob("*-cifar10.yaml") if not path.stem.startswith("single"))


def written(tmp_path: Path, text: str) -> Path:
    """Write an all-reduce experiment with this text, and return its path."""
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\narchitecture: all_reduce\n{text}")
    return path


def settled(recipe: str) -> dict[str, Any]:
    """Return the settings that the recipe itself gives at the papers' size."""
    return (
        recipes.build_paper_values(dataset="cifar10")
        if recipe == "paper"
        else recipes.build_fast_values(dataset="cifar10", samples=2_048)
    )


def test_the_defaults_that_recipes_count_with_are_the_experiments() -> None:
    """The defaults that recipes compute with are those of an experiment."""
    assert Training().batch_size == recipes.DEFAULT_BATCH
    assert Experiment(name="a", architecture="spirt").workers == recipes.DEFAULT_WORKERS
    assert Data().dataset == "digits"


@pytest.mark.parametrize("recipe", ["paper", "fast"])
@pytest.mark.parametrize("name", PAPERS)
def test_chosen_on_the_command_line_it_replaces_the_files_values(name: str, recipe: str) -> None:
    """A recipe that is chosen by an override replaces the file's values of its fields, and no others."""
    plain, found = load(CONFIG / f"{name}.yaml"), load(CONFIG / f"{name}.yaml", [f"recipe={recipe}"])
    values = found.to_plain()
    assert found.recipe == recipe
    for field, value in settled(recipe).items():
        section, _, key = field.partition(".")
        assert values[section][key] == value, field
    ours = {
        section: {f.partition(".")[2] for f in settled(recipe) if f.startswith(section)}
        for section in ("training", "data", "exchange")
    }
    for section, keys in ours.items():  # nothing else has moved
        before = getattr(plain, section)
        assert getattr(found, section) == replace(before, **{key: values[section][key] for key in keys})
    assert replace(found, training=plain.training, data=plain.data, exchange=plain.exchange, recipe="none") == plain


def test_every_architecture_gets_the_same() -> None:
    """A recipe gives every architecture of the papers the same training, data and exchange."""
    for recipe in ("paper", "fast"):
        found = [load(CONFIG / f"{name}.yaml", [f"recipe={recipe}"]) for name in PAPERS]
        assert len({(each.training, each.data, each.exchange.every) for each in found}) == 1


def test_a_field_set_on_the_command_line_wins_in_any_order() -> None:
    """An override of a field wins over a recipe, whichever is given first."""
    path = CONFIG / "all-reduce-cifar10.yaml"
    for overrides in (["recipe=fast", "training.epochs=3"], ["training.epochs=3", "recipe=fast"]):
        found = load(path, overrides)
        assert (found.training.epochs, found.training.label_smoothing) == (3, 0.1)
    whole = load(path, ["recipe=fast", "training={model: mobilenet, epochs: 4}"]).training
    assert (whole.epochs, whole.nesterov) == (4, True)


def test_in_a_file_it_fills_what_the_file_leaves_open(tmp_path: Path) -> None:
    """A recipe in a file sets the fields that the file does not, and equal values may be repeated."""
    found = load(
        written(tmp_path, "recipe: fast\ntraining: {model: mobilenet, batch_size: 512}\ndata: {dataset: cifar10}\n")
    )
    assert found.training.learning_rate == recipes.FAST_RATE and found.training.model == "mobilenet"
    same = load(written(tmp_path, "recipe: fast\ntraining: {epochs: 16}\n"))
    assert same.training.epochs == 16 and same.training.nesterov


def test_a_file_that_contradicts_its_recipe_is_refused(tmp_path: Path) -> None:
    """A file with other values than its recipe raises ConfigError with both; an override of the recipe or of the fields resolves that."""
    path = written(tmp_path, "recipe: fast\ntraining: {epochs: 5, nesterov: false}\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).splitlines() == [
        f"{path}:",
        "  training.epochs: the file says 5, its recipe fast 16",
        "  training.nesterov: the file says false, its recipe fast true; leave one of the two out of the file, or choose the "
        "recipe with --set recipe=fast, which replaces the file's values",
    ]
    assert load(path, ["recipe=fast"]).training.epochs == 16
    assert load(path, ["training.epochs=7", "training.nesterov=true"]).training.epochs == 7
    assert load(path, ["recipe=none"]).training.epochs == 5


def test_the_processors_precision_is_the_files(tmp_path: Path) -> None:
    """A recipe leaves the file's precision as it is."""
    path = written(tmp_path, "recipe: fast\ntraining: {precision: fp32}\n")
    for overrides in ([], ["recipe=fast"]):
        assert load(path, overrides).training.precision == "fp32"
    assert load(path, ["training.precision=bf16"]).training.precision == "bf16"


def test_the_peak_rate_goes_with_the_images_of_an_update(tmp_path: Path) -> None:
    """The recipe's learning rate is in proportion to the images of an update, and digits are not mirrored."""
    half = load(CONFIG / "spirt-cifar10.yaml", ["recipe=fast", "workers=2"])
    assert half.training.learning_rate == recipes.FAST_RATE / 2
    digits = load(CONFIG / "spirt.yaml", ["recipe=fast"])
    assert digits.training.learning_rate == pytest.approx(recipes.FAST_RATE * 240 / 2_048)
    assert digits.data.augment == "none"  # a mirrored digit is not a digit


def test_unknown_and_misplaced_is_left_to_the_check_of_all_fields() -> None:
    """Wrong values beside a recipe, or of the recipe, are reported like any other field's."""
    for plain, problem in (
        ({**LEAST, "recipe": "quick"}, "recipe: 'quick' is not allowed; expected one of none, paper, fast"),
        ({**LEAST, "recipe": 3}, "recipe: 3 is not allowed"),
        ({**LEAST, "recipe": "fast", "training": 5}, "training: 5 is not allowed"),
        ({**LEAST, "recipe": "fast", "workers": "four"}, "workers: 'four' is not allowed"),
        ({**LEAST, "recipe": "fast", "training": {"batch_size": None}}, "training.batch_size: null is not allowed"),
    ):
        with pytest.raises(ConfigError) as caught:
            validate(plain)
        assert str(caught.value).startswith(problem)


def test_a_run_says_which_recipe_it_had() -> None:
    """A stored experiment has its recipe's name, and is read and validated back equal."""
    found = load(CONFIG / "gpu-cifar10.yaml", ["recipe=paper"])
    assert from_plain(found.to_plain()) == found
    assert validate(found.to_plain()) == found

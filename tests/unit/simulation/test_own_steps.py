"""Local steps that one function could never end are refused before anything is deployed."""

from pathlib import Path

import pytest

from crossover import validation
from crossover.errors import ConfigError
from crossover.simulation.processors import check_fits
from crossover.simulation.simulate import simulate
from tests.commands import status

CONFIG = Path(__file__).parents[3] / "config"
MANY = ["exchange.what=model", "exchange.every=240", "training.epochs=10"]  # of 24 an epoch


@pytest.mark.parametrize(("name", "step"), [("spirt", "compute_gradients"), ("p2p-serverless", "compute_gradient")])
def test_the_steps_of_one_function_have_to_fit_into_its_time(name: str, step: str) -> None:
    """Check that check_fits raises ConfigError if the local steps of a round do not fit into one function, and that the number that it
    suggests fits. `step`: name in the error.
    """
    file = CONFIG / f"{name}-cifar10.yaml"
    with pytest.raises(
        ConfigError, match=rf"one {step} takes the 240 local steps .* at most (\d+) steps fit"
    ) as refused:
        check_fits(validation.load(file, MANY))
    fit = int(str(refused.value).partition("at most ")[2].split("at most ")[1].split()[0])
    assert 24 < fit < 240
    check_fits(validation.load(file, [*MANY, f"exchange.every={24 * (fit // 24)}"]))
    with pytest.raises(ConfigError):
        check_fits(validation.load(file, [*MANY, f"exchange.every={24 * (fit // 24 + 1)}"]))
    check_fits(validation.load(file))


@pytest.mark.slow
def test_where_images_grow_the_round_on_the_largest_ones_has_to_fit() -> None:
    """Check that check_fits uses the round with the largest images, not the mean."""
    asked = ["exchange.what=model", "exchange.every=216", "training.epochs=36", "training.image_size.begin=16"]
    with pytest.raises(ConfigError, match=r"takes the 216 local steps of a round, about 1,1.. s"):
        check_fits(validation.load(CONFIG / "spirt-cifar10.yaml", asked))


@pytest.mark.slow
def test_a_projection_holds_the_last_rounds_functions_against_the_limit() -> None:
    """Check that a simulation with growing images compares full-size images with the time limit, except for long workers."""
    growing = ["exchange.what=model", "exchange.every=24", "training.epochs=8", "training.image_size.begin=16"]

    def problems(name: str, limit_s: int) -> tuple[str, ...]:
        """Return the problems of the simulated config file `name`, with growing images and this time limit."""
        return simulate(validation.load(CONFIG / name, [*growing, f"functions.timeout_s={limit_s}"])).problems

    grown, whole = (
        simulate(validation.load(CONFIG / "p2p-serverless-cifar10.yaml", changes)).steps["compute_gradient"].longest_s
        for changes in (growing, growing[:3])
    )
    assert grown < 0.9 * whole
    assert any(
        "compute_gradient takes up to" in each for each in problems("p2p-serverless-cifar10.yaml", int(0.95 * whole))
    )
    assert problems("p2p-serverless-cifar10.yaml", int(1.1 * whole)) == ()
    assert problems("all-reduce-cifar10.yaml", int(1.1 * whole)) == (), "a long worker goes on in its next function"


def test_a_long_worker_goes_on_in_its_next_function() -> None:
    """Check that check_fits accepts any number of local steps for long workers."""
    check_fits(validation.load(CONFIG / "all-reduce-cifar10.yaml", MANY))


@pytest.mark.parametrize("command", ["plan", "deploy", "doctor"])
def test_commands_refuse_steps_that_do_not_fit_into_a_function(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that the command fails with the error of check_fits."""
    text = (
        (CONFIG / "spirt-cifar10.yaml").read_text().replace("name: ", "exchange: {what: model, every: 240}\nname: ", 1)
    )
    file = tmp_path / "long.yaml"
    file.write_text(text)
    where = ["--on", "aws"] if command == "doctor" else []
    assert status(command, str(file), *where)
    assert "steps fit" in capsys.readouterr().err


def test_the_papers_dollars_of_a_round_of_several_epochs_are_of_all_its_functions() -> None:
    """Check that rounds of one and of two epochs cost the same by the papers' method."""
    usd = {}
    for every in (24, 48):
        settings = ["training.epochs=4", "exchange.what=model", f"exchange.every={every}"]
        usd[every] = simulate(validation.load(CONFIG / "p2p-serverless-cifar10.yaml", settings)).paper_method_usd

    assert usd[48] == pytest.approx(usd[24], rel=0.02)  # the same minibatches

"""What an epoch's exchanges move at the papers' setting, by the closed forms of docs/exchange.md."""

from pathlib import Path
from typing import Any

import pytest

from crossover import validation
from crossover.simulation.simulate import simulate

CONFIG = Path(__file__).parents[3] / "config"
D = 4 * (3_217_226 + 21_888)  # bytes of MobileNet
W, EPOCH = 4, 24  # workers, minibatches


@pytest.mark.parametrize(
    ("architecture", "vectors"), [("all-reduce", 3 * W - 1), ("scatter-reduce", 3 * W - 2)], ids=str
)
@pytest.mark.parametrize(("every", "what"), [(1, "gradients"), (24, "model"), (24, "delta")])
def test_an_epochs_exchange_is_the_closed_form(architecture: str, vectors: int, every: int, what: str) -> None:
    settings: list[Any] = ["training.epochs=1", f"exchange.every={every}", f"exchange.what={what}"]
    moved = simulate(validation.load(CONFIG / f"{architecture}-cifar10.yaml", settings)).traffic["tensor_store"]

    assert moved["bytes_in"] + moved["bytes_out"] == vectors * D * EPOCH // every
    assert every == 1 or vectors * D <= 0.16e9

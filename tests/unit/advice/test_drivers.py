"""What drives an answer is told by its own figures: a transformer computes, a table moves and waits."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from crossover import user_code
from crossover.advice import candidates
from crossover.advice import question as subject
from crossover.advice.advice import (
    COMPUTING,
    MOVED,
    STARTED,
    Advice,
    Drivers,
    advise,
    describe_drivers,
    describe_sharing,
    drivers_of,
)
from crossover.advice.candidates import Candidate
from crossover.advice.question import Constraints
from crossover.validation import load
from tests.unit.advice.few import few_candidates

TASKS = """
import torch
from torch import nn

from crossover.learning.datasets import Samples


def rows(experiment):
    values = torch.randn(100_000, 20, generator=torch.Generator().manual_seed(1))
    return Samples(values, values[:, :5].sum(1, keepdim=True))


def network(classes, input_shape):
    return nn.Sequential(nn.Linear(input_shape[0], 64), nn.ReLU(), nn.Linear(64, 1))


def sequences(experiment):
    tokens = torch.randint(500, (20_000, 64), generator=torch.Generator().manual_seed(1))
    return Samples(tokens, tokens[:, 0] % 2, classes=2)


class Transformer(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.words = nn.Embedding(500, 256)
        layer = nn.TransformerEncoderLayer(256, nhead=8, dim_feedforward=1024, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=4)
        self.head = nn.Linear(256, classes)

    def forward(self, tokens):
        return self.head(self.layers(self.words(tokens)).mean(1))


def transformer(classes, input_shape):
    return Transformer(classes)
"""
TABLE = "{model: 'tasks:network', loss: mse, metric: {name: mean_absolute_error, higher_is_better: false}, epochs: 4, batch_size: 500}"
TOKENS = "{model: 'tasks:transformer', epochs: 20, batch_size: 64}"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Advice]]:
    """Yield a function that returns advice for "table" or for "tokens", computed when it is first asked for."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "tasks.py").write_text(TASKS)

    @cache
    def of(name: str) -> Advice:
        """Return advice, computed once, for a file that trains the tasks' model of tables or of tokens."""
        training, data = {"table": (TABLE, "rows"), "tokens": (TOKENS, "sequences")}[name]
        file = folder / f"{name}.yaml"
        file.write_text(
            f"name: {name}\narchitecture: all-reduce\nworkers: 2\nexchange: {{every: 1}}\ntraining: {training}\n"
            f"data: {{dataset: 'tasks:{data}'}}\n"
        )
        with few_candidates(), pytest.MonkeyPatch.context() as fewer:
            fewer.setattr(candidates, "WORKERS", (1, 2))
            fewer.setattr(candidates, "MEMORY_MB", (1_769,))
            fewer.setattr(candidates, "SPLITS", (1,))
            question, sizes, _ = subject.build_question(load(file))
            return advise(question, Constraints(on_hand=("lambda", "gpu")), sizes, processes=1, repetitions=9)

    yield of
    user_code.set_folders()


@pytest.mark.slow
def test_a_table_and_a_transformer_get_different_answers(found: Callable[[str], Advice]) -> None:
    """A model of a table is advised to train in one function, a transformer on a GPU, and their time goes into different work."""
    table, tokens = found("table"), found("tokens")
    assert table.winner.kind == "lambda" and table.winner.candidate.workers == 1, "a table is hardly any work"
    assert tokens.winner.kind == "gpu", "a transformer is worth a GPU's boot"
    shares = {
        name: _share(each.drives[_function(each)], COMPUTING) for name, each in (("table", table), ("tokens", tokens))
    }
    assert shares["table"] < 0.1 < 0.5 < shares["tokens"], "on a function"
    assert describe_drivers(table) != describe_drivers(tokens)


@pytest.mark.parametrize("name", ["table", pytest.param("tokens", marks=pytest.mark.slow)])
def test_the_line_says_what_the_figures_say(found: Callable[[str], Advice], name: str) -> None:
    """The sentence on the drivers names the largest shares of time and dollars, the one on several workers the number of exchanges, as they
    were simulated.
    """
    told = found(name)
    drives, text = told.drives[told.winner.candidate], describe_drivers(told)
    for parts in (drives.of_the_run, drives.usd):
        largest = max(parts, key=lambda part: parts[part])
        assert f"{parts[largest] / sum(parts.values()):.0%} of its " in text and largest in text
    assert sum(drives.seconds.values()) == pytest.approx(told.winner.seconds.p50, rel=0.1)
    assert told.shared is not None
    (several,) = describe_sharing(told)
    assert told.shared.candidate.words in several
    assert f"exchanged {told.drives[told.shared.candidate].exchanges:,} times" in several


def _function(found: Advice) -> Candidate:
    """Return the best candidate on Lambda: the winner if it is one, else the first alternative that is."""
    return next(each.candidate for each in (found.winner, *found.alternatives) if each.kind == "lambda")


def _share(drives: Drivers, part: str) -> float:
    """Return the part's share of all seconds."""
    return drives.seconds[part] / sum(drives.seconds.values())


def test_whoever_waits_for_state_machines_or_moves_much_is_told_so(found: Callable[[str], Advice]) -> None:
    """Starting functions is the largest part of SPIRT's time for a table, moving data that of all-reduce through S3."""
    steps = drivers_of(found("table").question, Candidate("spirt", 2, 500, 1, memory_mb=1_769, host="m7g.large"))
    assert _share(steps, STARTED) > max(_share(steps, part) for part in (COMPUTING, MOVED))
    bucket = drivers_of(found("table").question, Candidate("all_reduce", 2, 500, 1, memory_mb=1_769, channel="s3"))
    assert _share(bucket, MOVED) > max(_share(bucket, part) for part in (COMPUTING, STARTED))


def test_the_two_largest_are_named_in_their_order() -> None:
    """`Drivers.words` names the largest part, then the second if it is at least 5 %."""
    figures = {"walking": 60.0, "sleeping": 37.0, "eating": 3.0}
    drives = Drivers(figures, {"bread": 1.0}, 10, 4)
    assert drives.words == "60% of its running time is walking, 37% sleeping; 100% of its dollars are bread"


def test_a_round_ends_with_its_epoch(found: Callable[[str], Advice]) -> None:
    """Exchanges are counted by epoch: 80 minibatches in rounds of 7 are 12 exchanges, the last one after 3 minibatches."""
    alone = Candidate("all_reduce", 2, 500, 7, memory_mb=1_769, channel="s3")
    drives = drivers_of(found("table").question, alone)
    assert drives.exchanges == 4 * 12

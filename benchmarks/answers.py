"""Processor seconds and memory until `crossover advise` answers three questions that people ask.

    python -m benchmarks.answers [--quick]      --quick: a small table on instances alone, to see that it runs

A small convolutional network retrained each week; a transformer of 109 million parameters on a million rows, each week; a network on a
table of 200,000 rows, each hour. Processor seconds are those of all processes of the command, because a machine is seldom alone.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from benchmarks.report import Figure, write

CONFIG = Path(__file__).parents[1] / "config"
COLUMNS = 20
TABLE_MODEL = """
from torch import nn

def network(classes, input_shape):
    return nn.Sequential(nn.Linear(input_shape[0], 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, classes))
"""
TRANSFORMER = """
import torch
from torch import nn
from crossover.learning.datasets import Samples

WORDS, LENGTH, ROWS, WIDTH = 30_000, 128, 1_000_000, 768

def rows(experiment):
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(WORDS, (ROWS, LENGTH), generator=random, dtype=torch.int32)
    return Samples(tokens, torch.randint(2, (ROWS,), generator=random), classes=2)

class Transformer(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, classes)
        layer = nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 12)

    def forward(self, tokens):
        return self.head(self.layers(self.words(tokens)).mean(1))

def transformer(classes, input_shape):
    return Transformer(classes)
"""


def write_table(path: Path, rows: int) -> None:
    """Write a CSV file with a head, `rows` rows of COLUMNS random numbers, and a random label 0 or 1 in the last column. The same at every
    call.
    """
    drawn = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        print(*(f"f{n}" for n in range(COLUMNS)), "label", sep=",", file=file)
        for _ in range(rows):
            print(*(f"{drawn.gauss(0, 1):.4f}" for _ in range(COLUMNS)), drawn.randrange(2), sep=",", file=file)


def measure_answer(name: str, folder: Path, arguments: Sequence[str]) -> list[Figure]:
    """Run `crossover advise` with `arguments` in a new process, and return its processor seconds and wall seconds, and the peak memory of
    its largest process. `name`: name of the question, for the figures; `folder`: working directory, which gets the output as answer.txt.
    Raises SystemExit if the command fails.
    """
    began_s = perf_counter()
    command = [sys.executable, "-m", "crossover.cli", "advise", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(CONFIG.parent)}
    with (folder / "answer.txt").open("w", encoding="utf-8") as answer:
        asked = subprocess.Popen(command, cwd=folder, env=environment, stdout=answer)
        _, status, used = os.wait4(asked.pid, 0)
    asked.returncode = os.waitstatus_to_exitcode(status)
    if asked.returncode:
        raise SystemExit(f"{name}: crossover advise ended with {asked.returncode}")
    return [
        Figure(f"{name}: processor seconds", used.ru_utime + used.ru_stime, "s"),
        Figure(f"{name}: seconds, on a machine as busy as it was", perf_counter() - began_s, "s"),
        Figure(f"{name}: peak of the largest process", used.ru_maxrss / 2**20, "GB"),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Let `crossover advise` answer the three questions one after another, and write all figures so far after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small table on instances alone: to see that it runs")
    quick = parser.parse_args(arguments).quick
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tabular.py").write_text(TABLE_MODEL, encoding="utf-8")
        (folder / "text.py").write_text(TRANSFORMER, encoding="utf-8")
        write_table(folder / "table.csv", 500 if quick else 200_000)
        tabular = ("tabular.py:network", "--data", "table.csv", "--epochs", "5", "--every", "hour")
        questions: dict[str, Sequence[str]] = {
            "small network weekly": (str(CONFIG / "all-reduce-cifar10.yaml"), "--every", "week"),
            "table hourly": tabular,
            "transformer weekly": ("text.py:transformer", "--data", "text:rows", "--epochs", "1", "--every", "week"),
        }
        if quick:
            questions = {"small table": (*tabular, "--on-hand", "ec2")}
        figures = list[Figure]()
        for each, asked in questions.items():
            figures += measure_answer(each, folder, asked)
            write("answers", figures)


if __name__ == "__main__":
    main()

"""The runs and the tables of docs/fine-tuning.md: `python -m tools.fine_tuning` makes what docs/results/fine-tuning lacks, and prints them.

python -m tools.fine_tuning [--processes 2] [--rates]
"""

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from torch import Tensor, cat
from torch.nn import functional

from crossover import validation
from crossover.advice.question import make_sizes_function
from crossover.errors import ConfigError, NoProjection
from crossover.experiment import Experiment
from crossover.learning.datasets import load
from crossover.learning.samples import PADDING
from crossover.reports.display import band, bytes_, seconds, usd
from crossover.running.inline import run_inline
from crossover.simulation import AWS
from crossover.simulation.repetitions import project

EXAMPLES = Path(__file__).parents[1] / "examples"
KEPT = EXAMPLES.parent / "docs" / "results" / "fine-tuning"
UNDER_WAY = Path("results") / "fine-tuning"
WORDS = 30_522  # of the vocabulary
SEEDS = range(5)
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t, two-sided, by the number of pairs
# One worker has the whole minibatch, which is the same mean; processors with AVX-512 take half the time in bf16.
ALONE = ["workers=1", "training.batch_size=32", "training.precision=bf16", "exchange.minibatches_per_invocation=all"]
TASKS = {
    "fields": ["training.model=mails.model:of_tokens", "data.dataset=mails.data:fields", "data.limit=800"],
    "spam": [],
}
WITHOUT = "training.adapters.targets=[]"
WAYS = {
    "adapters": [],
    "head only": [WITHOUT],
    "all parameters": [WITHOUT, 'training.trainable=["embeddings.*", "encoder.*", "head.*"]', "training.save=all"],
}
# Learning rates that were tried on `fields`, 800 mails once, with a seed of its own; the best of each is what all runs have.
TRIED = {
    "adapters": (0.001, 0.003, 0.01, 0.03),
    "head only": (0.003, 0.01, 0.03, 0.1),
    "all parameters": (0.0001, 0.0003, 0.001, 0.003),
}
RATES = {"adapters": 0.01, "head only": 0.1, "all parameters": 0.001}
TRIAL_SEED = 5
PROJECTED = ("adapters", "all parameters")
_ONE = ["workers=1", "training.batch_size=32"]
WHERE = {
    "one function": ["architecture=single", *_ONE],
    "one instance": ["architecture=single", "single.on=instance", *_ONE],
    "one GPU": ["architecture=gpu", "gpu.instances=1", *_ONE],
    "4 functions, AllReduce": [],
    "4 functions, ScatterReduce": ["architecture=scatter-reduce"],
    "4 functions, SPIRT": ["architecture=spirt"],
    "4 functions, MLLess by SGD": [
        "architecture=mlless",
        "training.optimizer=sgd",
        "training.clip.norm=null",
        "training.no_decay=[]",
        "training.weight_decay=0.0",
    ],
    "4 peers with functions": ["architecture=p2p-serverless"],
    "4 peers on instances": ["architecture=p2p-instance"],
    "4 GPUs": ["architecture=gpu", "gpu.instances=4"],
}
Run = tuple[str, list[str]]


def list_runs() -> list[Run]:
    """Return all runs of the page as (name, settings as in `--set`); a name is such as `fields, adapters, seed 0`. They are ordered by
    task, then seed, then way, so that the ways can be compared on the seeds that are ready.
    """
    return [
        (
            f"{task}, {way}, seed {seed}",
            [*TASKS[task], *WAYS[way], f"training.learning_rate={RATES[way]}", f"seed={seed}"],
        )
        for task in TASKS
        for seed in SEEDS
        for way in WAYS
    ]


def list_trials() -> list[Run]:
    """Return the trial runs by which the learning rates were chosen, as (name, settings as in `--set`)."""
    once = [*TASKS["fields"], "training.epochs=1", f"seed={TRIAL_SEED}"]
    return [
        (f"fields, {way}, rate {rate}", [*once, *WAYS[way], f"training.learning_rate={rate}"])
        for way, rates in TRIED.items()
        for rate in rates
    ]


def find_record_path(name: str) -> Path:
    """Return the path in docs/results/fine-tuning of the record of the run called `name`. The file need not exist."""
    return KEPT / f"{name.replace(', ', '-').replace(' ', '-')}.json"


def ensure_result(run: Run) -> dict[str, Any]:
    """Return the content of a run's result.json. If docs/results/fine-tuning has no record of the run, train it now (or resume it) and save
    the record. Prints the run's error in percent.
    """
    record = find_record_path(run[0])
    folder = UNDER_WAY / record.stem
    if not record.exists():
        experiment = validation.load(EXAMPLES / "adapters.yaml", [*ALONE, *run[1]])
        run_inline(experiment, folder, lambda *_: None, resume=folder.exists())
        KEPT.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "result.json", record)
    found: dict[str, Any] = json.loads(record.read_text())
    print(f"{run[0]}: {compute_error(found):.2f} % wrong", flush=True)
    return found


def compute_error(result: Mapping[str, Any]) -> float:
    """Return the validation error of the last epoch in percent. `result`: content of result.json."""
    return float(100 - 100 * result["epochs"][-1]["val_metric"])


def format_interval(values: Sequence[float], *, sign: str = "") -> str:
    """Return the mean of two to five values with its 95 % interval as text, such as `1.20 (1.00 to 1.40)`. `sign`: "+" to show the sign of
    positive numbers too.
    """
    half, mean = T_95[len(values)] * stdev(values) / sqrt(len(values)), fmean(values)
    return f"{mean:{sign}.2f} ({mean - half:{sign}.2f} to {mean + half:{sign}.2f})"


def train_bag_of_words(task: str, seed: int) -> float:
    """Train a logistic regression on the same mails with the same split, and return the percentage of wrong answers on the validation part.
    Its features are the words of a mail; for the task "fields" those of a token and its two neighbours on each side. `task`: "spam" or
    "fields"; `seed`: seed of the split.
    """
    experiment = validation.load(EXAMPLES / "adapters.yaml", [*TASKS[task], f"seed={seed}"])
    dataset = load(experiment)
    parts = [
        (_build_bags(inputs) if task == "spam" else _build_windows(inputs), labels.flatten().numpy())
        for inputs, labels in (
            (dataset.train_inputs, dataset.train_labels),
            (dataset.validation_inputs, dataset.validation_labels),
        )
    ]
    (x, y), (held_x, held_y) = ((rows[labels >= 0], labels[labels >= 0]) for rows, labels in parts)
    return float(100 - 100 * LogisticRegression(max_iter=1_000).fit(x, y).score(held_x, held_y))


def _build_bags(inputs: Tensor) -> csr_matrix:
    """Return which words each mail contains, as a sparse 0/1 matrix of shape (mails, WORDS). `inputs`: token numbers of shape (mails,
    positions).
    """
    rows, places = (inputs != PADDING).nonzero(as_tuple=True)
    ones, shape = [1.0] * len(rows), (len(inputs), WORDS)
    whether = csr_matrix((ones, (rows.numpy(), inputs[rows, places].numpy())), shape=shape)
    whether.data[:] = 1.0  # not how often
    return whether


def _build_windows(inputs: Tensor) -> csr_matrix:
    """Return for each position of each mail which words stand there and up to two places before and after it, as a sparse matrix of shape
    (mails x positions, 5 x WORDS). `inputs`: token numbers of shape (mails, positions).
    """
    known = inputs.masked_fill(inputs == PADDING, 0)
    beside = [functional.pad(known, (shift, -shift)) for shift in range(-2, 3)]
    columns = [each.flatten() + WORDS * number for number, each in enumerate(beside)]
    rows = list(range(inputs.numel())) * len(columns)
    return csr_matrix(([1.0] * len(rows), (rows, cat(columns).numpy())), shape=(inputs.numel(), WORDS * len(columns)))


def load_errors() -> dict[str, float]:
    """Return {name of a run: its validation error in percent} for the runs that have a record in docs/results/fine-tuning."""
    return {
        name: compute_error(json.loads(path.read_text()))
        for name, _ in list_runs()
        if (path := find_record_path(name)).exists()
    }


def build_table(found: Mapping[str, float], task: str) -> list[str]:
    """Return the lines of one task's Markdown table: for each way of fine-tuning the mean error, and its difference to training all
    parameters, both in percent with 95 % intervals. Only seeds for which every way has a run count; with fewer than two such seeds the
    table has no rows. `found`: errors by name of the run.
    """
    whole = [seed for seed in SEEDS if all(f"{task}, {way}, seed {seed}" in found for way in WAYS)]
    lines = [
        f"{task}, {len(whole)} seeds",
        "",
        "| what is trained | wrong, % (95 %) | more than all parameters, points (95 %) |",
        "| --- | --- | --- |",
    ]
    if len(whole) < 2:
        return lines
    best = [found[f"{task}, all parameters, seed {seed}"] for seed in whole]
    for way in WAYS:
        values = [found[f"{task}, {way}, seed {seed}"] for seed in whole]
        beside = format_interval([one - other for one, other in zip(values, best, strict=True)], sign="+")
        lines.append(f"| {way} | {format_interval(values)} | {beside if values != best else ''} |")
    return lines


def project_runs() -> list[str]:
    """Return the lines of a Markdown table with projected bytes, time and cost of one run on every architecture, with adapters and with all
    parameters. Prints each line as soon as it is known. If a run cannot be projected, its cell has the reason.
    """
    lines = [
        "| where | adapters: moved by an exchange | seconds | dollars | all parameters: moved | seconds | dollars |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    workloads = {way: make_sizes_function(_load_experiment(way, [])) for way in PROJECTED}
    for name, settings in WHERE.items():
        row = [name]
        for way in PROJECTED:
            try:
                experiment = _load_experiment(way, settings)
                workload = workloads[way](experiment)
                projection = project(experiment, AWS, workload=workload)
            except (ConfigError, NoProjection) as error:
                row += [str(error).splitlines()[-1].strip(), "", ""]
                continue
            row += [
                bytes_(workload.vector_bytes) if experiment.workers > 1 else "nothing",
                band(seconds, *projection.band("seconds")),
                band(usd, *projection.band("usd")),
            ]
            row[-1] += "; AWS would not run it so: " + projection.problems[0] if projection.problems else ""
        lines.append(f"| {' | '.join(row)} |")
        print(lines[-1], flush=True)
    return lines


def _load_experiment(way: str, settings: Sequence[str]) -> Experiment:
    """Return the experiment of examples/adapters.yaml, changed to one way of fine-tuning (a key of WAYS) and by `settings`,
    as in `--set`.
    """
    return validation.load(EXAMPLES / "adapters.yaml", [*WAYS[way], f"training.learning_rate={RATES[way]}", *settings])


def main() -> None:
    """Train the fine-tuning runs that lack a record, and print the tables. Options: `--rates` trains the trials of learning rates in place
    of these, without tables; `--kept` only prints the tables of recorded runs; `--projected` only prints what a run would take on AWS.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1, help="at once; of all parameters each takes 4 GB")
    parser.add_argument("--rates", action="store_true", help="make the trials of learning rates")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="make the runs of these")
    parser.add_argument("--kept", action="store_true", help="make none: tables of those that are kept")
    parser.add_argument("--projected", action="store_true", help="make none: what a run would take on AWS")
    asked = parser.parse_args()
    if asked.projected:
        print("\n".join(project_runs()))
        return
    wanted = list_trials() if asked.rates else list_runs()
    if not asked.kept:
        ours = [run for run in wanted if run[0].split(", ")[1] in asked.ways]
        with ProcessPoolExecutor(asked.processes) as pool:
            list(pool.map(ensure_result, ours))
    if not asked.rates:
        for task in TASKS:
            print("\n".join(build_table(load_errors(), task)))
            print(
                f"\n| logistic regression | {format_interval([train_bag_of_words(task, seed) for seed in SEEDS])} |\n",
                flush=True,
            )


if __name__ == "__main__":
    main()

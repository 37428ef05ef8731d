"""Recorded runs as evidence: how many epochs which settings needed to reach a target, with the spread over seeds. A run is
evidence for its own updates only: the same optimizer and schedule, batches of the same size, exchanged in the same way. Which
workers computed them, in how much memory, does not matter.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossover.errors import ConfigError, DataError
from crossover.experiment import Experiment
from crossover.learning import sizes as data_sizes
from crossover.reports import folder
from crossover.workflow.architecture import load

SHIPPED = Path(__file__).parents[2] / "docs" / "results"


@dataclass(frozen=True)
class EvidenceRun:
    """A finished run with the same model and data as the experiment. `name`: of its folder; `experiment`: the run's own; `metric`: value of
    the metric at its end, NaN if it never evaluated; `epochs`: number of epochs until it reached the target, None if it did not.
    """

    name: str
    experiment: Experiment
    metric: float
    epochs: int | None

    @property
    def words(self) -> str:
        """One line with the run's name, its final metric, and after how many epochs it reached the target, if it did."""
        reached = "target not reached" if self.epochs is None else f"target reached after {self.epochs} epochs"
        return f"{self.name}: {self.metric:g} at its end, {reached}"


@dataclass(frozen=True)
class Setting:
    """An experiment's settings with which all recorded runs, `runs`, reached the target. `experiment`: an experiment with these settings
    and with as many epochs as the slowest of the runs needed, or with the runs' own number if the learning-rate schedule depends on it.
    """

    experiment: Experiment  # with as many epochs as its slowest run needed
    runs: tuple[EvidenceRun, ...]

    @property
    def words(self) -> str:
        """One line with the smallest and largest number of epochs that the runs needed, and the names of the runs."""
        counts = sorted(run.epochs or 0 for run in self.runs)
        spread = (
            f"{counts[0]} to {counts[-1]} epochs over {len(counts)} seeds"
            if len(counts) > 1
            else f"{counts[0]} epochs, one seed"
        )
        return f"{spread} ({', '.join(run.name for run in self.runs)})"


def read_runs(base: Experiment, folders: Sequence[Path], target: float) -> list[EvidenceRun]:
    """Return the runs in `folders`, and those shipped with the project that have the model and data of `base`, with the number of epochs
    that each needed to reach `target`, a value of the metric. Runs that did not reach it are included. Raises ConfigError if one of
    `folders` holds an unfinished run or one of another model or data, DataError if it holds no run.
    """
    found = []
    for path in folders:
        if problem := _explain_mismatch(base, result := folder.read(path).result):
            raise ConfigError(f"--runs: {path}: {problem}; evidence is a run of the same model on the same data")
        found.append(_build_evidence(path.name, result, base, target))
    for path in sorted(SHIPPED.glob("*/result.json")):
        try:
            result = folder.read(path.parent).result
        except DataError:
            continue
        if not _explain_mismatch(base, result):
            found.append(_build_evidence(f"docs/results/{path.parent.name}", result, base, target))
    return found


def _explain_mismatch(base: Experiment, result: Mapping[str, Any]) -> str:
    """Return why a recorded run says nothing about how many epochs `base` needs: it is not finished, or has another model, data set, epoch
    length or metric. "" if it does. `result`: content of its result.json.
    """
    if result.get("outcome") != "finished":
        return f"its outcome is {result.get('outcome')}"
    other = folder.experiment_of(result)
    if words := _sample_difference(base, other, result["data"].get("train_samples")):
        return words
    for what, mine, its in (
        ("training.model", base.training.model, other.training.model),
        ("data.dataset", base.data.dataset, other.data.dataset),
        ("data.validation", base.data.validation, other.data.validation),
        ("training.metric.name", base.training.metric.name, other.training.metric.name),
    ):
        if mine != its:
            return f"its {what} is {its}, and this experiment's is {mine}"
    return ""


def _sample_difference(base: Experiment, other: Experiment, trained: int | None) -> str:
    """Return in words how many samples an epoch of a recorded run has and one of this experiment; "" if the numbers are equal or differ by
    less than one update takes. `other`: the run's experiment; `trained`: its number of training samples, if known.
    """
    if other.data.dataset != base.data.dataset or other.data.limit == base.data.limit:
        return ""
    whole = data_sizes.count_split(base)
    if whole is not None and trained is not None:
        every = other.exchange.every
        rest = other.workers * other.training.batch_size * (every if isinstance(every, int) else 1)
        if abs(whole[0] - trained) < rest:
            return ""
    mine, its = ("all samples" if each is None else f"{each:,} samples" for each in (base.data.limit, other.data.limit))
    return f"its epochs are of {its} (data.limit), and this experiment's of {mine}"


def _build_evidence(name: str, result: Mapping[str, Any], base: Experiment, target: float) -> EvidenceRun:
    """Return a recorded run with its final metric, NaN if no epoch was evaluated, and the first epoch whose metric reached `target`, None
    if none did. `name`: name of the run in messages; `result`: content of its result.json.
    """
    metric = base.training.metric
    curve = [(each["epoch"], each["val_metric"]) for each in result["epochs"] if each["val_metric"] is not None]
    there = next((epoch for epoch, value in curve if metric.reaches(value, target)), None)
    return EvidenceRun(name, folder.experiment_of(result), curve[-1][1] if curve else float("nan"), there)


def settings_with_target(base: Experiment, runs: Sequence[EvidenceRun]) -> list[Setting]:
    """Return the settings with which all of the given runs reached the target, in the order of the runs. Runs that make the same updates to
    a model belong together.
    """
    groups: dict[Any, list[EvidenceRun]] = {}
    for run in runs:
        groups.setdefault(_updates_key(run.experiment), []).append(run)
    return [
        Setting(_with_updates_of(base, group), tuple(group))
        for group in groups.values()
        if all(run.epochs is not None for run in group)
    ]


def _updates_key(made: Experiment) -> tuple[Any, ...]:
    """Return a key that is equal for experiments that make the same updates to a model: the same training settings (epochs included),
    samples per update, exchange, aggregation, settings of single architectures, and data. `made`: experiment of a recorded run.

    Threads, target, the data's directory, `data.limit`, the number of minibatches per invocation and all sections not named here do not
    count. The architecture counts if its updates do not equal the reference's; workers and batch size count unless exact, uncompressed
    gradients are exchanged.
    """
    resolved = load(made.architecture).resolve(made)
    training = replace(made.training, threads=1, batch_size=1, target=None)
    every = resolved.exchange.every
    of_update = "epoch" if every == "epoch" else resolved.workers * made.training.batch_size * int(every or 1)
    exact, asked = "equals_reference" in load(made.architecture).claims, made.exchange
    summed = exact and asked.what == "gradients" and asked.compression == "none"
    method = () if summed else ("" if exact else made.architecture, made.workers, made.training.batch_size)
    exchange = replace(made.exchange, every=None, minibatches_per_invocation="all")
    data = replace(made.data, directory=None, limit=None)
    return training, of_update, method, exchange, data, made.aggregation, tuple(sorted(map(str, made.sections.items())))


def _with_updates_of(base: Experiment, group: Sequence[EvidenceRun]) -> Experiment:
    """Return the experiment of the recorded runs in `group`, with the name, project, owner, data folder, function sizes, threads, lifetime
    and precision of `base` and as many epochs as the slowest run needed. If the learning-rate schedule depends on the number of epochs, the
    runs' number is kept.
    """
    made = group[0].experiment
    most = max(run.epochs or 0 for run in group)
    planned = made.training.schedule in ("one_cycle", "cosine")
    training = replace(
        made.training,
        epochs=made.training.epochs if planned else most,
        target=None,
        threads=base.training.threads,
        precision=base.training.precision,
    )
    return replace(
        made,
        name=base.name,
        project=base.project,
        owner=base.owner,
        training=training,
        data=replace(made.data, directory=base.data.directory),
        functions=base.functions,
        lifetime=base.lifetime,
    )


def settings_reaching(base: Experiment, folders: Sequence[Path], target: float) -> tuple[list[Setting], list[str]]:
    """Return (the settings with which all recorded runs reached `target`, one line of evidence for each). The runs are those in `folders`
    and those shipped with the project. `base`: experiment that the runs must match. Raises ConfigError if the metric cannot reach `target`,
    if no settings reached it, or if one of `folders` holds a run that does not match; DataError if it holds none.
    """
    if why := base.training.metric.explain_unreachable(target):
        raise ConfigError(f"--target: {why}")
    runs = read_runs(base, folders, target)
    found = settings_with_target(base, runs)
    if not found:
        raise ConfigError("\n".join(_explain_no_evidence(base, runs, target)))
    return found, [f"evidence: {each.words}{_precision_note(base, each)}" for each in found]


def _precision_note(base: Experiment, setting: Setting) -> str:
    """Return a note if the runs of the setting were trained in another precision than the experiment `base` uses, otherwise ""."""
    its, asked = setting.runs[0].experiment.training.precision, base.training.precision
    return "" if its == asked else f"; trained in {its}, taken to hold in {asked}, which decides accuracy hardly"


def _explain_no_evidence(base: Experiment, runs: Sequence[EvidenceRun], target: float) -> Iterator[str]:
    """Yield the lines of the error message that no runs show how many epochs the target takes: what the runs show, and how to get runs that
    do.
    """
    model = f"{base.training.model} on {base.data.dataset}"
    yield f"--target: {target:g}: no run of {model} shows how many epochs it needs, and no figure is made up"
    for run in runs:
        yield f"  {run.words}"
    yield "  evidence would be: crossover run CONFIG, with another --set seed=... for the spread, and then --runs with their folders"

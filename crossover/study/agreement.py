"""Checks that the parts of a bundle describe the same study: its file, its list of trials, and each trial's result and records.

The recount (`recount.py`) holds figures against records. Here the settings, the place, the versions, the code and the epochs are compared.
No user code is imported for it.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any

from crossover.errors import ConfigError, Corrupt, DataError
from crossover.experiment import Experiment, flatten_fields
from crossover.reports.folder import list_missing
from crossover.reports.usage import Record, expected_records
from crossover.study.file import Study, Varied
from crossover.study.trials import trial_folder_name
from crossover.training.progress import calendar_of
from crossover.validation import documents, fields, recipes
from crossover.validation.combinations import choose_compute
from crossover.workflow.architecture import architecture_of

MAX_MINIBATCHES = 10_000_000  # minibatches of a run that are counted
OF_A_TRIAL = ("name", "seed")  # fields that a study sets by itself in each trial


def check_trial(study: Study, name: str, varied: Varied, seed: int) -> None:
    """Raise DataError if the study has no trial of this name, setting and seed. `name`: name of the trial's folder; `varied`: the setting,
    as values by dotted field. Values of a search are not compared with its space.
    """
    if seed not in study.seeds:
        raise DataError(f"trial {name}: seed {str(seed)[:20]} is none of the study's seeds")
    allowed = {field: {json.dumps(value) for value in values} for field, values in study.grid.items()}
    if varied.keys() != set(study.fields):
        raise DataError(f"trial {name}: sets {_list_names(varied)}; the study varies {_list_names(study.fields)}")
    varied = {field: varied[field] for field in study.fields}  # in the order that its name has
    for field, value in varied.items():
        if field in allowed and json.dumps(value) not in allowed[field]:
            raise DataError(f"trial {name}: {field}={json.dumps(value)[:60]} is not in the study's grid")
    number = int(name[:4]) if study.search and name[:4].isdecimal() else 0
    if (study.search and not 1 <= number <= study.settings) or name != trial_folder_name(varied, seed, number=number):
        raise DataError(f"trial {name}: the study has no trial of this name with this setting and seed")


def _list_names(names: Iterable[str]) -> str:
    """Return the names in one line, at most 200 characters; "nothing" if there are none."""
    return ", ".join(names)[:200] or "nothing"


class ExpectedExperiments:
    """The experiments that a study's trials should have, built from its base without importing user code. Each setting is built once."""

    def __init__(self, study: Study) -> None:
        """Start without any. `study`: the study that the bundle holds."""
        self._study = study
        self._built = dict[str, Mapping[str, Any]]()

    def find_other_settings(self, experiment: Experiment, varied: Varied, seed: int) -> Iterator[str]:
        """Yield a sentence for each field in which a run's experiment differs from the study's trial, because such a result belongs to
        another trial. `varied`, `seed`: the trial's setting and seed. Raises DataError if the study's base is not valid.
        """
        made = dict(flatten_fields(experiment.to_plain()))
        for name, value in {**self._fields_of(varied), "seed": seed}.items():
            if name not in made:
                yield f"{name}: {_shorten(value)} in the study, but result.json does not have it"
            elif made[name] != value and not _are_same_name(made[name], value):
                yield f"{name}: {_shorten(value)} in the study, but {_shorten(made[name])} in result.json"

    def _fields_of(self, varied: Varied) -> Mapping[str, Any]:
        """Return the values of a trial's experiment by dotted field, without those that differ in every trial."""
        key = json.dumps(varied, sort_keys=True)
        if key not in self._built:
            self._built[key] = {
                name: value for name, value in self._build_fields(varied) if name.partition(".")[0] not in OF_A_TRIAL
            }
        return self._built[key]

    def _build_fields(self, varied: Varied) -> list[tuple[str, Any]]:
        """Return (dotted field, value) of a trial's experiment as a run resolves it. If the architecture is the user's own, return only the
        fields that the study itself sets and that are no lists, because the others are not known without importing it. Raises DataError if
        the base is not valid.
        """
        plain = deepcopy(dict(self._study.base))
        try:
            for name, value in varied.items():
                documents.set_field(plain, name.split("."), value, said=name)
            plain["name"] = "any"
            if "." in str(plain.get("architecture", "")):
                return [(name, value) for name, value in flatten_fields(plain) if not isinstance(value, list)]
            experiment = choose_compute(fields.build_experiment(recipes.apply_recipe(plain, commanded=list(varied))))
            resolved = architecture_of(experiment).resolve(experiment)
        except ConfigError as error:
            raise DataError(f"the study's base is not an experiment: {error}") from None
        return list(flatten_fields(resolved.to_plain()))


def find_contradictions(
    result: Mapping[str, Any],
    records: Sequence[Record],
    experiment: Experiment,
    *,
    where: str,
    versions: Mapping[str, str],
) -> Iterator[str]:
    """Yield a sentence for each part of a result.json that contradicts another part, its records, or the study; nothing if there is none.

    `result`: content of result.json; KeyError is raised if a field is missing that every result.json has; `experiment`: of the result;
    `where`: inline, local or aws, where the study ran; `versions`: versions with which the study ran. Raises Corrupt if the run would have
    more than MAX_MINIBATCHES minibatches.
    """
    if result["where"] != where:
        yield f"where: {where} in study.json, but {_shorten(result['where'])} in result.json"
    if result["label"] != (expected := "measured-aws" if where == "aws" else "measured-local"):
        yield f"label: {result['label']} in result.json; a run on {where} is {expected}"
    if result["architecture"].replace("-", "_") != experiment.module:
        yield f"architecture: {_shorten(result['architecture'])}, but {_shorten(experiment.architecture)} in its experiment"
    for name, version in versions.items():
        if (found := result["versions"].get(name)) != version:
            yield f"versions.{name}: {_shorten(version)} in study.json, but {_shorten(found)} in result.json"
    yield from _find_other_code(result.get("code") or {})
    yield from _find_epoch_faults(result, experiment)
    yield from _find_other_gaps(result, records, experiment)
    if len(runs := {record["run"] for record in records if "run" in record}) > 1:
        yield f"records: of {len(runs)} different runs"


def _find_other_code(code: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence if the digest of a run's code is not that of the listed files. `code`: as in result.json."""
    whole = repr((sorted(code.get("files", {}).items()), code.get("settings")))
    if hashlib.sha256(whole.encode()).hexdigest() != code.get("digest"):
        yield "code: the digest in result.json is not that of the files that it lists"


def _find_epoch_faults(result: Mapping[str, Any], experiment: Experiment) -> Iterator[str]:
    """Yield a sentence if the epochs of a result.json are not in order, if an accuracy is impossible, or if the final metric is not that of
    the last epoch. `experiment`: of the result.
    """
    epochs = result["epochs"]
    numbers = [each["epoch"] for each in epochs]
    if any(before >= after for before, after in pairwise([0, *numbers])):
        yield f"epochs: their numbers do not rise: {_shorten(numbers)}"
    if any(before["elapsed_s"] > after["elapsed_s"] for before, after in pairwise(epochs)):
        yield "epochs: their elapsed seconds do not rise"
    shares = [each["val_metric"] for each in epochs if each["val_metric"] is not None]
    if experiment.training.metric.name == "accuracy" and not all(0 <= share <= 1 for share in shares):
        yield f"epochs: an accuracy is not from 0 to 1: {_shorten(shares)}"
    final, last = (result.get("final") or {}).get("val_metric"), epochs[-1]["val_metric"] if epochs else None
    if final is not None and final != last:
        yield f"final.val_metric: {final:.6g}, but {_shorten(last)} in the last epoch"


def _find_other_gaps(result: Mapping[str, Any], records: Sequence[Record], experiment: Experiment) -> Iterator[str]:
    """Yield a sentence if result.json names other missing records or epochs than the records show, or does not say how many minibatches an
    epoch has. Yields nothing if the architecture is the user's own, which is not imported. Raises Corrupt if the run would have more than
    MAX_MINIBATCHES minibatches.
    """
    if experiment.outside:
        return
    try:
        days, epochs = calendar_of(experiment, result.get("data") or {}), result["epochs"]
        if not 0 < days.minibatches * max(1, len(epochs)) <= MAX_MINIBATCHES:
            raise Corrupt(f"data.minibatches: {days.minibatches} is not possible")
        expected = expected_records(
            architecture_of(experiment), workers=experiment.workers, days=days, epochs=len(epochs)
        )
    except (LookupError, TypeError, AssertionError, ZeroDivisionError) as error:
        yield f"data: does not say how many minibatches an epoch has: {type(error).__name__}"
        return
    missing = list_missing(
        records, expected=expected, epochs=epochs, span=days.span, failed=result["outcome"] == "failed"
    )
    if missing != list(result.get("incomplete") or ()):
        yield f"incomplete: {_shorten(missing)} by its records, {_shorten(result.get('incomplete'))} in result.json"


def _are_same_name(one: Any, other: Any) -> bool:
    """Return whether two names are equal apart from hyphens and underscores."""
    return isinstance(one, str) and isinstance(other, str) and one.replace("-", "_") == other.replace("-", "_")


def _shorten(value: Any) -> str:
    """Return a value as text of at most 60 characters, as Python's `ascii` writes it: strings in quotes, control characters escaped."""
    return ascii(value)[:60]

"""How a data set was understood, in one or two lines and as plain JSON: rows, columns, header, label, and columns that deserve a look."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from crossover.experiment import Experiment
from crossover.learning import sizes

if TYPE_CHECKING:  # torch is heavy, and the data sets that come with the project need none of it
    from torch import Tensor

    from crossover.learning.samples import LabelScale, Reading, Samples

MOST_NAMED = 5  # columns, or classes, that a line names
LOST = 0.01  # deviations by which rounding to float32 moves a value: above it float32 does not tell values apart
_HALF_STEP = 2.0**-24  # of float32, by its value
_BLOCK = 65_536  # rows at once: bounds the float64 copies


def describe(samples: "Samples", experiment: Experiment, scale: "LabelScale | None" = None) -> dict[str, Any]:
    """Return a description of the data set as plain JSON: rows, shape, dtype, header, label, dropped and conspicuous columns, and
    doubts.

    `samples`: the experiment's, before they are split; `scale`: how labels are scaled, None if they are not.
    """
    from crossover.learning.samples import is_measured

    reading, inputs = samples.reading, samples.inputs
    is_table = inputs.ndim == 2 and is_measured(inputs)
    test = len(samples.test_inputs) if samples.test_inputs is not None else None
    counting, constant, lost = _find_remarkable_columns(inputs, reading) if is_table else ([], [], [])
    return {
        "dataset": experiment.data.dataset,
        "file": reading.file if reading else None,
        "rows": len(inputs),
        "test_rows": test,
        **_count_used(len(inputs), test, experiment),
        "shape": list(inputs.shape[1:]),
        "dtype": str(inputs.dtype).removeprefix("torch."),
        "header": reading.header if reading else None,
        "label": _describe_label(samples, scale),
        "left_out": [reading.name_column(each) for each in reading.drop] if reading else [],
        "row_numbers": counting,
        "constant": constant,
        "float32_cannot_tell_apart": lost,
        "preprocess": experiment.data.preprocess,
        "doubts": [*(reading.doubts if reading else ()), *_doubt_numbers(samples, experiment)],
    }


def describe_known(experiment: Experiment) -> dict[str, Any] | None:
    """Return the description (as from `describe`) of a built-in data set without loading it; None if the experiment's data set is
    not built in.
    """
    known = sizes.DATA.get(experiment.data.dataset)
    if known is None:
        return None
    label = {"name": None, "column": None, "kind": "classes", "classes": 10, "values": None, "decided": "published"}
    return {
        "dataset": experiment.data.dataset,
        "file": None,
        "rows": known.training,
        "test_rows": known.test,
        **_count_used(known.training, known.test, experiment),
        "shape": list(known.image),
        "dtype": "uint8",
        "header": None,
        "label": {**label, "place": None},
        "left_out": [],
        "row_numbers": [],
        "constant": [],
        "float32_cannot_tell_apart": [],
        "preprocess": experiment.data.preprocess,
        "doubts": [],
    }


def _count_used(rows: int, test: int | None, experiment: Experiment) -> dict[str, int | bool]:
    """Return {"training_rows", "validation_rows": how many samples train and how many validate, "all_used": whether these are all of them}.
    `rows`, `test`: training and test samples of the data set, None without a test split. Raises ConfigError if `data.validation` leaves one
    part empty.
    """
    training, validation = sizes.divide(rows, test, experiment)
    return {
        "training_rows": training,
        "validation_rows": validation,
        "all_used": training + validation == rows + (test or 0),
    }


def format_lines(found: Mapping[str, Any], *, flags: bool = False) -> list[str]:
    """Return one line of text that describes the data set, and a second one with remarks, if there are any.

    `found`: result of `describe`. `flags`: name options of `crossover advise` instead of fields of the YAML.
    """
    label, header = found["label"], found["header"]
    words = f"{found['file'] or found['dataset']}: {_format_size(found, flags=flags)}; label{_format_label(label)}"
    if found["file"]:
        other = "--numbers" if label["kind"] == "classes" else "--classes"
        options = f"--label NAME, {other} or {'--no-header' if header else '--header'} says otherwise"
        words += f"; {options if flags else 'data.table in the YAML says otherwise'}"
    second = _list_remarks(found, flags=flags)
    return [f"data: {words}", *([f"data: {'; '.join(second)}"] if second else [])]


def _format_size(found: Mapping[str, Any], *, flags: bool) -> str:
    """Return in words the numbers of rows, test rows and inputs, how many rows train and validate, and whether a CSV has a header.
    `found`: result of `describe`. `flags`: name options of `crossover advise` instead of fields of the YAML.
    """
    rows = f"{found['rows']:,} rows" + (f" and {found['test_rows']:,} to test" if found["test_rows"] else "")
    shape = found["shape"]
    if found["file"]:
        inputs = f"{shape[0]} input{'s' * (shape[0] != 1)}"
    else:
        inputs = f"inputs ({', '.join(map(str, shape))}) {found['dtype']}"
    return f"{rows}{_format_split(found, flags=flags)}, {inputs}{ {None: '', True: ', header', False: ', no header'}[found['header']] }"


def _format_split(found: Mapping[str, Any], *, flags: bool) -> str:
    """Return a clause on how many rows train, how many validate, and the settings that change it. It is "" if all training rows train and
    all test rows validate, or if nothing is known, as in a resumed run that an earlier version began. `found`: result of `describe`.
    `flags`: name options of `crossover advise` instead of fields of the YAML.
    """
    if "training_rows" not in found or (found["test_rows"] and found["all_used"]):
        return ""
    training, validation = found["training_rows"], found["validation_rows"]
    is_test_split = validation == found["test_rows"]
    settings = [] if is_test_split else ["--set data.validation=SHARE" if flags else "data.validation"]
    if training + validation * (not is_test_split) < found["rows"]:
        settings.append("--set data.limit=N" if flags else "data.limit")
    return f", of which {training:,} train and {validation:,} validate ({', '.join(settings)})"


def _format_label(label: Mapping[str, Any]) -> str:
    """Return in words the label's name, kind and values. `label`: that part of the result of `describe`."""
    name = "" if label["name"] is None else f" {label['name']} ({label['place']})"
    why = label["decided"]
    if label["kind"] == "classes":
        values = [str(each) for each in label["values"] or ()]
        named = f" ({', '.join(values[:MOST_NAMED])}{', ...' if len(values) > MOST_NAMED else ''})" if values else ""
        return f"{name}: {label['classes']} classes{named}{', as told' if why == 'as told' else ''}"
    reason = "" if label["name"] is None else f", {why}"
    return f"{name}: numbers {_format_range(label['least'], label['most'])}{reason}"


def _format_range(least: float, most: float) -> str:
    """Return "least to most" with six significant digits, or as many more as tell the two apart."""
    for digits in range(6, 18):
        first, last = f"{least:.{digits}g}", f"{most:.{digits}g}"
        if first != last or least == most:
            break
    return f"{first} to {last}"


def _list_remarks(found: Mapping[str, Any], *, flags: bool) -> list[str]:
    """Return remarks in words: on columns that were left out, look like row numbers, are constant, or are too fine for float32; on
    a label that looks like row numbers; on scaled labels; and the doubts. `found`: result of `describe`. `flags`: name options
    of `crossover advise` instead of fields of the YAML.
    """
    words = []
    if out := found["left_out"]:
        words.append(
            f"{_join_names(out)} {_choose_verb(out)} left out ({'--drop none keeps' if flags else 'data.table.drop: [] keeps'} it)"
        )
    if counting := found["row_numbers"]:
        drop = f"--drop {shlex.quote(counting[0].removeprefix('column '))}" if flags else "data.table.drop"
        mend = f": {drop} leaves it out" if found["file"] else ""
        words.append(f"{_join_names(counting)}, like row numbers, {_choose_verb(counting)} an input{mend}")
    if found["label"].get("counts_rows"):
        words.append(f"the label {found['label']['name']} looks like row numbers")
    if constant := found["constant"]:
        words.append(f"constant: {_join_names(constant)}")
    if lost := found["float32_cannot_tell_apart"]:
        words.append(f"float32 does not tell the values of {_join_names(lost)} apart: {_explain_rounding(found)}")
    if scaled := found["label"].get("scaled"):
        mean, deviation = scaled["mean"], scaled["deviation"]
        by = f" by mean {mean[0]:.4g} and deviation {deviation[0]:.4g}" if len(mean) == 1 else ""
        words.append(f"labels are scaled for training{by} (data.scale_labels), loss and metric are in their own unit")
    return [*words, *found["doubts"]]


def _explain_rounding(found: Mapping[str, Any]) -> str:
    """Return a clause on columns whose values float32 cannot tell apart: "they are int64, and float64 would keep them", that
    `data.preprocess: none` rounds them, or that nothing is lost since they are scaled in float64. Call it only if there are such columns.
    `found`: result of `describe`.
    """
    if found["dtype"] != "float64":
        return f"they are {found['dtype']}, and float64 would keep them"
    if found["preprocess"] == "none":
        return "data.preprocess: none rounds them, standardize keeps them"
    return "they are scaled in float64 first"


def _join_names(names: Sequence[str]) -> str:
    """Return the first five names as text, and how many more there are."""
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def _choose_verb(names: Sequence[str]) -> str:
    """Return "is" for one name, "are" for several."""
    return "is" if len(names) == 1 else "are"


def _describe_label(samples: "Samples", scale: "LabelScale | None") -> dict[str, Any]:
    """Return the label's part of the description as plain JSON: name, column, kind, how it was chosen, and its classes or range.
    `scale`: how labels are scaled, None if they are not.
    """
    from crossover.learning.samples import NO_CLASS

    reading, labels = samples.reading, samples.labels
    name = reading.name_column(reading.label) if reading else None
    decided = reading.why_kind if reading else "by the loader"
    plain: dict[str, Any] = {"name": name, "column": reading.label + 1 if reading else None, "decided": decided}
    plain["place"] = reading.why_label if reading else None
    if samples.classes is not None:
        values = list(reading.classes) if reading else None
        answered = int((labels != NO_CLASS).sum())
        return {**plain, "kind": "classes", "classes": samples.classes, "values": values, "answers": answered}
    least, most = float(labels.min()), float(labels.max())
    scaled = {"mean": list(scale.mean), "deviation": list(scale.deviation)} if scale else None
    counts_rows = most - least == len(labels) - 1 and _are_different_whole_numbers(labels.flatten())
    numbers = {
        "shape": list(labels.shape[1:]),
        "least": least,
        "most": most,
        "scaled": scaled,
        "counts_rows": counts_rows,
    }
    return {**plain, "kind": "numbers", **numbers}


def _doubt_numbers(samples: "Samples", experiment: Experiment) -> list[str]:
    """Return a sentence, in a list, that a loader's labels are numbers to the loss mse although all are 0 or 1, and how classes are made of
    them; an empty list otherwise. A CSV has no doubt: its label is a number of 0 or 1 only if the user said so.
    """
    labels = samples.labels
    one_each = labels.ndim == 1 or tuple(labels.shape[1:]) == (1,)
    if samples.reading or samples.classes is not None or experiment.training.loss != "mse" or not one_each:
        return []
    if not bool(((labels == 0) | (labels == 1)).all()):
        return []
    classes = "labels.long()" if labels.ndim == 1 else "labels[:, 0].long()"
    return [
        f"all labels are 0 or 1, and as {str(labels.dtype).removeprefix('torch.')} they are numbers: this is regression. For two classes "
        f"return Samples(inputs, {classes}, classes=2) (in a YAML also training.loss: cross_entropy, without training.metric)"
    ]


def _find_remarkable_columns(inputs: "Tensor", reading: "Reading | None") -> tuple[list[str], list[str], list[str]]:
    """Return three lists of column names: columns that look like row numbers, constant ones, and those in which rounding to float32 moves
    values by more than LOST standard deviations. `inputs`: (N, columns); `reading`: how a CSV was read, else None.
    """
    from crossover.learning.table import is_index_name

    rows, columns = inputs.shape
    kept = reading.inputs if reading else range(columns)
    shown = [reading.name_column(each) if reading else f"column {each + 1}" for each in kept]
    is_index = [bool(reading and reading.header and is_index_name(reading.names[each])) for each in kept]
    least, most, deviation = _compute_spread(inputs)
    counting, constant, lost = [], [], []
    for each, name in enumerate(shown):
        low, high = float(least[each]), float(most[each])
        if low == high:
            constant.append(name)
            continue
        counts = rows > 2 and (high - low == rows - 1 or is_index[each])
        if counts and _are_different_whole_numbers(inputs[:, each]):
            counting.append(name)
        if max(abs(low), abs(high)) * _HALF_STEP > LOST * float(deviation[each]):
            lost.append(name)
    return counting, constant, lost


def _are_different_whole_numbers(column: "Tensor") -> bool:
    """Return whether the column's values are all whole numbers and no two are equal."""
    values = column.double()
    ordered = values.sort().values
    return bool((values == values.round()).all()) and bool((ordered[1:] > ordered[:-1]).all())


def _split_rows(inputs: "Tensor") -> "Iterator[Tensor]":
    """Return an iterator over blocks of at most 65,536 rows of the inputs."""
    return (inputs[first : first + _BLOCK] for first in range(0, len(inputs), _BLOCK))


def _compute_spread(inputs: "Tensor") -> "tuple[Tensor, Tensor, Tensor]":
    """Return (smallest values, largest values, standard deviations) by column; the deviations are computed in float64."""
    total = inputs[:0].double().sum(0)
    for block in _split_rows(inputs):
        total += block.double().sum(0)
    mean, squares = total / len(inputs), 0 * total
    for block in _split_rows(inputs):
        squares += (block.double() - mean).square().sum(0)
    return inputs.amin(0), inputs.amax(0), (squares / len(inputs)).sqrt()

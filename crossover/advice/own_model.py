"""An experiment of a model and data alone: `mine.py:factory` and a CSV or a loader become a YAML beside the model."""

import csv
import keyword
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from crossover import own_code
from crossover.errors import ConfigError
from crossover.experiment import Training, flat
from crossover.validation import documents, validate

EPOCHS = 10
MOST_CLASSES = 20  # different whole numbers in a last column that are taken for classes
EXACT = 2**24  # below it float32, which the loader reads, tells all whole numbers apart
LARGEST = (2 - 2**-23) * 2.0**127  # of float32
OF_FILE = re.compile(r"(.+)\.py:(\w+)")
LOADER = '''"""The last column of the table is the label; written by `crossover advise`, and yours to change."""

import csv
from pathlib import Path

import torch

from crossover.learning.datasets import Samples


def rows(experiment):
    """Inputs (N, {columns}) float32; labels (N,{shape}) {kind}."""
    with open(Path(__file__).parent / {name!r}, newline="", encoding="utf-8-sig") as file:
        lines = [line for line in csv.reader(file) if line][{first}:]
    values = torch.tensor([[float(value) for value in line] for line in lines])
    {labels}
'''
CLASSES = """known, labels = values[:, -1].unique(return_inverse=True)
    return Samples(values[:, :-1], labels, classes=len(known))"""
NUMBERS = "return Samples(values[:, :-1], values[:, -1:])"


def is_model(given: str) -> bool:
    """Whether it names a factory rather than an experiment's file."""
    return ":" in given and not Path(given).exists()


def written(model: str, data: str | None, epochs: int | None) -> Path:
    """The YAML, made if it is not there. Raises ConfigError for what is missing or not as expected, for a file that says otherwise, and
    OwnCodeError for a model or loader that fails or does not fit; then nothing is left of this call.
    """
    from crossover.advice import subject  # torch comes with it

    if data is None:
        raise ConfigError(
            "--data: is missing; expected a CSV of numbers whose last column is the label, or module:loader"
        )
    folder, factory = _named(model, "training.model")
    made, dataset = _of_csv(folder, Path(data)) if ":" not in data else ({}, _loader(data, folder))
    module = factory.partition(":")[0]
    path = folder / f"{module.replace('.', '-')}.yaml"
    own_code.look_in(folder, Path.cwd())
    with ExitStack() as undone:
        for file, text in made.items():
            if not file.exists():
                undone.callback(file.unlink, missing_ok=True)
            _write(file, text)
        own_code.load(factory, field="training.model")
        plain = {
            "name": re.sub(r"[^a-z0-9]+", "-", module.lower()).strip("-") or "mine",
            "architecture": "single",
            "workers": 1,
            "training": {"model": factory, "epochs": epochs or EPOCHS, **_judged(dataset)},
            "data": {"dataset": dataset},
        }
        subject.of(validate(plain))  # the data hold numbers, and the model takes them
        _write_experiment(path, plain)
        undone.pop_all()  # all of it holds
    return path


def _named(given: str, field: str) -> tuple[Path, str]:
    """The folder in which own code is looked for, and package.module:name."""
    if not (found := OF_FILE.fullmatch(given)):
        return Path(), given
    file = Path(f"{found[1]}.py")
    if not file.is_file():
        raise ConfigError(f"{field}: {file}: no such file; expected file.py:name or package.module:name")
    if not file.stem.isidentifier() or keyword.iskeyword(file.stem):
        raise ConfigError(
            f"{field}: {file}: {file.stem!r} is no name of a Python module, by which its code is imported; expected letters, digits "
            "and _, beginning with none of the digits; rename the file"
        )
    return file.parent, f"{file.stem}:{found[2]}"


def _loader(given: str, folder: Path) -> str:
    where, dataset = _named(given, "data.dataset")
    if where.resolve() not in (folder.resolve(), Path.cwd()):
        raise ConfigError(
            f"data.dataset: {given}: lies neither beside the model nor in this folder; put it beside the model"
        )
    return dataset


def _judged(dataset: str) -> dict[str, object]:
    """Loss and metric by the labels: classes or numbers."""
    from crossover.experiment import Experiment
    from crossover.learning.samples import Samples

    loader = own_code.load(dataset, field="data.dataset")
    with own_code.blame("data.dataset", dataset, what=loader):
        samples = loader(Experiment(name="data", architecture="single"))
    if not isinstance(samples, Samples):
        raise ConfigError(
            f"data.dataset: {dataset} returned a {type(samples).__name__}; expected Samples, as docs/your-own.md has them"
        )
    batch: dict[str, object] = {"batch_size": min(Training().batch_size, max(1, len(samples.labels) // 2))}
    if samples.classes is not None:
        return batch
    return {
        **batch,
        "loss": "mse",
        "metric": {"name": "mean_absolute_error", "higher_is_better": False},
        "learning_rate": 0.01,
    }


def _of_csv(folder: Path, path: Path) -> tuple[dict[Path, str], str]:
    """A loader of the file, by its path, and its name as data.dataset."""
    if not str(path).isprintable():
        raise ConfigError(
            f"--data: {str(path)!r}: has characters that cannot be printed; expected a name without them: rename it"
        )
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"--data: {path}: cannot be read: {error}; expected a CSV of numbers, or module:loader"
        ) from error
    first = int(bool(lines) and all(_number(each) is None for each in lines[0]))
    width = len(lines[0]) if lines else 0
    if width < 2 or len(lines) - first < 3:
        raise ConfigError(
            f"--data: {path}: has {width} columns and {max(0, len(lines) - first)} rows; expected two columns and three rows at least"
        )
    for number, line in enumerate(lines[first:], start=first + 1):
        if problem := _problem(line, width):
            raise ConfigError(
                f"--data: {path}: row {number}: {problem}; expected a CSV of numbers, or a loader of your own, module:loader"
            )
    labels = {float(line[-1]) for line in lines[first:]}
    classes = _are_classes(labels, path)
    text = LOADER.format(
        name=os.path.relpath(path, folder),
        columns=width - 1,
        shape="" if classes else " 1",
        kind=f"int64, of {len(labels)} classes" if classes else "float32",
        first=first,
        labels=CLASSES if classes else NUMBERS,
    )
    stem = re.sub(r"\W", "_", path.stem, flags=re.ASCII)
    module = f"rows_of_{stem}" if stem[:1].isdigit() else f"{stem}_rows"
    return {folder / f"{module}.py": text}, f"{module}:rows"


def _problem(line: list[str], width: int) -> str:
    for each in line:
        if (number := _number(each)) is None:
            return f"{each!r} is no number"
        if not abs(number) <= LARGEST:
            return f"{each!r} is no number that float32 holds"
    return "" if len(line) == width else f"has {len(line)} columns, and the first has {width}"


def _are_classes(labels: set[float], path: Path) -> bool:
    """Whether the last column names classes. Raises ConfigError where nothing is to be told apart, or could not be."""
    if len(labels) == 1:
        raise ConfigError(
            f"--data: {path}: the last column is {next(iter(labels)):g} in every row; expected the label there, of two values and more"
        )
    if len(labels) > MOST_CLASSES or not all(each.is_integer() for each in labels):
        return False
    if (largest := max(labels, key=abs)) >= EXACT or largest <= -EXACT:
        raise ConfigError(
            f"--data: {path}: the last column has the class {largest:.0f}, which float32 does not tell from its neighbours; expected "
            f"classes between -{EXACT} and {EXACT}, or a loader of your own, module:loader"
        )
    return True


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _write(path: Path, text: str) -> None:
    """Nothing that is there already and says otherwise is overwritten."""
    if not path.exists():
        path.write_text(text, encoding="utf-8")
    elif path.read_text("utf-8") != text:
        raise ConfigError(f"{path}: is there already and says otherwise; move it, or give it as --data")


def _write_experiment(path: Path, plain: Mapping[str, Any]) -> None:
    """One that is there already may say other epochs, which the command line overrides, and nothing else."""
    if not path.exists():
        head = "# By `crossover advise`: yours to change. docs/your-own.md says what can be set.\n"
        path.write_text(head + yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")
        return
    there, asked = dict(flat(documents.read(path))), dict(flat(plain))
    other = [
        f"{name}: {there.get(name, 'nothing')!r} in the file, {asked.get(name, 'nothing')!r} asked for"
        for name in {**asked, **there}
        if name != "training.epochs" and there.get(name) != asked.get(name)
    ]
    if other:
        mend = f"`crossover advise {path}` advises what it says; move it for another"
        raise ConfigError("\n  ".join([f"{path}: is there already and says otherwise; {mend}", *other]))

"""An experiment of a model and data alone: `mine.py:factory` and a CSV or a loader become a YAML beside the model."""

import csv
import os
import re
from pathlib import Path

import yaml

from crossover import own_code
from crossover.errors import ConfigError
from crossover.experiment import Training

EPOCHS = 10
MOST_CLASSES = 20  # different whole numbers in a last column that are taken for classes
OF_FILE = re.compile(r"(.+)\.py:(\w+)")
LOADER = '''"""{name}: the last column is the label; written by `crossover advise`, and yours to change."""

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
    OwnCodeError for a loader that fails.
    """
    if data is None:
        raise ConfigError(
            "--data: is missing; expected a CSV of numbers whose last column is the label, or module:loader"
        )
    folder, factory = _named(model, "training.model")
    made, dataset = _of_csv(folder, Path(data)) if ":" not in data else ({}, _loader(data, folder))
    module = factory.partition(":")[0]
    path = folder / f"{module.replace('.', '-')}.yaml"
    for file, text in made.items():
        _write(file, text, "move it, or give it as --data")
    own_code.look_in(folder, Path.cwd())
    plain = {
        "name": re.sub(r"[^a-z0-9]+", "-", module.lower()).strip("-") or "mine",
        "architecture": "single",
        "workers": 1,
        "training": {"model": factory, "epochs": epochs or EPOCHS, **_judged(dataset)},
        "data": {"dataset": dataset},
    }
    text = "# By `crossover advise`: yours to change. docs/your-own.md says what can be set.\n"
    _write(
        path,
        text + yaml.safe_dump(plain, sort_keys=False),
        f"`crossover advise {path}` advises what it says; move it for another",
    )
    return path


def _named(given: str, field: str) -> tuple[Path, str]:
    """The folder in which own code is looked for, and package.module:name."""
    if not (found := OF_FILE.fullmatch(given)):
        return Path(), given
    file = Path(f"{found[1]}.py")
    if not file.is_file():
        raise ConfigError(f"{field}: {file}: no such file; expected file.py:name or package.module:name")
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
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"--data: {path}: cannot be read: {error}; expected a CSV of numbers, or module:loader"
        ) from error
    first = int(bool(lines) and any(not _is_number(each) for each in lines[0]))
    width = len(lines[0]) if lines else 0
    if width < 2 or len(lines) - first < 2:
        raise ConfigError(
            f"--data: {path}: has {width} columns and {max(0, len(lines) - first)} rows; expected two of each and more"
        )
    for number, line in enumerate(lines[first:], start=first + 1):
        wrong = next((each for each in line if not _is_number(each)), None)
        if wrong is not None or len(line) != width:
            problem = (
                f"{wrong!r} is no number"
                if wrong is not None
                else f"has {len(line)} columns, and the first has {width}"
            )
            raise ConfigError(
                f"--data: {path}: row {number}: {problem}; expected a CSV of numbers, or a loader of your own, module:loader"
            )
    labels = {float(line[-1]) for line in lines[first:]}
    classes = len(labels) <= MOST_CLASSES and all(each.is_integer() for each in labels)
    text = LOADER.format(
        name=os.path.relpath(path, folder),
        columns=width - 1,
        shape="" if classes else " 1",
        kind=f"int64, of {len(labels)} classes" if classes else "float32",
        first=first,
        labels=CLASSES if classes else NUMBERS,
    )
    module = re.sub(r"\W", "_", f"{path.stem}_rows")
    return {folder / f"{module}.py": text}, f"{module}:rows"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _write(path: Path, text: str, mend: str) -> None:
    """Nothing that is there already and says otherwise is overwritten."""
    if path.exists():
        if path.read_text("utf-8") != text:
            raise ConfigError(f"{path}: is there already and says otherwise; {mend}")
        return
    path.write_text(text, encoding="utf-8")

"""Build an experiment from a model and data alone: `mine.py:factory` and a CSV or a loader become a YAML file beside the model."""

import copy
import hashlib
import keyword
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from crossover import user_code
from crossover.errors import ConfigError, DataError
from crossover.experiment import Data, Experiment, Table, Training, flatten_fields
from crossover.validation import documents, validate

EPOCHS = 10
OF_FILE = re.compile(r"(.+)\.py:(\w+)")
LOADER = '''"""A table's rows; written by `crossover advise`, and yours to change."""

from pathlib import Path

from crossover.learning import table


def rows(experiment):
    """Inputs (N, columns) float64; labels (N,) int64 of classes, or (N, 1) float64. `data.table` of the YAML says which column is what."""
    return table.read(Path(__file__).parent / {name!r}, experiment.data.table)
'''
DECIDED = re.compile(
    r"data\.table\.\w+|training\.(loss|metric\.\w+|learning_rate|batch_size)"
)  # by how a table is read
UNCHANGED = "# By `crossover advise`: yours to change. docs/your-own.md says what can be set. As written: "


def is_model(given: str) -> bool:
    """Return whether a command line's argument names a model factory, such as `model.py:factory`, rather than an experiment's file: it
    contains a colon and no file has this name.
    """
    return ":" in given and not Path(given).exists()


def write_experiment(
    model: str, data: str | None, epochs: int | None, table: Table | None = None, *, override: Sequence[str] = ()
) -> Path:
    """Write the YAML file of an experiment that trains a given model, and for a CSV file a Python module that loads it, and return the YAML
    file's path. Both lie beside the model's file, or for `module:factory` in the current folder. The model and its data are tried first.
    User code is then looked for in these two folders, for the rest of the process (`user_code.set_folders`).

    Existing files with the same content are kept. An existing YAML file keeps its number of epochs; it is rewritten if only what follows
    from the reading of the table differs, and nobody has edited it.

    `model`: `file.py:factory` or `module:factory`; `data`: a CSV file or `module:loader`; `epochs`: number of epochs, by default EPOCHS;
    `table`: how to read a CSV, None to guess; `override`: --set options with which model and data are tried, and which the file does not
    hold. Raises ConfigError for missing or invalid arguments or if an existing file differs,
    OwnCodeError if the model or loader fails; files that this call wrote are then deleted.
    """
    from crossover.advice import question  # torch comes with it

    if data is None:
        raise ConfigError("--data: is missing; expected a CSV of numbers, or module:loader")
    folder, factory = locate(model, "training.model")
    module = factory.partition(":")[0]
    path = folder / f"{module.replace('.', '-')}.yaml"
    user_code.set_folders(folder, Path.cwd())
    if ":" in data:
        if table not in (None, Table()):
            raise ConfigError(
                f"--label, --classes, --numbers, --header and --drop: apply only to a CSV; {data} is a loader"
            )
        made, dataset, how = dict[Path, str](), _locate_loader(data, folder), None
    else:
        made, dataset, how = _describe_csv(folder, Path(data), table or Table())
    with ExitStack() as undone:
        for file, text in made.items():
            if not file.exists():
                undone.callback(file.unlink, missing_ok=True)
            _write_once(file, text)
        user_code.load(factory, field="training.model")
        plain = {
            "name": re.sub(r"[^a-z0-9]+", "-", module.lower()).strip("-") or "mine",
            "architecture": "single",
            "workers": 1,
            "training": {"model": factory, "epochs": epochs or EPOCHS, **_training_settings(dataset, how or Table())},
            "data": {"dataset": dataset, **({"table": _table_as_plain(how)} if how else {})},
        }
        tried = copy.deepcopy(plain)
        commanded = [documents.apply_override(tried, each) for each in override]
        question.build_question(validate(tried, commanded=commanded))  # the data hold numbers, and the model takes them
        _write_yaml(path, plain)
        undone.pop_all()  # all of it holds
    return path


def _table_as_plain(table: Table) -> dict[str, Any]:
    """Return the settings of a table as a dictionary that YAML can hold; `drop` is a list, empty for None."""
    plain = asdict(table)
    return {**plain, "drop": list(table.drop or ())}


def locate(given: str, field: str) -> tuple[Path, str]:
    """Return (folder, name) of user code, with the name as `module:name`. `given`: `file.py:name` or `package.module:name`; `field`: name
    of the YAML field for errors. Raises ConfigError if there is no such file, or if its name is no module name.
    """
    if not (found := OF_FILE.fullmatch(given)):
        return Path(), given
    file = Path(f"{found[1]}.py")
    if not file.is_file():
        raise ConfigError(f"{field}: {file}: no such file; expected file.py:name or package.module:name")
    if not file.stem.isidentifier() or keyword.iskeyword(file.stem):
        raise ConfigError(
            f"{field}: {file}: {file.stem!r} is not a valid name of a Python module; expected letters, digits "
            "and _, not beginning with a digit; rename the file"
        )
    return file.parent, f"{file.stem}:{found[2]}"


def _locate_loader(given: str, folder: Path) -> str:
    """Return the name of a data loader as `module:name`. `given`: as on the command line, `file.py:name` or `package.module:name`; the
    second form is returned as it is, without a check. `folder`: folder of the model. Raises ConfigError if the file of the first form does
    not exist, is not named like a module, or lies neither beside the model nor in the current folder.
    """
    where, dataset = locate(given, "data.dataset")
    if where.resolve() not in (folder.resolve(), Path.cwd()):
        raise ConfigError(
            f"data.dataset: {given}: is neither beside the model nor in the current folder; move it beside the model"
        )
    return dataset


def _training_settings(dataset: str, table: Table) -> dict[str, object]:
    """Load the data, and return the training settings that follow from it, by name: `batch_size`, and if the labels are numbers rather than
    classes also `loss`, `metric` and `learning_rate`. `dataset`: name of the loader; `table`: how a CSV is read. Raises ConfigError if the
    loader returns no Samples, OwnCodeError if it fails.
    """
    from crossover.learning.samples import Samples, describe_wrong_type

    loader = user_code.load(dataset, field="data.dataset")
    with user_code.attribute_errors("data.dataset", dataset, what=loader):
        samples = loader(Experiment(name="data", architecture="single", data=Data(dataset=dataset, table=table)))
    if not isinstance(samples, Samples):
        raise ConfigError(f"data.dataset: {dataset} {describe_wrong_type(samples)} (docs/your-own.md)")
    batch: dict[str, object] = {"batch_size": min(Training().batch_size, max(1, len(samples.labels) // 2))}
    if samples.classes is not None:
        return batch
    return {
        **batch,
        "loss": "mse",
        "metric": {"name": "mean_absolute_error", "higher_is_better": False},
        "learning_rate": 0.01,
    }


def _describe_csv(folder: Path, path: Path, asked: Table) -> tuple[dict[Path, str], str, Table]:
    """Return ({path: text} of the Python module that loads the CSV file, the loader's name as `module:rows`, how the file's columns are
    understood). Nothing is written. `folder`: folder for the module; `path`: the CSV file; `asked`: settings of the command line. Raises
    ConfigError if the file cannot be read as a table, or if its name cannot be printed.
    """
    from crossover.learning import table  # torch comes with it

    if not str(path).isprintable():
        raise ConfigError(
            f"--data: {str(path)!r}: has characters that cannot be printed; expected a name without them: rename it"
        )
    told = tuple(each for each in asked.drop or () if each != "none")
    only = len(told) < len(asked.drop or ())  # --drop none: nothing is left out but what else is named
    try:
        reading = table.read(path, replace(asked, drop=told if only else None), also_drop=told).reading
    except DataError as error:
        raise ConfigError(f"--data: {error}") from error
    assert reading is not None
    stem = re.sub(r"\W", "_", path.stem, flags=re.ASCII)
    module = f"rows_of_{stem}" if stem[:1].isdigit() else f"{stem}_rows"
    text = LOADER.format(name=os.path.relpath(path, folder))
    return {folder / f"{module}.py": text}, f"{module}:rows", reading.as_table()


def _write_once(path: Path, text: str) -> None:
    """Write `text` to the file `path` if it does not exist. Raises ConfigError if it exists with another text."""
    if not path.exists():
        path.write_text(text, encoding="utf-8")
    elif path.read_text("utf-8") != text:
        raise ConfigError(f"{path}: exists with other contents; move it, or give it as --data")


def _write_yaml(path: Path, plain: Mapping[str, Any]) -> None:
    """Write the experiment `plain` to the YAML file `path` unless it exists with the same content. An existing file may have another number
    of epochs. It is rewritten if it differs only in what follows from the reading of a table, and nobody has edited it. Raises ConfigError,
    which lists the differences, if it differs otherwise.
    """
    if not path.exists():
        path.write_text(_yaml_text(plain), encoding="utf-8")
        return
    there, asked = dict(flatten_fields(documents.read(path))), dict(flatten_fields(plain))
    other = [name for name in {**asked, **there} if name != "training.epochs" and there.get(name) != asked.get(name)]
    if other and all(map(DECIDED.fullmatch, other)) and is_unedited(path):
        epochs = {"training": {**plain["training"], "epochs": there.get("training.epochs", EPOCHS)}}
        path.write_text(_yaml_text({**plain, **epochs}), encoding="utf-8")
    elif other:
        mend = f"`crossover advise {path}` advises the existing file; move it to get a new one"
        said = (
            f"{name}: {there.get(name, 'nothing')!r} in the file, {asked.get(name, 'nothing')!r} asked for"
            for name in other
        )
        raise ConfigError("\n  ".join([f"{path}: exists and differs; {mend}", *said]))


def _yaml_text(plain: Mapping[str, Any]) -> str:
    """Return the YAML text of an experiment, with a first line that contains a digest of the rest, by which `is_unedited`
    notices edits.
    """
    body = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return f"{UNCHANGED}{hashlib.sha256(body.encode()).hexdigest()[:16]}\n{body}"


def is_unedited(path: Path) -> bool:
    """Return whether nobody has edited a YAML file: it still matches the digest in its first line. Raises OSError if the file cannot be
    read.
    """
    head, _, body = path.read_text("utf-8").partition("\n")
    return head == f"{UNCHANGED}{hashlib.sha256(body.encode()).hexdigest()[:16]}"

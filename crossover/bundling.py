"""The user code that is bundled for functions and programs: its Python files. Loaders of data sets run here and stay here."""

import hashlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from crossover import user_code
from crossover.experiment import Experiment
from crossover.user_code import COMPUTING, FIRST_PARTY, PROJECT, Dependencies, OutsideImport, find_dependencies


def list_user_code(experiment: Experiment) -> dict[str, str]:
    """Return {field: `package.module:name`} of all user code in the experiment's section `training` (model, loss, metric), which
    functions and programs run. A field is a name with dots, such as `training.model`.
    """
    training = experiment.training
    names = {
        "training.model": training.model,
        "training.loss": training.loss,
        "training.metric.name": training.metric.name,
    }
    return {field: name for field, name in names.items() if ":" in name}


def _list_user_code_with_architecture(experiment: Experiment) -> dict[str, str]:
    """Return the result of `list_user_code`, and under "architecture" the user's own architecture (`package.module:ARCHITECTURE`) if the
    experiment has one.
    """
    own = {"architecture": f"{experiment.module}:ARCHITECTURE"} if experiment.outside else {}
    return own | list_user_code(experiment)


def list_user_code_with_loader(experiment: Experiment) -> dict[str, str]:
    """Return the result of `list_user_code`, and under "data.dataset" the data set's loader if it is user code; the loader runs on
    this machine only.
    """
    dataset = experiment.data.dataset
    return {**({"data.dataset": dataset} if ":" in dataset else {}), **list_user_code(experiment)}


def check_user_code(experiment: Experiment, *, travels: bool = True) -> list[str]:
    """Import the user code that the experiment names, without its architecture. Raises OwnCodeError if that fails, or if the code (other
    than the loader) reads data files meanwhile; ConfigError for a name that is malformed or reserved. Returns notes, in words, on what is
    unusual but no error.

    `travels`: whether functions or programs will hold the code, so that its dependencies are checked too; if False, no notes are returned.
    """
    for field, name in list_user_code(experiment).items():
        with user_code.forbid_data_files(field, name):
            user_code.load(name, field=field)
    for field, name in list_user_code_with_loader(experiment).items():
        user_code.load(name, field=field)
    return _describe_oddities(collect_files(experiment)) if travels else []


def collect_files(experiment: Experiment) -> Dependencies:
    """Return the user's files that functions and programs must hold, and what they import; nothing is imported. The data set's loader is
    not among them. Raises OwnCodeError, with line and remedy, if a module is missing, if a file is not valid Python, or if it imports,
    outside functions, a package that functions do not have. Raises ConfigError for a name that is malformed or reserved.
    """
    found = Dependencies()
    for field, name in _list_user_code_with_architecture(experiment).items():
        user_code.check_name(name, field)
        one = find_dependencies(name, field=field)
        if not user_code.locate(name.partition(":")[0]):
            raise user_code.build_missing_error(field, name)
        for wanted in one.wanted:
            if wanted.at_once and (problem := _explain_unavailable(wanted)):
                raise user_code.build_user_code_error(
                    field, name, problem, place=user_code.place_in_file(wanted.file, wanted.line)
                )
        found.files |= one.files
        found.wanted += one.wanted
        found.passed_over |= one.passed_over
    return found


def hash_files(experiment: Experiment) -> dict[str, str]:
    """Return {path in the bundle: first 16 hexadecimal digits of the file's SHA-256} of the user's files that functions and programs use,
    so without the data set's loader. A module that does not exist is left out. Equal results mean equal user code. Raises OwnCodeError for
    a file that is not valid Python.
    """
    files = {
        path: file
        for field, name in _list_user_code_with_architecture(experiment).items()
        for path, file in find_dependencies(name, field=field).files.items()
    }
    return {path.as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()[:16] for path, file in sorted(files.items())}


def hash_all_files(experiment: Experiment) -> dict[str, str]:
    """Return {path in the bundle: SHA-256, 64 hexadecimal digits} of all the user's files that the experiment uses, those of the data set's
    loader included. A module that does not exist is left out. Raises OwnCodeError for a file that is not valid Python.
    """
    files = dict[Path, Path]()
    for field, name in {
        **_list_user_code_with_architecture(experiment),
        **list_user_code_with_loader(experiment),
    }.items():
        files |= find_files(name, field=field)
    return {path.as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for path, file in sorted(files.items())}


def find_files(name: str, *, field: str) -> Mapping[Path, Path]:
    """Return {path in the bundle: path on this machine} of the user's files that importing `name` (`package.module:name`) would read;
    nothing is imported. A module that does not exist is left out. Raises OwnCodeError, naming `field`, for a file that is not valid
    Python.
    """
    return find_dependencies(name, field=field).files


def compute_fingerprint(experiment: Experiment) -> str:
    """Return one hash (16 hexadecimal digits) of the user's files that functions and programs use, those of `hash_files`; "" if there is no
    user code. Raises OwnCodeError for a file that is not valid Python.
    """
    found = hash_files(experiment)
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:16] if found else ""


def _describe_oddities(found: Dependencies) -> list[str]:
    """Return notes, in words, on user code: which of two files of one name is used, and imports inside functions that would fail in
    deployed functions. `found`: result of `collect_files`.
    """
    lines = [
        f"{user_code.place_in_file(taken, None)} is taken, not {user_code.place_in_file(other, None)}"
        for taken, other in found.passed_over.items()
    ]
    late = {each.module.split(".")[0]: each for each in found.wanted if not each.at_once and _explain_unavailable(each)}
    return lines + [
        f"{user_code.place_in_file(each.file, each.line)}: functions have no {top}; only what runs on this machine, "
        "such as a data set's loader, can reach this line"
        for top, each in late.items()
    ]


def _explain_unavailable(wanted: OutsideImport) -> str | None:
    """Return why deployed functions cannot import the package of `wanted`, mostly with a remedy, as a clause that begins `imports PACKAGE`;
    None if they can.
    """
    top = wanted.module.split(".")[0]
    if top in COMPUTING or top in FIRST_PARTY or top in sys.stdlib_module_names:
        return None
    if top in PROJECT:
        return f"imports {top}, which functions have not: it is this project's part that deploys"
    if top == "numpy":
        return f"imports numpy, for which functions have no room beside torch: {IMPORT_IN_LOADER}, or use torch"
    return f"imports {top}, which functions have not: {IMPORT_IN_LOADER}{_suggest_help(top, wanted.file)}"


IMPORT_IN_LOADER = (
    "they import this file with the model; if the loader of data.dataset alone needs it, which runs on this machine, move the import into "
    "that function, or the loader into a file that the model does not import"
)


def _suggest_help(top: str, file: Path) -> str:
    """Return a clause, to append to an error, on how user code could do without the package `top` (if it has compiled files) or take
    a copy of it along; "" if it is not installed here. `file`: the user's file that imports it.
    """
    where = _find_installed(top)
    if where is None:
        return ""
    if any(where.rglob("*.so")) if where.is_dir() else where.suffix == ".so":
        return "; it is compiled, and neither layer nor image can carry it: elsewhere use torch's operations"
    return f"; it is written in Python alone: with a copy of {where.name} beside {file.name} it travels with your code"


def _find_installed(top: str) -> Path | None:
    """Return the folder of the installed package `top`, or its file if it is a single module; None if it is not installed or has no
    __init__.py. `top` itself is not imported.
    """
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # something that is no package stands under its name
        return None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin)
    return path.parent if re.fullmatch(r"__init__\..*", path.name) else path

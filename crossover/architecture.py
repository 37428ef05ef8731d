"""What an architecture says of itself, in one ARCHITECTURE: the tree of its run, its settings, what it refuses, what it claims; and how it
is found by its name, in functions/ or peers/ or in a package of the user's own.
"""

import difflib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeVar, get_args, get_type_hints

from crossover import own_code
from crossover.algorithms.aggregators.plan import Plan
from crossover.errors import ConfigError, CrossoverError
from crossover.experiment import Compressed, Experiment, What, section_of
from crossover.instances import Instances
from crossover.own_code import imports
from crossover.workflow import Node, Step, walk

T = TypeVar("T")


@dataclass(frozen=True)
class Program:
    """A program on EC2, once per worker. `main` takes what it works with: nothing on an instance, whose environment says it.

    `instances`: what an experiment runs it on. `step`: what its records are called, one per worker and epoch. `talks`: whether its members
    send one another messages.
    """

    main: Callable[..., None]
    instances: Callable[[Experiment], Instances]
    step: str = "train_peer"
    talks: bool = False

    @property
    def module(self) -> str:
        return self.main.__module__


CLAIMS = {
    "equals_reference": "trains the bits that one process trains with the same data",
    "same_calls": "makes the same calls in every run, wherever it runs",
    "survives_kills": "a step may be repeated, come late or end at any call, and the model is the same",
    "resumes": "a run that failed goes on from what it left",
    "stops": "a run ends when it is told to, or at its budget, with the epoch that it has begun",
    "adds_what_others_average": "with a threshold of 0, and nobody removed, trains the reference's updates up to rounding",
}


# Every codec, of gradients and of what models have moved by. A model is not compressed: what is left out of it would be no small change.
EXCHANGES = {"gradients": get_args(Compressed), "model": ("none",), "delta": get_args(Compressed)}


@dataclass(frozen=True)
class Architecture:
    """One of the compared architectures: the tree of its run, or a program; machines that steps or programs start by name.

    `settings`: a frozen dataclass, the section of the YAML that is named after its module; two architectures may share one.
    `exchanges`: by `exchange.what`, the compressions that it can do; `why_not`: the reason for those that are missing there. `checks`:
    what of an experiment with it cannot be had, one problem each. `claims`: what of CLAIMS it promises; tests hold it to them.
    `aggregates`: of one that trains nothing, and averages gradients that are made: who adds what. `alone`: of one that has a single worker.
    `form`: of one whose tree or program is another by its settings: the architecture as an experiment asks for it.
    """

    name: str
    run: Node | None = None
    machines: Mapping[str, Node] = field(default_factory=dict)
    program: Program | None = None
    tensor_hosts: Literal["per_worker", "shared", "none"] = "none"
    state: Literal["checkpoints", "database"] = "checkpoints"  # where a run that failed finds what it goes on with
    sync_every: int | Literal["epoch"] = 1  # the architecture's own, where the YAML gives none
    simulation: str = ""  # the module of crossover/simulation that describes its steps, where that has not its own name
    exchanges: Mapping[str, Collection[str]] = field(default_factory=lambda: {"gradients": ("none",)})
    why_not: str = ""
    settings: type | None = None
    checks: Callable[[Experiment], Iterable[str]] = lambda experiment: ()
    claims: Collection[str] = ()
    aggregates: Callable[[Experiment], Plan] | None = None
    alone: bool = False
    form: "Callable[[Experiment], Architecture] | None" = None

    @property
    def trains(self) -> bool:
        """Whether there are data, a model, epochs and an accuracy; else a run is one aggregation."""
        return self.aggregates is None

    def asked_by(self, experiment: Experiment) -> "Architecture":
        """In the form that the experiment's settings ask for."""
        return self if self.form is None else self.form(experiment)

    def resolve(self, experiment: Experiment) -> Experiment:
        """With what the YAML leaves to the architecture filled in."""
        if self.settings is not None:
            experiment = experiment.with_settings(experiment.settings(self.settings))
        training, exchange = experiment.training, experiment.exchange
        if not self.trains:  # once through the levels: what counts epochs and rounds counts one
            return replace(experiment, training=replace(training, epochs=1), exchange=replace(exchange, every="epoch"))
        if exchange.every is not None:
            return experiment
        return replace(experiment, exchange=replace(exchange, every=self.sync_every))


def trees(architecture: Architecture) -> list[Node]:
    """The tree of the run, and those of the machines that steps or programs start."""
    return [*([architecture.run] if architecture.run else []), *architecture.machines.values()]


def steps(architecture: Architecture) -> list[Step]:
    """The distinct steps, in the order they are written."""
    found = [node for root in trees(architecture) for node in walk(root) if isinstance(node, Step)]
    return list(dict.fromkeys(found))


ROOT = Path(__file__).parent.parent
PACKAGES = ("functions", "peers")
DEFINED = re.compile(r"^ARCHITECTURE\b", re.MULTILINE)


def architectures() -> list[str]:
    """The names of every architecture that exists: the modules of functions/ and peers/ that define an ARCHITECTURE."""
    names = {path.stem for package in PACKAGES for path in (ROOT / package).iterdir()}
    return sorted(
        name
        for name in names
        if any(DEFINED.search((ROOT / file).read_text("utf-8", "replace")) for file in _files(name))
    )


def training_architectures() -> list[str]:
    """Those of them that train a model; the others average gradients that are made."""
    return [name for name in architectures() if load(name).trains]


def sections(name: object, problem_of: Callable[[type], str | None] = lambda settings: None) -> dict[str, type]:
    """The class of every architecture's own settings, by its section of a YAML; `problem_of` says why one cannot be read.

    Raises ConfigError where `name`, the architecture that the YAML asks for, is there and faulty; another one that is faulty is its
    author's matter, not this YAML's.
    """
    found: dict[str, type] = {}
    whose: dict[str, str] = {}
    asked = name.replace("-", "_") if isinstance(name, str) else ""
    for each in dict.fromkeys([*architectures(), *([asked] if "." in asked or _files(asked) else [])]):
        try:
            settings = load(each).settings
        except ConfigError:
            if each == asked:
                raise
            continue
        if settings is None:
            continue
        section = section_of(settings)
        other = found.get(section, settings)
        if problem := problem_of(settings):
            if each == asked:
                raise ConfigError(f"architecture: {each!r}: {problem}")
        elif other is settings:
            found[section], whose[section] = settings, each
        elif asked in (each, whose[section]):
            raise ConfigError(
                f"architecture: {each!r}: the section {section!r} is described by {other.__module__}.{other.__name__} and by "
                f"{settings.__module__}.{settings.__name__}; share one class, or name a section: ClassVar[str] in the other"
            )
    return found


def _files(name: str) -> list[str]:
    """In each package `<name>.py`, or `<name>/__init__.py` where an architecture is a folder; an empty one is no architecture's."""
    found = (ROOT / package / f"{name}{end}" for package in PACKAGES for end in ("/__init__.py", ".py"))
    return [
        str(file.relative_to(ROOT)) for file in found if name.isidentifier() and file.is_file() and file.stat().st_size
    ]


def load(name: str) -> Architecture:
    """The ARCHITECTURE of `functions/<name>` or `peers/<name>`; of the user's own module where the name has a dot: `my_package.mine`.
    Raises ConfigError naming the choices, or the file, the line and what would mend it.
    """
    if "." in name:
        return _own(name)
    module_name = name.replace("-", "_")
    if not (files := _files(module_name)):
        known = architectures()
        near = difflib.get_close_matches(module_name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"architecture: {name!r} is unknown; one of {', '.join(known)}, or package.module{hint}")
    modules = {file: _without_torch(partial(imported, file), _module(file)) for file in files}
    defined = [file for file in files if isinstance(getattr(modules[file], "ARCHITECTURE", None), Architecture)]
    if not defined:
        raise ConfigError(f"architecture: {name!r}: {files[0]} defines no ARCHITECTURE = Architecture({name!r}, ...)")
    if len(defined) > 1:
        raise ConfigError(
            f"architecture: {name!r}: {' and '.join(defined)} both define it; give one of them another name"
        )
    found: Architecture = modules[defined[0]].ARCHITECTURE
    _check(found, name, ROOT / defined[0], shown=defined[0])
    return found


def architecture_of(experiment: Experiment) -> Architecture:
    """The architecture of `experiment`, in the form that its settings ask for. Raises ConfigError as `load` does."""
    return load(experiment.architecture).asked_by(experiment)


def _own(name: str) -> Architecture:
    """Beside the experiment's file or in the current folder, as own models are."""
    top, _, rest = name.partition(".")
    if top in PACKAGES and rest in architectures():
        raise ConfigError(f"architecture: {name!r} is one of this project's; write {rest}")
    if not all(part.isidentifier() for part in name.replace("-", "_").split(".")):
        raise ConfigError(
            f"architecture: {name!r} is no name; expected one of {', '.join(architectures())}, or the module of your own that defines "
            "ARCHITECTURE, such as my_package.mine"
        )
    where = f"{name.replace('-', '_')}:ARCHITECTURE"
    found: Architecture = _without_torch(
        partial(own_code.load, where, field="architecture", kind=Architecture), where.partition(":")[0]
    )
    file = own_code.file_of(where)
    _check(found, name, file, shown=own_code.shown(file))
    if found.program is not None:
        raise ConfigError(
            f"architecture: {name!r} is a program for EC2; one outside this project is a tree of steps, run=..."
        )
    return found


def _check(architecture: Architecture, name: str, file: Path, *, shown: str) -> None:
    """Raises ConfigError naming the line of ARCHITECTURE where it says of itself what cannot be."""
    if problem := next(_problems(architecture, name.rpartition(".")[2].replace("-", "_")), None):
        lines = file.read_text("utf-8").splitlines()
        line = next((number for number, text in enumerate(lines, 1) if text.startswith("ARCHITECTURE")), 1)
        raise ConfigError(f"architecture: {name!r}: {shown}, line {line}: {problem}")


def _problems(architecture: Architecture, name: str) -> Iterator[str]:
    if architecture.name != name:
        yield f"is named {architecture.name!r}; expected {name!r}, as its file is"
    if unknown := sorted(set(architecture.claims) - CLAIMS.keys()):
        yield f"claims {unknown[0]!r}, which nothing tests; expected some of {', '.join(CLAIMS)}"
    if (architecture.run is None) == (architecture.program is None):
        yield "expected either run=, the tree of its steps, or program=, what runs on instances"
    for what, compressions in architecture.exchanges.items():
        if unknown := sorted({what}.difference(get_args(What)) | set(compressions).difference(get_args(Compressed))):
            objects, ways = (", ".join(get_args(kind)) for kind in (What, Compressed))
            yield f"exchanges {unknown[0]!r}; expected some of {objects}, each with some of {ways}"
    for named in ("tensor_hosts", "state"):
        given, choices = getattr(architecture, named), get_args(get_type_hints(Architecture)[named])
        if given not in choices:
            yield f"{named}={given!r}: expected one of {', '.join(choices)}"
    projections = Path(__file__).parent / "simulation"  # which functions do not have with them
    if (
        architecture.simulation
        and projections.is_dir()
        and not (projections / f"{architecture.simulation}.py").is_file()
    ):
        yield f"simulation={architecture.simulation!r}: crossover/simulation has no such module; leave it out where there is no projection"
    settings = architecture.settings
    if settings is None:
        return
    if not is_dataclass(settings) or any(
        f.default is MISSING and f.default_factory is MISSING for f in fields(settings)
    ):
        yield f"settings={settings.__name__}: expected a frozen dataclass of which every field has a default"
    elif (section := section_of(settings)) in {f.name for f in fields(Experiment)}:
        yield (
            f"settings={settings.__name__} would be the section {section!r}, which every experiment has; expected another name: "
            f'section: ClassVar[str] = "{section}_settings" in the class'
        )


def _without_torch(load: Callable[[], T], module: str) -> T:
    """What `load` gives; refused where importing `module` for it brings torch, since functions that do not compute have none."""
    before = "torch" in sys.modules
    found = load()
    if before or "torch" not in sys.modules:
        return found
    del sys.modules[module]
    ours = {*PACKAGES, module.split(".")[0]}
    file, line, name = _torch_comes_by(module, ours, set()) or (Path(module), 1, "torch")
    where = file.relative_to(ROOT) if file.is_relative_to(ROOT) else own_code.shown(file)
    brings = "imports torch" if name.split(".")[0] == "torch" else f"imports {name}, which imports torch,"
    raise ConfigError(
        f"architecture: {where}, line {line}: {brings} when it is imported, and functions that do not compute have none; import it inside "
        "the step that needs it"
    )


def _torch_comes_by(module: str, ours: set[str], seen: set[str]) -> tuple[Path, int, str] | None:
    """File, line and name of the import in the architecture's files (the packages `ours`) by which torch comes."""
    spec = importlib.util.find_spec(module) if module not in seen else None
    seen.add(module)
    if spec is None or not (spec.origin or "").endswith(".py"):
        return None
    file = Path(str(spec.origin))
    package = module if spec.submodule_search_locations else module.rpartition(".")[0]
    for name, line in imports.read(file.read_text("utf-8"), package=package).at_once.items():
        top = name.split(".")[0]
        if top == "torch":
            return file, line, name
        if top in {"crossover", *ours} and (deeper := _torch_comes_by(name, ours, seen)):
            return deeper if top in ours else (file, line, name)
    return None


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(file: str) -> ModuleType:
    """The module of an architecture's file, such as functions/spirt/__init__.py. Raises ConfigError naming the line on which it fails."""
    try:
        return importlib.import_module(_module(file))
    except CrossoverError:
        raise
    except Exception as error:
        inside = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<frozen")]
        path, line = inside[-1].filename, inside[-1].lineno
        if isinstance(error, SyntaxError) and error.filename:
            path, line = error.filename, error.lineno
        where = path.removeprefix(f"{ROOT}/")
        raise ConfigError(
            f"architecture: {file} cannot be imported: {where}, line {line}: {type(error).__name__}: {error}"
        ) from error

"""The description of an architecture (ARCHITECTURE), the instances that it needs, and how it is found by its name."""

import difflib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from math import inf
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeVar, get_args, get_type_hints

from crossover import runtime, user_code
from crossover.algorithms.codecs import CODECS
from crossover.errors import ConfigError, CrossoverError
from crossover.experiment import Experiment, What, section_name
from crossover.workflow import Node, Step, walk

# --- instances --------------------------------------------------------------------------------------------------------

# In GB: the stacks make them, bills price them.
DATABASE_GB = 30  # Redis hosts; gp3 gives 125 MB/s at any size, which every write reaches before it is acknowledged
PEER_GB = 20  # torch and its packages take a quarter of it
GPU_GB = 100  # the Deep Learning image asks for it


def processor(instance_type: str) -> str:
    """Return the processor architecture of an instance type by Debian's name: `arm64` for Graviton (a `g` after the generation: m7g, c7gn,
    t4g), else `amd64`.

    Images and tensor modules are built for one of them.
    """
    return "arm64" if re.match(r"[a-z]+\d+[a-z]*g[a-z]*\.", instance_type) else "amd64"


# AWS's Deep Learning image with PyTorch in the version that functions have, so that no boot fetches gigabytes. On
# Ubuntu 24.04, whose Python is 3.12: that of 22.04 is 3.10, and programs need 3.11. Source: its release notes.
GPU_IMAGE = "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.10-ubuntu-24.04/latest/ami-id"


def image_parameter(instance_type: str, *, gpu: bool) -> str:
    """Return the name of the public SSM parameter that holds the id of the newest machine image (AMI) for an instance type.

    `gpu`: whether to use the image with PyTorch instead of plain Debian.
    """
    return GPU_IMAGE if gpu else f"/aws/service/debian/release/13/latest/{processor(instance_type)}"


# Burstable types: vCPUs, and the share of each that the hourly price pays for. Source: Amazon EC2, Burstable performance instances.
_OF_T2 = {"nano": (1, 0.05), "micro": (1, 0.10), "small": (1, 0.20), "medium": (2, 0.20)}
_OF_T2 |= {"large": (2, 0.30), "xlarge": (4, 0.225), "2xlarge": (8, 0.17)}
_LATER = {"nano": (2, 0.05), "micro": (2, 0.10), "small": (2, 0.20), "medium": (2, 0.20)}
_LATER |= {"large": (2, 0.30), "xlarge": (4, 0.40), "2xlarge": (8, 0.40)}
BURSTABLE = {"t2": _OF_T2, "t3": _LATER, "t3a": _LATER, "t4g": _LATER}


def is_burstable(instance_type: str) -> bool:
    """Return whether the instance type belongs to a burstable family (T2, T3, T3a, T4g)."""
    return instance_type.split(".")[0] in BURSTABLE


def count_vcpus_above_baseline(instance_type: str, busy: float) -> float:
    """Return how many vCPUs are billed by the hour as surplus credits, on top of the instance's price, if `busy` vCPUs are always busy. 0
    for types that are not burstable.
    """
    family, _, size = instance_type.partition(".")
    vcpus, share = BURSTABLE.get(family, {}).get(size, (0, 0.0))
    return max(0.0, min(busy, vcpus) - vcpus * share)


@dataclass(frozen=True, kw_only=True)
class Instances:
    """The EC2 instances that run a program of an experiment. `purpose`: their name in a bill; `setting`: the YAML field that holds their
    type; `count`: number of instances; `busy`: vCPUs of one instance that are always busy during the run, 0 if functions compute, infinite
    for all of them; `gpu`: whether the program needs a GPU; `spot`: whether they are spot instances.
    """

    purpose: str
    setting: str
    instance_type: str
    count: int
    busy: float = 0.0
    gpu: bool = False
    spot: bool = False

    @property
    def volume_gb(self) -> int:
        """Size of one instance's disk in GB: GPU_GB with a GPU, otherwise PEER_GB."""
        return GPU_GB if self.gpu else PEER_GB


# Families with an NVIDIA GPU, by AWS's naming: g and p with a generation, but g4ad, which has AMD's. Source: Amazon EC2, Accelerated
# computing instance types.
_NVIDIA = re.compile(r"(?!g4ad\.)(g\d|gr\d|p\d)[a-z0-9-]*\.")
# GPUs that the image's open driver does not serve (before Turing, but for V100, which it refuses too), and ARM, for which it is not made.
# Source: NVIDIA, open GPU kernel modules, supported GPUs.
_UNBOOTABLE = re.compile(r"(g2|g3s?|g5g|p2|p3(dn)?)\.")


def check_gpu_type(asked: Instances) -> Iterator[str]:
    """Yield an error message if the instances should have a GPU, but their type has none, or one that the image's driver does not support.
    Otherwise the program would compute on the CPU without a message.
    """
    if asked.gpu and not _NVIDIA.match(asked.instance_type):
        yield (
            f"{asked.setting}: {asked.instance_type} has no NVIDIA GPU; expected a type of a family that has, "
            "for example g4dn.xlarge, g5.xlarge or g6.xlarge"
        )
    elif asked.gpu and _UNBOOTABLE.match(asked.instance_type):
        yield (
            f"{asked.setting}: {asked.instance_type} cannot boot the image with PyTorch, whose driver serves x86 instances with GPUs from "
            "Turing on; expected for example g4dn.xlarge, g5.xlarge or g6.xlarge"
        )


def count_busy_vcpus(threads: int | str) -> float:
    """Return the number of vCPUs that a program keeps busy if it computes gradients itself. `threads`: the field `training.threads`; "auto"
    gives infinity, which means all of the instance's.
    """
    return float(threads) if isinstance(threads, int) else inf


# --- declaration ------------------------------------------------------------------------------------------------------
# The description of an architecture: the tree of its run, its settings, its checks of an experiment, its claims.


@dataclass(frozen=True)
class Program:
    """A program that runs on EC2, one process per worker. `main`: function that serves the worker; an instance calls it without arguments,
    and it reads the environment; a run inside one process calls it in a thread with a Resources and a ServingSettings.

    `instances`: returns the instances that an experiment needs. `step`: step name of its records, one per worker and epoch. `uses_bus`:
    whether its members exchange messages through the bus.
    """

    main: Callable[..., None]
    instances: Callable[[Experiment], Instances]
    step: str = "train_peer"
    uses_bus: bool = False

    @property
    def module(self) -> str:
        """Name of the module that defines `main`."""
        return self.main.__module__


CLAIMS = {
    "equals_reference": "trains the bits that one process trains with the same data",
    "same_calls": "makes the same calls in every run, inline, local and on AWS",
    "survives_kills": "a step may be repeated, come late or end at any call, and the model is the same",
    "resumes": "a failed run resumes from its checkpoints or databases",
    "stops": "a run ends when it is told to, or at its budget, with the epoch that it has begun",
    "adds_what_others_average": "with a threshold of 0, and no worker removed, trains the reference's updates up to rounding",
}


# Every codec, of gradients and of what models have moved by. A model is not compressed: what is left out of it would be no small change.
EXCHANGES: Mapping[str, Collection[str]] = {"gradients": CODECS, "model": ("none",), "delta": CODECS}


@dataclass(frozen=True)
class Architecture:
    """One of the compared architectures: either `run`, the tree of steps of a run, or `program`, what runs on instances; and `machines`,
    further trees that steps or programs start by name.

    `tensor_hosts`: database hosts for vectors: one per worker, one shared, or none. `state`: where a failed run finds the state to resume
    from. `sync_every`: value of `exchange.every` if the YAML gives none. `simulation`: module of crossover/simulation/mirror that simulates
    its steps, "" for the one with its own name. `settings`: a frozen dataclass, the section of the YAML that is named after its module; two
    architectures may share one. `exchanges`: by `exchange.what`, the compressions that it supports; `why_not`: the reason why the others
    are missing. `checks`: yields one problem for each setting of an experiment that it does not support. `claims`: the CLAIMS that it
    promises; tests verify them. `alone`: whether it has a single worker. `form`: returns the architecture for an experiment, if tree or
    program depend on its settings.
    """

    name: str
    run: Node | None = None
    machines: Mapping[str, Node] = field(default_factory=dict)
    program: Program | None = None
    tensor_hosts: Literal["per_worker", "shared", "none"] = "none"
    state: Literal["checkpoints", "database"] = "checkpoints"  # where a failed run finds the state to resume from
    sync_every: int | Literal["epoch"] = 1  # `exchange.every`, if the YAML gives none
    simulation: str = ""  # module of crossover/simulation/mirror that simulates its steps, if it has another name
    exchanges: Mapping[str, Collection[str]] = field(default_factory=lambda: {"gradients": ("none",)})
    why_not: str = ""
    settings: type | None = None
    checks: Callable[[Experiment], Iterable[str]] = lambda experiment: ()
    claims: Collection[str] = ()
    alone: bool = False
    form: "Callable[[Experiment], Architecture] | None" = None

    def resolve_form(self, experiment: Experiment) -> "Architecture":
        """Return the architecture in the form for this experiment: `form(experiment)`, or itself if it has only one form."""
        return self if self.form is None else self.form(experiment)

    def resolve(self, experiment: Experiment) -> Experiment:
        """Return the experiment with the architecture's defaults for what the YAML left out: its own section of settings, and
        `exchange.every`. A value that the YAML gives is kept. Raises TypeError if the section has an unknown field.
        """
        if self.settings is not None:
            experiment = experiment.with_settings(experiment.settings(self.settings))
        exchange = experiment.exchange
        if exchange.every is not None:
            return experiment
        return replace(experiment, exchange=replace(exchange, every=self.sync_every))


def trees(architecture: Architecture) -> list[Node]:
    """Return the roots of all trees of an architecture: that of the run, if it has one, and those of its machines."""
    return [*([architecture.run] if architecture.run else []), *architecture.machines.values()]


def steps(architecture: Architecture) -> list[Step]:
    """Return the distinct steps of all trees of an architecture, in the order in which they are written."""
    found = [node for root in trees(architecture) for node in walk(root) if isinstance(node, Step)]
    return list(dict.fromkeys(found))


# --- torch imports ----------------------------------------------------------------------------------------------------
# Finding the import by which an architecture imports torch: functions that do not compute have no torch.

T = TypeVar("T")


def load_without_torch(load: Callable[[], T], module: str, *, root: Path, packages: Collection[str]) -> T:
    """Call `load`, which imports `module`, and return its result. Raises ConfigError if this imports torch, because functions that do not
    compute have no torch; the message names file and line. Not checked if this process has imported torch before. Errors of `load` are
    raised as they are.

    `packages`: names of the packages that hold architectures; `root`: folder to which paths in the message are relative.
    """
    before = "torch" in sys.modules
    found = load()
    if before or "torch" not in sys.modules:
        return found
    del sys.modules[module]
    ours = {*packages, module.split(".")[0]}
    file, line, name = _find_torch_import(module, ours, set()) or (Path(module), 1, "torch")
    where = file.relative_to(root) if file.is_relative_to(root) else user_code.display_path(file)
    brings = "imports torch" if name.split(".")[0] == "torch" else f"imports {name}, which imports torch,"
    raise ConfigError(
        f"architecture: {where}, line {line}: {brings} when it is imported, and functions that do not compute have none; import it inside "
        "the step that needs it"
    )


def _find_torch_import(module: str, ours: set[str], seen: set[str]) -> tuple[Path, int, str] | None:
    """Return (file, line, imported name) of the import statement through which importing `module` imports torch, or None if there is none.

    It is the statement that names torch, but one that imports a module of `crossover` if torch is reached through that module. `ours`:
    packages whose files are searched in addition to `crossover`; `seen`: modules searched already, extended by this call.
    """
    spec = importlib.util.find_spec(module) if module not in seen else None
    seen.add(module)
    if spec is None or not (spec.origin or "").endswith(".py"):
        return None
    file = Path(str(spec.origin))
    package = module if spec.submodule_search_locations else module.rpartition(".")[0]
    for name, line in user_code.read_imports(file.read_text("utf-8"), package=package).at_once.items():
        top = name.split(".")[0]
        if top == "torch":
            return file, line, name
        if top in {"crossover", *ours} and (deeper := _find_torch_import(name, ours, seen)):
            return deeper if top in ours else (file, line, name)
    return None


# --- loading ----------------------------------------------------------------------------------------------------------
# Finding an architecture by its name, in functions/, peers/ or a package of the user, and checking its description.

ROOT = Path(__file__).parents[2]
PACKAGES = ("functions", "peers")
DEFINED = re.compile(r"^ARCHITECTURE\b", re.MULTILINE)


def architectures() -> list[str]:
    """Return the names of all architectures of this project, sorted: the modules of functions/ and peers/ that define an ARCHITECTURE."""
    names = {path.stem for package in PACKAGES for path in (ROOT / package).iterdir()}
    return sorted(
        name
        for name in names
        if any(_defines_architecture(ROOT / file, (ROOT / file).stat().st_mtime_ns) for file in _find_files(name))
    )


@cache
def _defines_architecture(file: Path, changed_ns: int) -> bool:
    """Return whether the source `file` defines an ARCHITECTURE. `changed_ns`: its time of modification, after which it is read again."""
    return DEFINED.search(file.read_text("utf-8", "replace")) is not None


def find_settings_classes(
    name: object, problem_of: Callable[[type], str | None] = lambda settings: None
) -> dict[str, type]:
    """Return the settings class of every architecture that has one, by the name of its section in a YAML. Classes that cannot be read from
    YAML are left out.

    `name`: the architecture that the YAML names, with dashes or underscores, or a user's module with a dot; a value that is no text names
    none. Raises ConfigError if that one is faulty, if its class cannot be read from YAML, or if another architecture has a different class
    for its section. Other faulty architectures are skipped. `problem_of`: returns why a class cannot be read from YAML, or None.
    """
    found: dict[str, type] = {}
    whose: dict[str, str] = {}
    asked = name.replace("-", "_") if isinstance(name, str) else ""
    for each in dict.fromkeys([*architectures(), *([asked] if "." in asked or _find_files(asked) else [])]):
        try:
            settings = load(each).settings
        except ConfigError:
            if each == asked:
                raise
            continue
        if settings is None:
            continue
        section = section_name(settings)
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


def _find_files(name: str) -> list[str]:
    """Return the paths, relative to the project, of the files in functions/ and peers/ that may define the architecture `name`: `<name>.py`
    or `<name>/__init__.py`. Empty files are left out. A list that is not empty is kept and returned by later calls, so it must not be
    changed.
    """
    known = runtime.get_or_make("files of architectures", dict[tuple[Path, str], list[str]])
    if (ROOT, name) in known:  # a projection asks thousands of times
        return known[ROOT, name]
    paths = (ROOT / package / f"{name}{end}" for package in PACKAGES for end in ("/__init__.py", ".py"))
    found = [
        str(file.relative_to(ROOT)) for file in paths if name.isidentifier() and file.is_file() and file.stat().st_size
    ]
    return known.setdefault((ROOT, name), found) if found else found


def load(name: str) -> Architecture:
    """Return the architecture called `name`: ARCHITECTURE of `functions/<name>` or `peers/<name>`, or of a user's module if the name has a
    dot, as in `my_package.mine`.

    The module is imported once per process: later calls return the same object. Raises ConfigError if there is none, with the choices, if
    two files define it, or if it is faulty or imports torch, with file and line. A CrossoverError that importing it raises is raised as it
    is.
    """
    if "." in name:
        return _load_user_architecture(name)
    module_name = name.replace("-", "_")
    if not (files := _find_files(module_name)):
        known = architectures()
        near = difflib.get_close_matches(module_name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"architecture: {name!r} is unknown; one of {', '.join(known)}, or package.module{hint}")
    modules = {
        file: load_without_torch(partial(import_file, file), _module_name(file), root=ROOT, packages=PACKAGES)
        for file in files
    }
    defined = [file for file in files if isinstance(getattr(modules[file], "ARCHITECTURE", None), Architecture)]
    if not defined:
        raise ConfigError(f"architecture: {name!r}: {files[0]} defines no ARCHITECTURE = Architecture({name!r}, ...)")
    if len(defined) > 1:
        raise ConfigError(
            f"architecture: {name!r}: {' and '.join(defined)} both define it; give one of them another name"
        )
    found: Architecture = modules[defined[0]].ARCHITECTURE
    checked = runtime.get_or_make("architectures that were checked", dict[str, Architecture])
    if checked.get(name) is not found:  # a projection asks thousands of times
        _check_description(found, name, ROOT / defined[0], shown=defined[0])
        checked[name] = found
    return found


def architecture_of(experiment: Experiment) -> Architecture:
    """Return the architecture that `experiment` names, in the form that its settings need. Raises ConfigError if there is none, or if it is
    faulty.
    """
    return load(experiment.architecture).resolve_form(experiment)


def _load_user_architecture(name: str) -> Architecture:
    """Return ARCHITECTURE of the user's module `name`, which is searched for beside the experiment's file and in the current folder.

    Raises ConfigError if the name belongs to this project or is no module name, if the description is faulty or is that of a program, or if
    importing the module imports torch.
    """
    top, _, rest = name.partition(".")
    if top in PACKAGES and rest in architectures():
        raise ConfigError(f"architecture: {name!r} is one of this project's; write {rest}")
    if not all(part.isidentifier() for part in name.replace("-", "_").split(".")):
        raise ConfigError(
            f"architecture: {name!r} is no name; expected one of {', '.join(architectures())}, or the module of your own that defines "
            "ARCHITECTURE, such as my_package.mine"
        )
    where = f"{name.replace('-', '_')}:ARCHITECTURE"
    found: Architecture = load_without_torch(
        partial(user_code.load, where, field="architecture", kind=Architecture),
        where.partition(":")[0],
        root=ROOT,
        packages=PACKAGES,
    )
    file = user_code.find_file(where)
    _check_description(found, name, file, shown=user_code.display_path(file))
    if found.program is not None:
        raise ConfigError(
            f"architecture: {name!r} is a program for EC2; one outside this project is a tree of steps, run=..."
        )
    return found


def _check_description(architecture: Architecture, name: str, file: Path, *, shown: str) -> None:
    """Raise ConfigError if the architecture's description contradicts itself or its file. The message names the line of ARCHITECTURE in
    `file`. `name`: as the experiment writes it; `shown`: the file's name in the message.
    """
    if problem := next(_list_problems(architecture, name.rpartition(".")[2].replace("-", "_")), None):
        lines = file.read_text("utf-8").splitlines()
        line = next((number for number, text in enumerate(lines, 1) if text.startswith("ARCHITECTURE")), 1)
        raise ConfigError(f"architecture: {name!r}: {shown}, line {line}: {problem}")


def _list_problems(architecture: Architecture, name: str) -> Iterator[str]:
    """Yield an error message for each fault in an architecture's description. `name`: the name that it should have, by its file."""
    if architecture.name != name:
        yield f"is named {architecture.name!r}; expected {name!r}, as its file is"
    if unknown := sorted(set(architecture.claims) - CLAIMS.keys()):
        yield f"claims {unknown[0]!r}, which nothing tests; expected some of {', '.join(CLAIMS)}"
    if (architecture.run is None) == (architecture.program is None):
        yield "expected either run=, the tree of its steps, or program=, what runs on instances"
    for what, compressions in architecture.exchanges.items():
        if unknown := sorted({what}.difference(get_args(What)) | set(compressions).difference(CODECS)):
            objects, ways = ", ".join(get_args(What)), ", ".join(CODECS)
            yield f"exchanges {unknown[0]!r}; expected some of {objects}, each with some of {ways}"
    for named in ("tensor_hosts", "state"):
        given, choices = getattr(architecture, named), get_args(get_type_hints(Architecture)[named])
        if given not in choices:
            yield f"{named}={given!r}: expected one of {', '.join(choices)}"
    projections = Path(__file__).parents[1] / "simulation" / "mirror"  # which functions do not have with them
    if (
        architecture.simulation
        and projections.is_dir()
        and not (projections / f"{architecture.simulation}.py").is_file()
    ):
        yield f"simulation={architecture.simulation!r}: crossover/simulation/mirror has no such module; leave it out to do without"
    settings = architecture.settings
    if settings is None:
        return
    if not is_dataclass(settings) or any(
        f.default is MISSING and f.default_factory is MISSING for f in fields(settings)
    ):
        yield f"settings={settings.__name__}: expected a frozen dataclass of which every field has a default"
    elif (section := section_name(settings)) in {f.name for f in fields(Experiment)}:
        yield (
            f"settings={settings.__name__} would be the section {section!r}, which every experiment has; expected another name: "
            f'section: ClassVar[str] = "{section}_settings" in the class'
        )


def _module_name(file: str) -> str:
    """Return the dotted module name for `file`, the path of a Python file relative to the project."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def import_file(file: str) -> ModuleType:
    """Import and return the module in `file`, a path relative to the project such as functions/spirt/__init__.py. If the import fails,
    raises ConfigError that names the line, or the CrossoverError that the module raised.
    """
    try:
        return importlib.import_module(_module_name(file))
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

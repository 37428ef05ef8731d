"""Modules of the user's own, which an experiment names: a model's factory or a data set's loader as `package.module:name`, an architecture
as `package.module`.

They lie beside the experiment's file or in the current directory, and no edit of this project is needed for them. Here they are found,
watched while they are imported, and packed for functions and programs; `learning/` calls them.
"""

import ast
import difflib
import importlib
import importlib.machinery
import inspect
import os
import re
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

from crossover import runtime
from crossover.errors import ConfigError, CrossoverError, OwnCodeError

# --- packages ---------------------------------------------------------------------------------------------------------

FIRST_PARTY = ("crossover", "functions", "peers")  # what functions and programs may hold
PROJECT = frozenset({*FIRST_PARTY, "cdk", "stacks", "layer", "app"})
RUNTIME = frozenset({"boto3", "botocore", "awslambdaric"})  # Lambda's python3.13 brings them
DATAPLANE = frozenset({"pika", "safetensors", "annotated_types", "tenacity"})
TORCH = frozenset({"torch"})
COMPUTING = (
    RUNTIME | DATAPLANE | TORCH | {"typing_extensions"}
)  # what a function that computes can import, and a program


# --- places -----------------------------------------------------------------------------------------------------------
# Where the user's own modules lie: beside the experiment's file, then in the current folder; in a function, at its root.
#
# Only the modules that own code reaches are taken from there, so no other file of those folders can stand before a package that this
# project itself imports.

_TAKEN = {
    "a package of this project": PROJECT,
    "a package that every function has": RUNTIME | DATAPLANE | TORCH,
    "a module of Python's standard library": frozenset(sys.stdlib_module_names),
}


lock = threading.RLock()
_folders: tuple[Path, ...] = ()
tops: set[str] = set()  # top-level names that are looked for in the folders


def look_in(*where: str | Path) -> None:
    """Set the folders searched for user code, in order. If they change, modules loaded from the earlier folders are unloaded."""
    global _folders
    chosen = tuple(dict.fromkeys(Path(each).resolve() for each in where))
    with lock:
        if chosen == _folders:
            return
        for name in [each for each in sys.modules if each.split(".")[0] in tops]:
            del sys.modules[name]
        _folders = chosen
        tops.clear()
        importlib.invalidate_caches()


def folders() -> tuple[Path, ...]:
    """Where own modules are looked for: in a function or on an instance, which are told none, where their code lies."""
    return _folders or (Path(os.environ.get("LAMBDA_TASK_ROOT") or os.getcwd()),)


def has_folders() -> bool:
    """Whether this process was told where an experiment's own modules lie: a function or program is not."""
    return bool(_folders)


def locate(module: str) -> list[Path]:
    """Return the files of a user module, one per folder that has it, in the order of the folders; a folder without __init__.py is returned
    itself. Empty if no folder has the module.
    """
    base = Path(*module.split("."))
    found: list[Path] = []
    for folder in folders():
        for path in (folder / base / "__init__.py", (folder / base).with_suffix(".py")):
            if path.is_file():
                found.append(path)
                break
        else:
            if (folder / base).is_dir() and any((folder / base).glob("**/*.py")):
                found.append(folder / base)
    return sorted(found, key=Path.is_dir)  # a module stands before a mere folder, as in Python's own search


def is_own(file: str | Path) -> bool:
    """Whether the file is one of the user's own."""
    relative = _relative(file)
    if relative is None or {"site-packages", "dist-packages"} & set(relative.parts):
        return False
    top = relative.parts[0].removesuffix(".py")
    return top in tops if _folders else top not in PROJECT


def owns(module: str) -> bool:
    """Whether it is the user's own, in a process that was told of an experiment, or in a function."""
    top = module.split(".")[0]
    return top in tops if _folders else "LAMBDA_TASK_ROOT" in os.environ and top not in PROJECT


def shown(file: str | Path) -> str:
    """Return the file's path for messages: from the current folder where it lies below it, else from the folder in which it was found."""
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return str(_relative(path) or path.name)


def _relative(file: str | Path) -> Path | None:
    path = Path(file)
    return next((path.relative_to(each) for each in folders() if path.is_relative_to(each)), None)


def taken(top: str) -> str | None:
    """Whose name it is, where it cannot be an own module's."""
    return next((whose for whose, names in _TAKEN.items() if top in names), None)


# --- imports ----------------------------------------------------------------------------------------------------------
# What a Python file imports, read from its text: nothing is executed.


@dataclass(frozen=True)
class Imports:
    """Module names and the line that imports each first. Of `from a import b`, `a.b` is named too: b may be a module.

    At once: when the module itself is imported. Deferred: inside functions, or where their absence is provided for.
    """

    at_once: dict[str, int] = field(default_factory=dict)
    deferred: dict[str, int] = field(default_factory=dict)


def read_imports(text: str, *, package: str) -> Imports:
    """Collect the imports of a module of `package`, parents of each name included. Raises SyntaxError."""
    found = Imports()
    _collect(ast.parse(text).body, package, found)
    for name in found.at_once.keys() & found.deferred.keys():
        del found.deferred[name]
    return found


def _collect(body: list[ast.stmt], package: str, found: Imports) -> None:
    """Module-level statements, into branches and classes; what stands in functions is deferred; TYPE_CHECKING never runs."""
    for statement in body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                _add(found.at_once, statement, package)
            case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
                _collect(statement.orelse, package, found)
            case ast.Try(handlers=handlers) if any("Import" in ast.unparse(h.type) for h in handlers if h.type):
                _add_all(found.deferred, statement, package)  # optional
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                _add_all(found.deferred, statement, package)
            case _:
                inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
                _collect(inner, package, found)


def _add_all(names: dict[str, int], statement: ast.stmt, package: str) -> None:
    for node in ast.walk(statement):
        _add(names, node, package)


def _add(names: dict[str, int], node: ast.AST, package: str) -> None:
    for name in _names(node, package):
        names.setdefault(name, getattr(node, "lineno", 0))


def _names(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the modules that an import statement may name, and their parents."""
    if isinstance(node, ast.Import):
        found = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")
        base = ".".join([*parents[: len(parents) - node.level + 1], *([node.module] if node.module else [])])
        base = base if node.level else str(node.module)
        found = [base, *(f"{base}.{alias.name}" for alias in node.names)]
    else:
        return
    for name in found:
        parts = name.split(".")
        yield from (".".join(parts[: i + 1]) for i in range(len(parts)))


# --- faults -----------------------------------------------------------------------------------------------------------
# Failures of the user's own code, told as such: field, name, their file and line, what it said.

_HOME = Path(__file__).parents[1]  # of this project's packages


def failure(field: str, name: str, error: BaseException, *, what: Any = None) -> OwnCodeError:
    """Build the error that reports `error`, raised by the user code behind `name`. If no line of user code is in the traceback, as in the
    backward pass of a module built of torch's layers, the place is where `what` is defined.
    """
    place = of_traceback(error.__traceback__) or of_definition(what)
    said = " ".join(str(error).split()) or "no message"
    problem = f"{type(error).__name__}: {said}"
    if inside := _of_project(error.__traceback__):
        return OwnCodeError(
            f"{field}: {name!r}: {inside}, called by your code{f', {place}' if place else ''}: {problem}"
        )
    return user_code_error(field, name, problem, place=place)


def user_code_error(field: str, name: str, problem: str, *, place: str | None) -> OwnCodeError:
    """`training.model: 'mytask:factory': your code, mytask.py, line 3: ValueError: ...`."""
    return OwnCodeError(f"{field}: {name!r}: your code{f', {place}' if place else ''}: {problem}")


def report_note(words: str, *, place: str | None) -> None:
    """Print what is worth reading of the user's own code though nothing is wrong, once in a process."""
    line = f"note: your code{f', {place}' if place else ''}: {words}"
    said = runtime.kept("notes on own code", set[str])
    if line not in said:
        said.add(line)
        print(line, file=sys.stderr, flush=True)


def of_traceback(trace: TracebackType | None) -> str | None:
    """Return the innermost line of user code in a traceback, or None: `mytask.py, line 3, in forward`."""
    found = None
    while trace is not None:
        found = _of_frame(trace.tb_frame, trace.tb_lineno) or found
        trace = trace.tb_next
    return found


def _of_project(trace: TracebackType | None) -> str | None:
    """Return the line of this project that user code called and that failed, perhaps inside other packages' functions:
    `crossover/training/gradients.py, line 3`. None if the traceback goes back into user code after it.
    """
    found, theirs = None, False
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if is_own(str(file)):
            found, theirs = None, True
        elif theirs and file.is_relative_to(_HOME):
            found = f"{file.relative_to(_HOME)}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return found


def of_caller() -> str | None:
    """Return the innermost line of user code on the call stack, perhaps behind other packages' functions; None if another package's module
    is being imported.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if found := _of_frame(frame, frame.f_lineno):
            return found
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return None  # of another package's module, which the user's merely imports
        frame = frame.f_back
    return None


def of_definition(what: Any) -> str | None:
    """Where a function or class is defined: `mytask.py, line 3`."""
    what = inspect.unwrap(what) if callable(what) else what
    code = getattr(what, "__code__", None) or getattr(getattr(what, "__init__", None), "__code__", None)
    return place_in_file(code.co_filename, code.co_firstlineno) if code and is_own(code.co_filename) else None


def place_in_file(file: str | Path, line: int | None) -> str:
    """`mytask.py, line 3`."""
    return f"{shown(file)}, line {line}" if line else shown(file)


def _of_frame(frame: FrameType, line: int) -> str | None:
    code = frame.f_code
    if not is_own(code.co_filename):
        return None
    inside = f", in {code.co_name}" if code.co_name.isidentifier() else ""
    return place_in_file(code.co_filename, line) + inside


# --- watching ---------------------------------------------------------------------------------------------------------
# What files own modules read while they are imported, or while the model is built: functions hold the Python files alone, and a run that
# is resumed would not notice that another one had changed.
#
# Python tells audit hooks of every opened file. A hook stays for the life of its process, so one is added, when it is first wanted, and it
# looks away at all other times.

_own = threading.local()


@contextmanager
def building(field: str, name: str) -> Iterator[None]:
    """Raise OwnCodeError for a file that user code reads in the `with` block, in this thread, even if it catches the error."""
    if not has_folders():  # a function or program: whoever started the run has watched
        yield
        return
    with lock:  # two threads at once would add two
        _install()
    outer: _Watch | None = getattr(_own, "watch", None)
    watch = _own.watch = _Watch(field, name)
    try:
        yield
    finally:
        _own.watch = outer
    if watch.found is not None:
        raise watch.found


class _Watch:
    def __init__(self, field: str, name: str) -> None:
        self.field, self.name = field, name
        self.found: OwnCodeError | None = None

    def opened(self, path: Any, flags: Any) -> None:
        if (file := _data_file(path, flags)) and (place := of_caller()):
            self.found = self.found or user_code_error(
                self.field,
                self.name,
                f"reads {shown(file)} when it is imported or called, which functions have not: they hold your Python files alone; "
                "write it as a constant of a module, or read it in the loader of data.dataset, which runs on this machine",
                place=place,
            )
            raise self.found


@cache
def _install() -> None:
    sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    watch: _Watch | None = getattr(_own, "watch", None)
    if watch is None or event != "open":
        return
    _own.watch = None  # what looking itself opens is nobody's deed
    try:
        watch.opened(arguments[0], arguments[2])
    finally:
        _own.watch = watch


def _data_file(path: Any, flags: Any) -> Path | None:
    """Return the resolved path if it is a data file of the user; None for code, the system's or Python's own files, and files opened for
    writing.
    """
    if not isinstance(path, str | bytes | os.PathLike) or (
        isinstance(flags, int) and flags & (os.O_WRONLY | os.O_CREAT)
    ):
        return None
    found = Path(os.fsdecode(path)).resolve()
    if found.suffix in (".py", ".pyc", ".so") or not found.is_file():
        return None
    elsewhere = ("/proc", "/sys", "/dev", "/etc", "/usr", sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"))
    return None if any(found.is_relative_to(each) for each in elsewhere) else found


# --- bordering --------------------------------------------------------------------------------------------------------
# The border around the user's own code, wherever it runs: while it is imported, builds a network, computes, or is a step.
#
# What it prints goes to standard error. What it changes of the process is put back behind it: the current folder, `sys.stdout`, warning
# filters, and torch's default dtype and device, grad mode and number of threads. `torch.compile` gives back what it was given: functions
# have no compiler, and every process must compute the same bits.
#
# Several threads may be within it at once. What belongs to the process is remembered when the first of them enters, and put back whenever
# another enters or one leaves.

_lock = threading.RLock()
_is_own = threading.local()  # `depth`: how often this thread is within


@contextmanager
def border() -> Iterator[None]:
    """Run the user's code in its body; nothing that it changes of the process stays."""
    torch = _torch()
    mine = _of_thread(torch) if torch else None
    with _lock:
        _outside.enter(torch)
    _is_own.depth = getattr(_is_own, "depth", 0) + 1
    try:
        yield
    finally:
        _is_own.depth -= 1
        with _lock:
            _outside.leave()
        if (torch := _torch()) is not None:
            _put_back(torch, mine)


@contextmanager
def blame(field: str, name: str, *, what: Any = None) -> Iterator[None]:
    """Call `what`, which `field` names `name`, behind the border; what it raises becomes an OwnCodeError with file and line.

    Around names of our own too, which need no border and whose failures pass as they are. So do our own errors, and memory that ran out.
    """
    try:
        with border() if ":" in name else nullcontext():
            yield
    except (CrossoverError, MemoryError):
        raise
    except Exception as error:
        if ":" not in name or "can't allocate memory" in str(error):
            raise
        raise failure(field, name, error, what=what) from error


def _torch() -> Any:
    """Return torch if it has been imported whole, else None: architectures do without."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "compile") else None


def _of_thread(torch: Any) -> tuple[bool, int, Any]:
    return torch.is_grad_enabled(), torch.get_num_threads(), _default_device(torch)


def _default_device(torch: Any) -> Any:
    """Return the context that torch.set_default_device has entered, or None; asking torch for the device takes 20 microseconds."""
    return getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)


def _put_back(torch: Any, before: tuple[bool, int, Any] | None) -> None:
    """Restore this thread's settings; `before`: None if torch has come within, which begins with its defaults."""
    grad, threads, device = before or (True, torch.get_num_threads(), None)
    if torch.is_grad_enabled() != grad:
        torch.set_grad_enabled(grad)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if device is None and _default_device(torch) is not None:
        torch.set_default_device(None)


class _Outside:
    """The settings of the process as they are outside the border."""

    def __init__(self) -> None:
        self.within = 0

    def enter(self, torch: Any) -> None:
        self.within += 1
        if self.within > 1:
            self._put_back()
            return
        self.folder = _folder()
        self.stdout, sys.stdout = sys.stdout, _Diverted(sys.stdout)
        self.diverted = sys.stdout
        self.filters, self.shown = list(warnings.filters), warnings.showwarning
        self.dtype: Any = torch.get_default_dtype() if torch else None
        self.compile: Any = torch.compile if torch else None
        if torch:
            torch.compile = _left_out

    def leave(self) -> None:
        self.within -= 1
        self._put_back()

    def _put_back(self) -> None:
        if self.folder and _folder() != self.folder:
            with suppress(OSError):  # it was removed meanwhile
                os.chdir(self.folder)
        sys.stdout = self.diverted if self.within else self.stdout
        if warnings.filters != self.filters:
            warnings.resetwarnings()
            warnings.filters.extend(self.filters)  # type: ignore[attr-defined]  # a list
        warnings.showwarning = self.shown
        if (torch := _torch()) is None:
            return
        if torch.get_default_dtype() != (self.dtype or torch.float32):
            torch.set_default_dtype(self.dtype or torch.float32)
        if self.compile is not None:
            torch.compile = _left_out if self.within else self.compile


_outside = _Outside()


class _Diverted:
    """Standard output: that of threads within the border is standard error."""

    def __init__(self, outside: Any) -> None:
        self._outside = outside.outside() if isinstance(outside, _Diverted) else outside

    def outside(self) -> Any:
        """Return what standard output is for everybody else."""
        return self._outside

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if getattr(_is_own, "depth", 0) else self._outside, name)


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _left_out(model: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Stand in for torch.compile: return `model` as it is."""
    words = "torch.compile is left out: functions have no compiler, and the saved names are those of the plain module"
    report_note(words, place=of_caller())
    return (lambda model: model) if model is None else model


# --- dependencies -----------------------------------------------------------------------------------------------------
# What own code consists of: the files that its modules import of one another, and the packages that they want beside them.


@dataclass(frozen=True)
class Wanted:
    """An import of own code that is not the user's own. `at_once`: importing the module needs it; else a function that may never run."""

    module: str
    file: Path
    line: int
    at_once: bool


@dataclass
class Reach:
    """`files` by their place in a bundle, which is that below their folder; `other`: folders' files of the same
    name that were not taken.
    """

    files: dict[Path, Path] = field(default_factory=dict)
    wanted: list[Wanted] = field(default_factory=list)
    passed_over: dict[Path, Path] = field(default_factory=dict)

    @property
    def first_party(self) -> set[str]:
        """Modules of this project that own code imports, and perhaps names that those define."""
        return {each.module for each in self.wanted if each.module.split(".")[0] in FIRST_PARTY}

    @property
    def tops(self) -> set[str]:
        return {path.parts[0].removesuffix(".py") for path in self.files}


def reach(*names: str, field: str = "training.model") -> Reach:
    """Of `package.module:name`s. A module that is not there is left out. Raises OwnCodeError for a file that is
    no Python, naming the line.
    """
    found, todo, seen = Reach(), [name.partition(":")[0] for name in names], set[str]()
    while todo:
        module = todo.pop()
        parts = module.split(".")
        for depth in range(1, len(parts) + 1):  # a parent package is imported first
            name = ".".join(parts[:depth])
            if name in seen or not (files := _files_of(name)):
                continue
            seen.add(name)
            todo += _follow(found, name, files, field=field, named=names[0])
    return found


def _files_of(module: str) -> list[Path]:
    """Its files, unless the name belongs to Python or to this project, or means an installed package beside which a mere folder lies."""
    top = module.split(".")[0]
    if taken(top):
        return []
    found = locate(module)
    return [] if found and found[0].is_dir() and "." not in module and _is_installed(top) else found


def _is_installed(top: str) -> bool:
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(top, [each for each in sys.path if each and Path(each).resolve() not in folders()])
    return spec is not None and spec.origin is not None


def _follow(found: Reach, module: str, files: list[Path], *, field: str, named: str) -> Iterator[str]:
    """Take the module's file; the own modules that it imports."""
    path = files[0]
    if path.is_dir():
        return iter(())
    base = next(each for each in folders() if path.is_relative_to(each))
    found.files[path.relative_to(base)] = path
    if len(files) > 1 and files[1].is_file():
        found.passed_over[path] = files[1]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    try:
        read = read_imports(path.read_text(encoding="utf-8"), package=package)
    except (SyntaxError, UnicodeDecodeError) as error:
        place = place_in_file(path, getattr(error, "lineno", None))
        said = error.msg if isinstance(error, SyntaxError) else "is no text in UTF-8"
        raise user_code_error(field, named, said, place=place) from error
    own = []
    for name, line, at_once in (
        *((name, line, True) for name, line in read.at_once.items()),
        *((name, line, False) for name, line in read.deferred.items()),
    ):
        if _files_of(name):
            own.append(name)
        elif not _files_of(name.split(".")[0]):  # else an attribute of an own module
            found.wanted.append(Wanted(name, path, line, at_once))
    return iter(own)


# --- finding ----------------------------------------------------------------------------------------------------------
# A function or class of the user's own, by its name: imported from where own modules lie, or refused with file and line.

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def load(name: str, *, field: str, kind: Any = Callable) -> Any:
    """Import and return the function, class or other object of `kind` that is called `name` (`package.module:name`) in the field `field`.

    Raises OwnCodeError with field, file and line: it is not there, cannot be imported, is not callable.
    """
    if kind is Callable:
        with suppress(ImportError):
            import torch  # noqa: F401  # what names a function brings it; within the border nobody knew its settings from before
    with lock, border():
        return _load(name, field, kind)


def file_of(name: str) -> Path:
    """Return the file of a `package.module:name` that was loaded."""
    return Path(str(sys.modules[name.partition(":")[0]].__file__))


def _load(name: str, field: str, kind: Any) -> Any:
    check_name(name, field)
    module_name, _, attribute = name.partition(":")
    _make_findable(name, field)
    try:
        module = importlib.import_module(module_name)
    except CrossoverError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a module that ends the program is no module
        raise _not_imported(name, field, error) from error
    if not hasattr(module, attribute):
        defined = [each for each in vars(module) if not each.startswith("_")]
        near = difflib.get_close_matches(attribute, defined, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise user_code_error(field, name, f"defines no {attribute!r}{hint}", place=_file(module))
    found = getattr(module, attribute)
    if not isinstance(found, kind):
        expected = "a function" if kind is Callable else kind.__name__
        problem = f"{attribute} is of type {type(found).__name__}; {expected} is expected"
        raise user_code_error(field, name, problem, place=_file(module))
    return found


def is_name(text: str) -> bool:
    """Return whether `text` has the form of `package.module:name`."""
    return bool(_NAME.fullmatch(text))


def check_name(name: str, field: str) -> None:
    """Check a `package.module:name`. Raises ConfigError if it is malformed, or if its first part is a name that is already taken."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{field}: {name!r} is no package.module:name, such as mytask:factory for a function in mytask.py"
        )
    top = name.partition(":")[0].split(".")[0]
    if whose := taken(top):
        raise ConfigError(f"{field}: {name!r}: {top} is the name of {whose}; give your module another one")


def _make_findable(name: str, field: str) -> None:
    """On a function the modules lie on the path already, and nothing else is there to be told apart from them."""
    if not has_folders() or name.partition(":")[0].split(".")[0] in tops:
        return
    tops.update(reach(name, field=field).tops)
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """For Python's import: the modules that own code reaches, in the folders where they are looked for."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if path is not None or name not in tops:
            return None  # what lies in a package is found through the package
        return PathFinder.find_spec(name, [str(each) for each in folders()], target)


def _not_imported(name: str, field: str, error: BaseException) -> CrossoverError:
    module = name.partition(":")[0]
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return missing(field, name)
    if isinstance(error, SyntaxError) and error.filename and is_own(error.filename):
        return user_code_error(field, name, f"{error.msg}", place=place_in_file(error.filename, error.lineno))
    if isinstance(error, SystemExit):
        return user_code_error(
            field, name, "ends the program when it is imported", place=of_traceback(error.__traceback__)
        )
    return failure(field, name, error)


def missing(field: str, name: str) -> OwnCodeError:
    """Return the error for a `name` whose module is in none of the folders."""
    looked = " and ".join(dict.fromkeys(_shown_folder(each) for each in folders()))
    return user_code_error(field, name, f"there is no module {name.partition(':')[0]}; looked in {looked}", place=None)


def _shown_folder(folder: Path) -> str:
    if folder == Path.cwd():
        return "the current folder"
    return str(folder.relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else str(folder)


def _file(module: ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    return shown(file) if file else None

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
from crossover.errors import ConfigError, CrossoverError, OwnCodeError, print_line

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

_RESERVED_NAMES = {
    "a package of this project": PROJECT,
    "a package that every function has": RUNTIME | DATAPLANE | TORCH,
    "a module of Python's standard library": frozenset(sys.stdlib_module_names),
}


lock = threading.RLock()
_folders: tuple[Path, ...] = ()
own_top_names: set[str] = set()  # top-level names that are looked for in the folders
_findable: set[str] = set()  # modules whose imports have their top-level names there


def set_folders(*where: str | Path) -> None:
    """Set the folders in which this process searches user code, in order; none at all is the state at the start. If they differ from
    before, modules that were loaded from the earlier folders are removed from sys.modules, so that they are imported anew.
    """
    global _folders
    chosen = tuple(dict.fromkeys(Path(each).resolve() for each in where))
    with lock:
        if chosen == _folders:
            return
        for name in [each for each in sys.modules if each.split(".")[0] in own_top_names]:
            del sys.modules[name]
        _folders = chosen
        own_top_names.clear()
        _findable.clear()
        importlib.invalidate_caches()


def list_folders() -> tuple[Path, ...]:
    """Return the folders in which user code is searched, in order, as absolute paths. If `set_folders` was not called, as in a
    function or on an instance, it is one: the folder of the function's code, or the current one.
    """
    return _folders or (Path(os.environ.get("LAMBDA_TASK_ROOT") or os.getcwd()),)


def has_folders() -> bool:
    """Return whether `set_folders` has been called in this process with a folder; in deployed functions and programs it is not."""
    return bool(_folders)


def locate(module: str) -> list[Path]:
    """Return the paths that a user module (dotted name) has in the search folders, at most one per folder, files first. For a
    package without __init__.py it is the package's folder. Empty if no folder has the module.
    """
    base = Path(*module.split("."))
    found: list[Path] = []
    for folder in list_folders():
        for path in (folder / base / "__init__.py", (folder / base).with_suffix(".py")):
            if path.is_file():
                found.append(path)
                break
        else:
            if (folder / base).is_dir() and any((folder / base).glob("**/*.py")):
                found.append(folder / base)
    return sorted(found, key=Path.is_dir)  # a module stands before a mere folder, as in Python's own search


def is_own_file(file: str | Path) -> bool:
    """Return whether `file` is user code: it is in a search folder and not in site-packages, and its top-level module is one that
    `load` has reached; in a process without set folders, one that is not this project's.
    """
    path = Path(file)
    for relative in [path.relative_to(each) for each in list_folders() if path.is_relative_to(each)]:
        if not relative.parts or {"site-packages", "dist-packages"} & set(relative.parts):
            continue
        top = relative.parts[0].removesuffix(".py")
        if top in own_top_names if _folders else top not in PROJECT:
            return True
    return False


def is_own_module(module: str) -> bool:
    """Return whether `module`, a dotted name, is user code that `load` has reached. In a process without set folders: in a Lambda
    function, whether it is not this project's; elsewhere False.
    """
    top = module.split(".")[0]
    return top in own_top_names if _folders else "LAMBDA_TASK_ROOT" in os.environ and top not in PROJECT


def display_path(file: str | Path) -> str:
    """Return the path of `file` for messages: relative to the current folder, or else to the search folder that holds it; the file's
    name alone if neither does.
    """
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return str(_relative_to_folders(path) or path.name)


def _relative_to_folders(file: str | Path) -> Path | None:
    """Return the path of `file` relative to the first search folder that holds it; None if none does."""
    path = Path(file)
    return next((path.relative_to(each) for each in list_folders() if path.is_relative_to(each)), None)


def find_name_owner(top: str) -> str | None:
    """Return in words to whom the top-level module name `top` belongs, such as "a package of this project", if user modules may not
    have that name; otherwise None.
    """
    return next((whose for whose, names in _RESERVED_NAMES.items() if top in names), None)


# --- imports ----------------------------------------------------------------------------------------------------------
# What a Python file imports, read from its text: nothing is executed.


@dataclass(frozen=True)
class Imports:
    """Modules that a Python file imports: {dotted name: line of its first import}. For `from a import b`, both `a` and `a.b` are
    listed, since `b` may be a module.

    `at_once`: imported when the file is imported. `deferred`: imported only inside functions, or in a `try` that catches an
    ImportError.
    """

    at_once: dict[str, int] = field(default_factory=dict)
    deferred: dict[str, int] = field(default_factory=dict)


def read_imports(text: str, *, package: str) -> Imports:
    """Return the imports in `text`, the source code of a module in `package`, with the parent packages of each name. A module that is
    imported in both ways is in `at_once` only. The code is not run. Raises SyntaxError for text that is not Python.
    """
    found = Imports()
    _collect_imports(ast.parse(text).body, package, found)
    for name in found.at_once.keys() & found.deferred.keys():
        del found.deferred[name]
    return found


def _collect_imports(body: list[ast.stmt], package: str, found: Imports) -> None:
    """Add the imports in `body`, statements of a module, to `found`. Those inside functions, or in a `try` that catches an
    ImportError, count as deferred; those under `if TYPE_CHECKING` are left out. `package`: package of the module.
    """
    for statement in body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                _add_imports(found.at_once, statement, package)
            case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
                _collect_imports(statement.orelse, package, found)
            case ast.Try(handlers=handlers) if any("Import" in ast.unparse(h.type) for h in handlers if h.type):
                _add_imports_below(found.deferred, statement, package)  # optional
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                _add_imports_below(found.deferred, statement, package)
            case _:
                inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
                _collect_imports(inner, package, found)


def _add_imports_below(names: dict[str, int], statement: ast.stmt, package: str) -> None:
    """Add the imports of `statement` and everything inside it to `names`, {module: line}. `package`: package of the module."""
    for node in ast.walk(statement):
        _add_imports(names, node, package)


def _add_imports(names: dict[str, int], node: ast.AST, package: str) -> None:
    """Add the modules that one syntax `node` imports to `names`, {module: line}; a module that is there keeps its line. `package`:
    package of the module.
    """
    for name in _list_imported_modules(node, package):
        names.setdefault(name, getattr(node, "lineno", 0))


def _list_imported_modules(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the modules that an import statement may name, and their parent packages; nothing for other nodes. `package`: package
    of the module, to resolve relative imports.
    """
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


# What the user's function of each field is called with.
_PARAMETERS = {
    "training.model": "classes, input_shape",
    "training.loss": "outputs, labels",
    "training.metric.name": "outputs, labels",
    "data.dataset": "experiment",
}


def build_failure_error(field: str, name: str, error: BaseException, *, what: Any = None) -> OwnCodeError:
    """Return the OwnCodeError for `error`, which the user code `name` in the field `field` raised; its message has file and line.

    The line is the last one of user code in the traceback, or, if there is none, the line at which `what` is defined; then, for a
    TypeError, the parameters that a function of this field needs are named too. If the error was raised in this project's code that
    user code called, the message says so.
    """
    line = find_line_in_traceback(error.__traceback__)
    place = line or find_definition_line(what)
    said = " ".join(str(error).split()) or "no message"
    problem = f"{type(error).__name__}: {said}"
    if isinstance(error, TypeError) and line is None and field in _PARAMETERS and callable(what):
        problem += f"; expected def {name.rpartition(':')[2]}({_PARAMETERS[field]})"
    if inside := _find_project_line(error.__traceback__):
        return OwnCodeError(
            f"{field}: {name!r}: {inside}, called by your code{f', {place}' if place else ''}: {problem}"
        )
    return build_user_code_error(field, name, problem, place=place)


def build_user_code_error(field: str, name: str, problem: str, *, place: str | None) -> OwnCodeError:
    """Return an OwnCodeError with a message like `training.model: 'mytask:factory': your code, mytask.py, line 3: it fails`.
    `field`: name of the YAML field; `name`: its value; `problem`: last part of the message; `place`: file and line, or None.
    """
    return OwnCodeError(f"{field}: {name!r}: your code{f', {place}' if place else ''}: {problem}")


def report_note(words: str, *, place: str | None) -> None:
    """Print to standard error a note about user code, unless the process has printed an equal one. `words`: the note; `place`: file
    and line, or None.
    """
    line = f"note: your code{f', {place}' if place else ''}: {words}"
    said = runtime.get_or_make("notes on own code", set[str])
    if line not in said:
        said.add(line)
        print_line(line, stderr=True)


def find_line_in_traceback(trace: TracebackType | None) -> str | None:
    """Return the innermost line of user code in a traceback, such as `mytask.py, line 3, in forward`; None if it has none."""
    found = None
    while trace is not None:
        found = _describe_frame(trace.tb_frame, trace.tb_lineno) or found
        trace = trace.tb_next
    return found


def _find_project_line(trace: TracebackType | None) -> str | None:
    """Return the last line of this project's code that comes after the last user code in the traceback, such as
    `crossover/training/gradients.py, line 3`: user code called it, and the error was raised in it or in a package that it called. None if
    there is no such line.
    """
    found, theirs = None, False
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if is_own_file(str(file)):
            found, theirs = None, True
        elif theirs and file.is_relative_to(_HOME):
            found = f"{file.relative_to(_HOME)}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return found


def find_calling_line() -> str | None:
    """Return the innermost line of user code on the call stack, such as `mytask.py, line 3, in forward`. None if there is none, or
    if Python is importing another package's module for it.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if found := _describe_frame(frame, frame.f_lineno):
            return found
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return None  # of another package's module, which the user's merely imports
        frame = frame.f_back
    return None


def find_definition_line(what: Any) -> str | None:
    """Return the file and first line of the definition of `what`, a function, class or object (then of its class's `__init__`), such as
    `mytask.py, line 3`; None if that is not user code.
    """
    what = inspect.unwrap(what) if callable(what) else what
    code = getattr(what, "__code__", None) or getattr(getattr(what, "__init__", None), "__code__", None)
    return place_in_file(code.co_filename, code.co_firstlineno) if code and is_own_file(code.co_filename) else None


def place_in_file(file: str | Path, line: int | None) -> str:
    """Return `mytask.py, line 3` for a message; only the file's path if `line` is None."""
    return f"{display_path(file)}, line {line}" if line else display_path(file)


def _describe_frame(frame: FrameType, line: int) -> str | None:
    """Return `mytask.py, line 3, in forward` for a stack `frame` in user code that is at `line`; None for any other frame."""
    code = frame.f_code
    if not is_own_file(code.co_filename):
        return None
    inside = f", in {code.co_name}" if code.co_name.isidentifier() else ""
    return place_in_file(code.co_filename, line) + inside


# --- watching ---------------------------------------------------------------------------------------------------------
# What files own modules read while they are imported, or while the model is built: functions hold the Python files alone, and a run that
# is resumed would not notice that another one had changed.
#
# Python tells audit hooks of every opened file. A hook stays for the life of its process, so one is added, when it is first wanted, and it
# looks away at all other times.

_watched = threading.local()


@contextmanager
def forbid_data_files(field: str, name: str) -> Iterator[None]:
    """Within the `with` block, raise OwnCodeError as soon as user code on this thread opens a data file to read it, and again at the
    block's end if the code caught the error: deployed functions have only the Python files. Has no effect in deployed functions and
    programs. `field`, `name`: the user code, for the message.
    """
    if not has_folders():  # a function or program: whoever started the run has watched
        yield
        return
    with lock:  # two threads at once would add two
        _install_audit_hook()
    outer: _Watch | None = getattr(_watched, "watch", None)
    watch = _watched.watch = _Watch(field, name)
    try:
        yield
    finally:
        _watched.watch = outer
    if watch.found is not None:
        raise watch.found


class _Watch:
    """State of one `forbid_data_files` block: `field` and `name` of the user code, and `found`, the first error, or None."""

    def __init__(self, field: str, name: str) -> None:
        """Start without an error. `field`, `name`: the user code that is watched, for the message."""
        self.field, self.name = field, name
        self.found: OwnCodeError | None = None

    def check_opened_file(self, path: Any, flags: Any) -> None:
        """Raise an OwnCodeError if `path` is a data file that user code is opening to read. The first such error is kept in `found`, and
        raised again for each later file. `flags`: as for os.open.
        """
        if (file := _find_data_file(path, flags)) and (place := find_calling_line()):
            self.found = self.found or build_user_code_error(
                self.field,
                self.name,
                f"reads {display_path(file)} when it is imported or called, which functions have not: they hold your Python files alone; "
                "write it as a constant of a module, or read it in the loader of data.dataset, which runs on this machine",
                place=place,
            )
            raise self.found


@cache
def _install_audit_hook() -> None:
    """Add this module's audit hook to the process, once: Python cannot remove one."""
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Check the file that Python is opening if this thread is within `forbid_data_files`; an audit hook, which ignores all events but
    "open". Raises the OwnCodeError of `_Watch.check_opened_file`, so that the file is not opened. `event`, `arguments`: name and
    arguments of Python's audit event.
    """
    watch: _Watch | None = getattr(_watched, "watch", None)
    if watch is None or event != "open":
        return
    _watched.watch = None  # what looking itself opens is nobody's deed
    try:
        watch.check_opened_file(arguments[0], arguments[2])
    finally:
        _watched.watch = watch


def _find_data_file(path: Any, flags: Any) -> Path | None:
    """Return the absolute path of a file that is being opened to read, if it may be the user's data: an existing file outside Python's and
    the system's folders that is no Python code and no compiled module; otherwise None, also for an open file descriptor. `flags`: as for
    os.open.
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


# --- isolation --------------------------------------------------------------------------------------------------------
# The isolation of the user's own code, wherever it runs: while it is imported, builds a network, computes, or is a step.
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
def isolate() -> Iterator[None]:
    """Within the `with` block, run user code on this thread such that its changes to the process are undone at the end: current folder,
    sys.stdout, warning filters, torch's default dtype and device, grad mode and number of threads. What it prints goes to standard
    error, and torch.compile returns its argument. Blocks may be nested, and several threads may be in one at a time.
    """
    torch = _get_torch()
    mine = _read_thread_settings(torch) if torch else None
    with _lock:
        _outside.enter(torch)
    _is_own.depth = getattr(_is_own, "depth", 0) + 1
    try:
        yield
    finally:
        _is_own.depth -= 1
        with _lock:
            _outside.leave()
        if (torch := _get_torch()) is not None:
            _restore_thread_settings(torch, mine)


@contextmanager
def attribute_errors(field: str, name: str, *, what: Any = None) -> Iterator[None]:
    """Within the `with` block, run the user code `name` as in `isolate`, and turn any exception, and SystemExit, into an OwnCodeError
    that names `field`, file and line.

    For a `name` without a colon, which belongs to the project, the block does nothing. Crossover's own errors, out-of-memory errors and
    the SystemExit of a signal pass unchanged. `what`: the object that is called, whose definition is named if no line of user code is in
    the traceback.
    """
    try:
        with isolate() if ":" in name else nullcontext():
            yield
    except (CrossoverError, MemoryError):
        raise
    except SystemExit as error:
        if ":" not in name or type(error) is not SystemExit:  # a signal's is a class of its own
            raise
        place = find_line_in_traceback(error.__traceback__) or find_definition_line(what)
        raise build_user_code_error(field, name, "ends the program when it is called", place=place) from error
    except Exception as error:
        if ":" not in name or "can't allocate memory" in str(error):
            raise
        raise build_failure_error(field, name, error, what=what) from error


def _get_torch() -> Any:
    """Return the torch module if it has been imported completely, otherwise None; it is never imported here."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "compile") else None


def _read_thread_settings(torch: Any) -> tuple[bool, int, Any]:
    """Return (whether gradients are on, the number of threads, the context of the default device or None), torch's settings for the
    calling thread.
    """
    return torch.is_grad_enabled(), torch.get_num_threads(), _get_default_device(torch)


def _get_default_device(torch: Any) -> Any:
    """Return the context that torch.set_default_device has entered, None if none; quicker than torch's own function."""
    return getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)


def _restore_thread_settings(torch: Any, before: tuple[bool, int, Any] | None) -> None:
    """Set torch's settings for the calling thread back to `before`, a result of `_read_thread_settings`; if it is None, switch
    gradients on and leave the number of threads. A default device is removed if there was none before; if there was one, the present
    one is left.
    """
    grad, threads, device = before or (True, torch.get_num_threads(), None)
    if torch.is_grad_enabled() != grad:
        torch.set_grad_enabled(grad)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if device is None and _get_default_device(torch) is not None:
        torch.set_default_device(None)


class _ProcessSettings:
    """Settings of the process as they are outside user code, to be restored: current folder, standard output, warning filters,
    torch's dtype and compile. `within`: number of threads that are running user code.
    """

    def __init__(self) -> None:
        """Start with no thread in user code and no saved settings."""
        self.within = 0

    def enter(self, torch: Any) -> None:
        """Record that one more thread runs user code. The first one saves the settings and replaces sys.stdout and torch.compile;
        for a later one, they are restored. `torch`: the module, or None.
        """
        self.within += 1
        if self.within > 1:
            self._put_back()
            return
        self.folder = _get_current_folder()
        self.stdout, sys.stdout = sys.stdout, _Diverted(sys.stdout)
        self.diverted = sys.stdout
        self.filters, self.shown = list(warnings.filters), warnings.showwarning
        self.dtype: Any = torch.get_default_dtype() if torch else None
        self.compile: Any = torch.compile if torch else None
        if torch:
            torch.compile = _skip_compile

    def leave(self) -> None:
        """Record that a thread has left user code, and restore the settings."""
        self.within -= 1
        self._put_back()

    def _put_back(self) -> None:
        """Restore every saved setting that user code has changed; sys.stdout and torch.compile stay replaced while other threads
        run user code.
        """
        if self.folder and _get_current_folder() != self.folder:
            with suppress(OSError):  # it was removed meanwhile
                os.chdir(self.folder)
        sys.stdout = self.diverted if self.within else self.stdout
        if warnings.filters != self.filters:
            warnings.resetwarnings()
            warnings.filters.extend(self.filters)  # type: ignore[attr-defined]  # a list
        warnings.showwarning = self.shown
        if (torch := _get_torch()) is None:
            return
        if torch.get_default_dtype() != (self.dtype or torch.float32):
            torch.set_default_dtype(self.dtype or torch.float32)
        if self.compile is not None:
            torch.compile = _skip_compile if self.within else self.compile


_outside = _ProcessSettings()


class _Diverted:
    """Replacement of sys.stdout: what threads in user code write goes to standard error, all else to the real standard output. All
    attributes but the method `outside` are those of the stream to which the calling thread writes.
    """

    def __init__(self, outside: Any) -> None:
        """Replace `outside`, the standard output; if that is a replacement itself, the stream behind it."""
        self._outside = outside.outside() if isinstance(outside, _Diverted) else outside

    def outside(self) -> Any:
        """Return the real standard output, also to threads that are in user code."""
        return self._outside

    def __getattr__(self, name: str) -> Any:
        """Return the attribute `name`, such as `write`, of the stream that the calling thread writes to."""
        return getattr(sys.stderr if getattr(_is_own, "depth", 0) else self._outside, name)


def _get_current_folder() -> str | None:
    """Return the current folder; None if it has been deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _skip_compile(model: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Print a note and return `model` uncompiled: the replacement of torch.compile in user code, since deployed functions have no
    compiler. Without a `model`, return a decorator that returns its argument. `options`: ignored.
    """
    words = "torch.compile is left out: functions have no compiler, and the saved names are those of the plain module"
    report_note(words, place=find_calling_line())
    return (lambda model: model) if model is None else model


# --- dependencies -----------------------------------------------------------------------------------------------------
# What own code consists of: the files that its modules import of one another, and the packages that they want beside them.


@dataclass(frozen=True)
class OutsideImport:
    """Import, in line `line` of a `file` of user code, of something that is not the user's: Python's, this project's, or an installed
    package's. `module`: its dotted name. `at_once`: whether it happens when the file is imported, rather than inside a function.
    """

    module: str
    file: Path
    line: int
    at_once: bool


@dataclass
class Dependencies:
    """Everything that user code imports. `files`: the user's files, {path in the bundle: path here}. `wanted`: imports of other
    packages. `passed_over`: {file that is used: file of the same module in a later folder, which is not}.
    """

    files: dict[Path, Path] = field(default_factory=dict)
    wanted: list[OutsideImport] = field(default_factory=list)
    passed_over: dict[Path, Path] = field(default_factory=dict)

    @property
    def first_party(self) -> set[str]:
        """Names that user code imports from this project: modules, and perhaps what they define."""
        return {each.module for each in self.wanted if each.module.split(".")[0] in FIRST_PARTY}

    @property
    def tops(self) -> set[str]:
        """Top-level module names of the user's files."""
        return {path.parts[0].removesuffix(".py") for path in self.files}


def find_dependencies(*names: str, field: str = "training.model") -> Dependencies:
    """Return all files and imports of the user's modules in `names`, each `package.module:name`, and of the user's modules that
    they import. A module that does not exist is left out. Nothing is imported. Raises OwnCodeError, naming `field`, for a file
    that is not valid Python.
    """
    found, todo, seen = Dependencies(), [name.partition(":")[0] for name in names], set[str]()
    while todo:
        module = todo.pop()
        parts = module.split(".")
        for depth in range(1, len(parts) + 1):  # a parent package is imported first
            name = ".".join(parts[:depth])
            if name in seen or not (files := _find_own_files(name)):
                continue
            seen.add(name)
            todo += _add_module(found, name, files, field=field, named=names[0])
    return found


def _find_own_files(module: str) -> list[Path]:
    """Return the paths that the user's `module` (dotted name) has in the search folders, as `locate` returns them: files first, a
    package without __init__.py as its folder. Empty if the user has no such module, if its top-level name belongs to Python or this
    project (`find_name_owner`), or if the user has only a folder of that top-level name and there is an installed package.
    """
    top = module.split(".")[0]
    if find_name_owner(top):
        return []
    found = locate(module)
    return [] if found and found[0].is_dir() and "." not in module and _is_installed(top) else found


def _is_installed(top: str) -> bool:
    """Return whether the top-level package `top` is installed, that is, found on Python's path outside the search folders; False for
    one without __init__.py.
    """
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(top, [each for each in sys.path if each and Path(each).resolve() not in list_folders()])
    return spec is not None and spec.origin is not None


def _add_module(found: Dependencies, module: str, files: list[Path], *, field: str, named: str) -> Iterator[str]:
    """Add `module` (the first of its `files`) and what it imports from others to `found` at once; a folder adds nothing. Return an iterator
    over the names of the user's modules that it imports, anywhere in the file; their own imports are not added. Raises OwnCodeError, naming
    `field` and its value `named`, if the file is not valid Python.
    """
    path = files[0]
    if path.is_dir():
        return iter(())
    relative = Path(*module.split("."))
    found.files[relative / "__init__.py" if path.name == "__init__.py" else relative.with_suffix(".py")] = path
    if len(files) > 1 and files[1].is_file():
        found.passed_over[path] = files[1]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    try:
        read = read_imports(path.read_text(encoding="utf-8"), package=package)
    except (SyntaxError, UnicodeDecodeError) as error:
        place = place_in_file(path, getattr(error, "lineno", None))
        said = error.msg if isinstance(error, SyntaxError) else "is no text in UTF-8"
        raise build_user_code_error(field, named, said, place=place) from error
    own = []
    for name, line, at_once in (
        *((name, line, True) for name, line in read.at_once.items()),
        *((name, line, False) for name, line in read.deferred.items()),
    ):
        if _find_own_files(name):
            own.append(name)
        elif not _find_own_files(name.split(".")[0]):  # else an attribute of an own module
            found.wanted.append(OutsideImport(name, path, line, at_once))
    return iter(own)


# --- finding ----------------------------------------------------------------------------------------------------------
# A function or class of the user's own, by its name: imported from where own modules lie, or refused with file and line.

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def load(name: str, *, field: str, kind: Any = Callable) -> Any:
    """Import the user's module and return the object `name` (`package.module:name`), which the YAML field `field` names. `kind`: type that
    it must have; by default anything callable. The module's code runs as in `isolate`, at the first call only; for a callable, torch is
    imported first.

    Raises OwnCodeError with field, file and line if it does not exist, cannot be imported or is of another type; ConfigError if the name is
    malformed, or its module's name is reserved for Python or this project.
    """
    if kind is Callable:
        with suppress(ImportError):
            import torch  # noqa: F401  # what names a function brings it; within `isolate` nobody knew its settings from before
    with lock, isolate():
        return _load(name, field, kind)


def find_file(name: str) -> Path:
    """Return the file of the module of `name` (`package.module:name`). Raises KeyError if the module has not been loaded."""
    return Path(str(sys.modules[name.partition(":")[0]].__file__))


def _load(name: str, field: str, kind: Any) -> Any:
    """Import and return the object `name`, as `load` does, but without undoing what its code changes in the process. Raises the same
    errors.
    """
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
        raise _explain_failed_import(name, field, error) from error
    if not hasattr(module, attribute):
        defined = [each for each in vars(module) if not each.startswith("_")]
        near = difflib.get_close_matches(attribute, defined, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise build_user_code_error(field, name, f"defines no {attribute!r}{hint}", place=_describe_file(module))
    found = getattr(module, attribute)
    if not isinstance(found, kind):
        expected = "a function" if kind is Callable else kind.__name__
        problem = f"{attribute} is of type {type(found).__name__}; {expected} is expected"
        raise build_user_code_error(field, name, problem, place=_describe_file(module))
    return found


def is_name(text: str) -> bool:
    """Return whether `text` has the form `package.module:name`."""
    return bool(_NAME.fullmatch(text))


def check_name(name: str, field: str) -> None:
    """Raise ConfigError, naming `field`, if `name` does not have the form `package.module:name`, or if its first part is reserved
    for Python or this project.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{field}: {name!r} is no package.module:name, such as mytask:factory for a function in mytask.py"
        )
    top = name.partition(":")[0].split(".")[0]
    if whose := find_name_owner(top):
        raise ConfigError(f"{field}: {name!r}: {top} is the name of {whose}; give your module another one")


def _make_findable(name: str, field: str) -> None:
    """Register the user's modules that `name` reaches with an import finder, which is added to sys.meta_path, so that Python can import
    them. Does nothing in deployed functions and programs, which have them on Python's path. `field`: for errors.
    """
    module = name.partition(":")[0]
    if not has_folders() or module in _findable:
        return
    own_top_names.update(find_dependencies(name, field=field).tops)
    _findable.add(module)
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Import finder for the user's top-level modules, which it searches in the search folders only."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of the user's top-level module `name`; None for any other name, and for modules inside packages. `path`,
        `target`: as importlib gives them.
        """
        if path is not None or name not in own_top_names:
            return None  # what lies in a package is found through the package
        return PathFinder.find_spec(name, [str(each) for each in list_folders()], target)


def _explain_failed_import(name: str, field: str, error: BaseException) -> CrossoverError:
    """Return the error to raise after importing the module of `name` (in the YAML field `field`) raised `error`: OwnCodeError with
    the reason and, if known, the line.
    """
    module = name.partition(":")[0]
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return build_missing_error(field, name)
    if isinstance(error, SyntaxError) and error.filename and is_own_file(error.filename):
        return build_user_code_error(field, name, f"{error.msg}", place=place_in_file(error.filename, error.lineno))
    if isinstance(error, SystemExit):
        return build_user_code_error(
            field, name, "ends the program when it is imported", place=find_line_in_traceback(error.__traceback__)
        )
    return build_failure_error(field, name, error)


def build_missing_error(field: str, name: str) -> OwnCodeError:
    """Return the OwnCodeError which says that the module of `name` (in the YAML field `field`) is in none of the search folders."""
    looked = " and ".join(dict.fromkeys(_describe_folder(each) for each in list_folders()))
    return build_user_code_error(
        field, name, f"there is no module {name.partition(':')[0]}; looked in {looked}", place=None
    )


def _describe_folder(folder: Path) -> str:
    """Return `folder` for a message: "the current folder", its path relative to that, or its whole path."""
    if folder == Path.cwd():
        return "the current folder"
    return str(folder.relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else str(folder)


def _describe_file(module: ModuleType) -> str | None:
    """Return the path of the file of `module` for a message; None if it has none."""
    file = getattr(module, "__file__", None)
    return display_path(file) if file else None

"""Who may import whom, and what must not be imported before it is needed."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.unit import around_runtime, encodings

ROOT = Path(__file__).parents[2]
PACKAGES = ("crossover", "functions", "peers", "stacks", "cdk", "layer")

# The house from the ground up: who stands in a row imports from the rows above it in this list, and nobody from his own row.
FLOORS = (
    {"crossover.errors", "crossover.experiment", "crossover.runtime"},
    {"crossover.processes", "crossover.pools", "crossover.algorithms", "crossover.user_code"},
    {"crossover.bundling", "crossover.stores", "layer"},
    {"crossover.learning", "crossover.local"},
    {"crossover.workflow"},
    {"crossover.reports"},
    {"crossover.training"},
    {"crossover.validation", "crossover.simulation", "functions"},
    {"crossover.advice", "cdk", "peers"},
    {"stacks"},
    {"crossover.running"},
    {"crossover.study"},
    {"crossover.cli"},
    {"app"},
)
FLOOR = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}
# Who looks modules up by a name that is not written there: architectures by theirs, the user's own, handlers by what a template says, and
# what lies beside a function's code alone.
BY_NAME = {
    "crossover/workflow/__init__.py",
    "crossover/workflow/architecture.py",
    "crossover/user_code.py",
    "crossover/local/zygote.py",
}

# third party -> where alone it may be imported
CONFINED = {
    "aws_cdk": {"cdk", "stacks", "app"},
    "constructs": {"cdk", "stacks", "app"},
    "cdk_nag": {"cdk", "stacks", "app"},
    "boto3": {"crossover.stores", "crossover.local", "crossover.running", "crossover.cli"},
    "moto": {"crossover.local"},
    "torch": {
        "crossover.advice",
        "crossover.learning",
        "crossover.local",
        "crossover.algorithms",
        "crossover.user_code",
        "crossover.running",
        "layer",
        "peers",
    },
    "redis": {"crossover.stores", "crossover.local", "layer"},
    "pika": {"crossover.stores", "crossover.local", "layer"},
    "pydantic": {"crossover.validation"},
    "typer": {"crossover.cli"},
    "rich": {"crossover.running", "crossover.cli", "crossover.reports"},
    "tensorboard": {"crossover.reports"},
    "mlflow": {"crossover.reports"},
    "sklearn": {"crossover.learning"},
    "scipy": {"crossover.study"},
    "optuna": {"crossover.study"},
    "pickle": {"crossover.learning"},  # the restricted unpickler of the official CIFAR files
}
# Functions run without numpy: beside torch there is no room for it in the layers. What stays on the laptop may use it.
NUMPY_ALLOWED = (
    "crossover/learning/",
    "crossover/local/",
    "crossover/reports/",
    "crossover/simulation/",
    "crossover/cli/",
    "crossover/running/",
)


def part_of(module: str) -> str:
    """Return the part of the project to which a module belongs, such as "crossover.stores" or "functions"."""
    names = module.split(".")
    if names[0] != "crossover":
        return names[0]
    known = len(names) > 1 and any((ROOT / "crossover" / f"{names[1]}{end}").exists() for end in ("", ".py"))
    return ".".join(names[:2]) if known else "crossover"  # crossover.__version__


def files() -> list[Path]:
    """Return the paths of all Python files of the project's packages."""
    found = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [*found, *ROOT.glob("app.py")]


def module_of(path: Path) -> str:
    """Return the dotted module name of a file."""
    names = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imports(path: Path, *, for_types: bool = False) -> Iterator[tuple[str | None, int]]:
    """Yield each module that the file imports, with the line; deferred imports and those by string count. The module is None if a string
    does not begin with a name. `for_types`: include those for type checkers alone.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if not for_types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            submodules = (ROOT / Path(*node.module.split("."))).is_dir() if node.module else False
            for name in node.names:
                yield f"{node.module}.{name.name}" if submodules else str(node.module), node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            wanted = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            yield wanted.value.rstrip(".") if isinstance(wanted, ast.Constant) else None, node.lineno


def named(path: Path, *, for_types: bool = False) -> Iterator[tuple[str, int]]:
    """Yield (module, line) of each import of a file whose module is known."""
    return ((module, line) for module, line in imports(path, for_types=for_types) if module is not None)


def test_imports_go_one_way() -> None:
    """Every package imports only packages on floors below its own."""
    wrong = []
    for path in files():
        own = part_of(module_of(path))
        for module, line in named(path):
            part = part_of(module)
            if part.split(".")[0] in PACKAGES and part not in (own, "crossover") and FLOOR[part] >= FLOOR[own]:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {own} must not import {part}")
    assert not wrong, "\n".join(wrong)


def test_no_module_is_looked_up_by_a_name_that_nobody_sees() -> None:
    """Only the files in BY_NAME import modules by names that are computed."""
    called = {str(path.relative_to(ROOT)) for path in files() if None in dict(imports(path))}
    assert called == BY_NAME


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the groups of two or more nodes that reach one another."""

    def reached(start: str) -> set[str]:
        """Return all nodes that can be reached from a node, itself only over a circle."""
        found, ahead = set[str](), [start]
        while ahead:
            new = graph.get(ahead.pop(), set()) - found
            found |= new
            ahead += new
        return found

    far = {node: reached(node) for node in graph}
    groups = {frozenset(other for other in far[node] if node in far[other]) for node in graph}
    return [set(group) for group in groups if len(group) > 1]


def test_no_modules_and_no_parts_import_one_another() -> None:
    """No modules, and no packages, import one another in a circle, deferred imports and those for type checkers included."""
    known = {module_of(path): path for path in files()}
    modules: dict[str, set[str]] = {module: set() for module in known}
    parts: dict[str, set[str]] = {part_of(module): set() for module in known}
    for module, path in known.items():
        for name, _ in named(path, for_types=True):
            imported = name if name in known else name.rpartition(".")[0]
            if imported in known and imported != module:
                modules[module].add(imported)
                parts[part_of(module)] |= {part_of(imported)} - {part_of(module)}
    assert [sorted(circle) for graph in (modules, parts) for circle in circles(graph)] == []


@pytest.mark.slow
def test_third_party_packages_stay_where_they_belong() -> None:
    """Third-party packages are imported only in the packages that CONFINED allows, and numpy only in the allowed files."""
    wrong = []
    for path in files():
        own = part_of(module_of(path))
        for module, line in named(path):
            homes = CONFINED.get(module.split(".")[0])
            if homes is not None and own not in homes and own.split(".")[0] not in homes:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {module} belongs in {', '.join(sorted(homes))}")
            if module.split(".")[0] == "numpy" and not str(path.relative_to(ROOT)).startswith(NUMPY_ALLOWED):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: functions run without numpy")
    assert not wrong, "\n".join(wrong)


def test_every_part_of_the_project_has_a_floor() -> None:
    """Every package has a floor in FLOOR, and FLOOR has no others."""
    assert {part_of(module_of(path)) for path in files()} - {"crossover"} == FLOOR.keys()


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("crossover.cli.commands", ("torch", "boto3", "moto", "aws_cdk", "matplotlib", "numpy", "redis", "pika")),
        *(
            (f"crossover.cli.{name}", ("torch", "matplotlib", "aws_cdk", "moto"))
            for name in ("deployment", "run", "study")
        ),
        ("crossover.validation", ("torch", "boto3", "moto", "aws_cdk", "numpy", "redis", "pika", "typer")),
        ("crossover.training.synchronous", ("torch", "boto3", "redis", "pika", "pydantic", "numpy", "multiprocessing")),
        ("crossover.workflow.context", ("torch", "boto3", "redis", "pika", "pydantic", "numpy")),
        *(
            (f"functions.{name}", ("torch", "boto3", "redis", "pika", "pydantic", "numpy"))
            for name in ("spirt", "all_reduce", "scatter_reduce", "mlless", "p2p_serverless")
        ),
        *(
            (f"peers.{name}", ("torch", "boto3", "redis", "pika", "pydantic", "numpy"))
            for name in ("p2p_instance", "p2p_serverless", "gpu")
        ),
    ],
)
def test_start_up_is_light(module: str, heavy: tuple[str, ...]) -> None:
    """Importing `module` in a new process imports none of the packages `heavy`."""
    code = f"import sys, {module}; print(*[name for name in {heavy!r} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == []


@pytest.mark.slow
def test_nothing_goes_around_the_runtime() -> None:
    """Code within the scope uses time, threads and state through crossover.runtime only, except for the listed exceptions."""
    wrong = []
    for path in around_runtime.in_scope():
        file = str(path.relative_to(ROOT))
        for name, line, instead in around_runtime.find_bypasses(path.read_text(encoding="utf-8")):
            if name not in around_runtime.EXCEPTIONS.get(file, {}):
                wrong.append(f"{file}:{line}: {name}: {instead}")
    assert not wrong, "\n".join(wrong)


def test_every_exception_is_needed() -> None:
    """Every listed exception from the rule on crossover.runtime is used."""
    found = {
        file: {name for name, _, _ in around_runtime.find_bypasses((ROOT / file).read_text(encoding="utf-8"))}
        for file in around_runtime.EXCEPTIONS
    }
    assert {file: set(reasons) for file, reasons in around_runtime.EXCEPTIONS.items()} == found


@pytest.mark.parametrize(
    ("text", "around"),
    [
        ("import time", True),
        ("from threading import Lock", True),
        ("import concurrent.futures", True),
        ("def f():\n    return datetime.now(UTC)", True),
        ("def f():\n    return os.environ['A']", True),
        ("known = {}\ndef f(a):\n    known[a] = 1", True),
        ("known = set()\ndef f(a):\n    known.add(a)", True),
        ("count = 0\ndef f():\n    global count\n    count += 1", True),
        ("class C:\n    @staticmethod\n    @functools.lru_cache(maxsize=1)\n    def f(): ...", True),
        ("class C:\n    @cached_property\n    def f(self): ...", True),
        ("from crossover import runtime\nLOCK = runtime.lock()", True),
        ("from crossover import runtime\nclass C:\n    began = runtime.time()", True),
        ("from crossover import runtime\ndef f(now=runtime.time()): ...", True),
        ("for attempt in Retrying(stop=stop_after_attempt(3)): ...", True),
        ("def f(known):\n    known[1] = 1", False),
        ("known = {}\ndef f():\n    known = {}\n    known[1] = 1\n    return known", False),
        ("from crossover import runtime\ndef f(clock=runtime.time):\n    return runtime.sleep(clock())", False),
        ("for attempt in Retrying(sleep=runtime.sleep): ...", False),
    ],
)
def test_a_way_around_is_found_and_what_is_a_functions_own_is_none(text: str, around: bool) -> None:
    """The check finds code that bypasses crossover.runtime, and nothing in a function's own state. `around`: whether `text` bypasses it."""
    assert bool(list(around_runtime.find_bypasses(text))) == around


# --- text says how it is encoded --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_text_that_is_read_or_written_says_its_encoding() -> None:
    """Every call in the product that reads or writes text names its encoding."""
    files = [ROOT / "app.py", *(file for part in (*PACKAGES, "layer") for file in (ROOT / part).rglob("*.py"))]
    found = [
        f"{file.relative_to(ROOT)}:{line}: {called}"
        for file in files
        for called, line in encodings.unsaid(file.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "unsaid"),
    [
        ("path.read_text()", True),
        ("path.read_text('utf-8')", False),
        ("(a / b).write_text(c)", True),
        ("path.write_text(c, encoding='utf-8')", False),
        ("open(path)", True),
        ("open(path, 'rb')", False),
        ("path.open('a')", True),
        ("path.open('wb')", False),
        ("exchange.open(replica)", False),
        ("subprocess.run(command, text=True)", True),
        ("subprocess.run(command, text=True, encoding='utf-8')", False),
    ],
)
def test_an_encoding_that_is_not_said_is_found(text: str, unsaid: bool) -> None:
    """The check finds calls without an encoding. `unsaid`: whether `text` is one."""
    assert bool(list(encodings.unsaid(text))) == unsaid


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Yield (path, syntax tree) of each file."""
    return ((str(path.relative_to(ROOT)), ast.parse(path.read_text("utf-8"))) for path in files())


def types_of(tree: ast.Module) -> Iterator[str]:
    """Yield the public names of classes and of type aliases, which are written like those of classes."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
                    yield name


def test_a_type_name_stands_for_one_thing() -> None:
    """No public type name is defined twice in the product."""
    counted = Counter(name for _, tree in trees() for name in types_of(tree) if not name.startswith("_"))
    assert [name for name, times in counted.items() if times > 1] == []

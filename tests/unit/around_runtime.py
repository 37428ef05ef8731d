"""What functions and programs ask for goes through crossover/runtime: nothing goes around it, and no module keeps anything by itself.

Else a simulated process would wait in real time, draw other numbers on every run, or see what another simulated process has kept.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Of this machine alone: none of it runs inside a function, a program, or what follows a run.
APART = {
    "cli": "the command line",
    "local": "the cloud on this machine is made of processes",
    "study": "a command that runs others",
    "processes.py": "commands compute in them",
    "reports": "written once a run is over",
    "runtime.py": "it is what is asked",
    "simulation": "has a clock of its own",
    "advice": "asks simulations, on the user's machine alone",
    "validation": "a YAML is checked before a run",
}
MODULES = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "random", "sched", "secrets", "select", "selectors"),
    *("signal", "socket", "socketserver", "subprocess", "threading", "time", "uuid"),
}
ATTRIBUTES = {
    "os.environ",
    "os.getenv",
    "os.urandom",
    "datetime.now",
    "datetime.utcnow",
    "date.today",
    "datetime.today",
}
CHANGES = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove"),
    *("setdefault", "update"),
}
CACHES = {
    **dict.fromkeys(("cache", "lru_cache"), "runtime.get_or_make, or Resources"),
    "cached_property": "crossover.stores.clients: Python 3.11 holds one lock for all objects while it computes",
}
# file -> what it has of its own -> why
EXCEPTIONS = {
    "crossover/stores/clients.py": dict.fromkeys(
        ("time", "threading", "_release_timer"), "cores of one machine, shared by its processes"
    ),
    "crossover/processes.py": dict.fromkeys(("signal", "threading"), "threads and signals are the process's own"),
    "crossover/pools.py": dict.fromkeys(
        ("POOLED", "concurrent", "multiprocessing", "signal", "threading", "time"),
        "pools of processes are the process's own",
    ),
    "crossover/stores/redis_client.py": {"socket": "the wire itself"},
    "crossover/learning/learner.py": {"threading": "torch's global generator is the process's; nobody waits within"},
    "crossover/learning/device.py": {"os.environ": "cuBLAS reads its settings there"},
    "crossover/learning/memory.py": {"cache": "malloc's settings are the process's"},
    "crossover/learning/sizes.py": {
        "cache": "a file that comes with the project is the same for every run of a process"
    },
    "crossover/learning/layers.py": dict.fromkeys(("threading", "_own"), "memory of the thread that computes"),
    "crossover/user_code.py": dict.fromkeys(
        ("threading", "_watched", "_is_own", "_folders", "own_top_names", "_findable", "os.environ", "cache"),
        "imported modules and what user code changes are the process's, and so is an audit hook",
    ),
    "crossover/workflow/architecture.py": {"cache": "the source of a file is the same for every run of a process"},
    "crossover/running/account.py": {
        "datetime.now": "AWS accounts are deployed to by commands",
        "cache": "regions and partitions are botocore's data, the same for every run of a process",
    },
    "crossover/running/deploying.py": dict.fromkeys(
        ("datetime.now", "os.environ", "subprocess"), "AWS accounts are deployed to by commands"
    ),
    "crossover/running/price_list.py": dict.fromkeys(("datetime.now",), "AWS accounts are deployed to by commands"),
    "crossover/running/removal.py": dict.fromkeys(("time",), "AWS accounts are deployed to by commands"),
    "crossover/running/running_costs.py": dict.fromkeys(("datetime.now",), "AWS accounts are deployed to by commands"),
    "crossover/running/deployed.py": dict.fromkeys(
        ("signal", "subprocess", "os.environ"), "synthesis is a process of its own"
    ),
    "crossover/running/preparing.py": {"lru_cache": "the project's files are the same for all"},
    "peers/gpu/__init__.py": {"subprocess": "one process for each GPU, before any of them trains"},
    "peers/gpu/meeting.py": {"socket": "gpu.exchange: distributed stays outside the virtual world"},
}


def in_scope() -> list[Path]:
    """Return the product's files whose code must ask the runtime for clocks, threads and chance."""
    found = [path for package in ("crossover", "functions", "peers") for path in sorted((ROOT / package).rglob("*.py"))]
    apart = tuple(f"crossover/{name}" if name.endswith(".py") else f"crossover/{name}/" for name in APART)
    return [path for path in found if not str(path.relative_to(ROOT)).startswith(apart)]


def find_bypasses(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield (name, line, what to use instead) for each import, call or decorator in a module's text that bypasses the runtime, for each
    of the module's names that its functions change, and for each call of the runtime at import.
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for each in names:
                    if each.name.split(".")[0] in MODULES:
                        yield each.name.split(".")[0], node.lineno, "ask crossover.runtime"
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in MODULES:
                yield module.split(".")[0], node.lineno, "ask crossover.runtime"
            case ast.Attribute(value=ast.Name(id=owner), attr=attribute) if f"{owner}.{attribute}" in ATTRIBUTES:
                yield f"{owner}.{attribute}", node.lineno, "ask crossover.runtime"
            case ast.Call(func=ast.Name(id="Retrying"), keywords=given) if "sleep" not in {each.arg for each in given}:
                yield "Retrying", node.lineno, "sleep=runtime.sleep, or it sleeps by itself"
            case ast.FunctionDef(decorator_list=decorators):
                for each in decorators:
                    if (name := ast.unparse(each).partition("(")[0].rpartition(".")[2]) in CACHES:
                        yield name, node.lineno, CACHES[name]
    yield from _find_changed_names(tree)
    yield from _find_calls_at_import(tree)


def _find_changed_names(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Yield (name, line, what to use instead) for each place in a function that changes a name of the module."""
    names = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        inside = list(ast.walk(function))
        declared = {name for node in inside if isinstance(node, ast.Global) for name in node.names}
        own = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
        own |= {each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        shared = (names - own) | declared
        for node in inside:
            match node:
                case ast.Name(id=name, ctx=ast.Store()) if name in declared:
                    yield name, node.lineno, "runtime.get_or_make, or Resources"
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in CHANGES:
                    if name in shared:
                        yield name, node.lineno, "runtime.get_or_make, or Resources"
                case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()) if name in shared:
                    yield name, node.lineno, "runtime.get_or_make, or Resources"
                case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()) if name in shared:
                    yield name, node.lineno, "runtime.get_or_make, or Resources"


def _find_calls_at_import(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Yield (call, line, advice) for each call of the runtime that happens while the module is imported: the answer would be one
    process's for all.
    """
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            defaults = [*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None)]
            pending += defaults
            continue
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("runtime."):
            yield ast.unparse(node.func), node.lineno, "ask when it is needed: imports happen once"
        pending += ast.iter_child_nodes(node)

"""What goes into a function's zip: the import closure of its handler, and nothing that its layers could not import."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdk import bundling
from crossover import user_code
from crossover.workflow.architecture import architectures, load, steps
from functions.spirt import ARCHITECTURE
from tests.infrastructure.assemblies import Assembly, resources
from tests.infrastructure.conftest import ROOT, Synthesize

STEPS = steps(ARCHITECTURE)
BILL = {"__init__", "bill", "prices", "spending", "usage"}
PLAIN = user_code.RUNTIME | user_code.DATAPLANE


def project(root: Path, **files: str) -> bundling.Sources:
    """Write first-party modules under `root`, with the __init__ files of their packages, and return them as sources. `files`: text by
    module name, with "__" for each dot.
    """
    for name, text in files.items():
        path = root / Path(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.relative_to(root).parents:
            if folder != Path():
                (root / folder / "__init__.py").touch()
        path.write_text(textwrap.dedent(text))
    return bundling.Sources(root)


def names(closure: bundling.Closure) -> set[str]:
    """Return the paths of a closure's files, without the packages' `__init__.py`."""
    return {path.as_posix() for path in closure.files if path.name != "__init__.py"}


def test_imports_are_followed_and_nothing_else_is_taken(tmp_path: Path) -> None:
    """Check that a bundle contains a module and all project modules that it imports, directly or not, and no others."""
    sources = project(
        tmp_path,
        functions__a="from crossover.b import thing\nimport json",
        crossover__b="from . import c",
        crossover__c="",
        crossover__unused="import torch",
        functions__other="",
    )
    closure = sources.collect_files("functions.a", available=PLAIN)
    assert names(closure) == {"functions/a.py", "crossover/b.py", "crossover/c.py"}
    assert {p.as_posix() for p in closure.files} > {"functions/__init__.py", "crossover/__init__.py"}


def test_deferred_imports_travel_where_their_packages_do(tmp_path: Path) -> None:
    """Check that modules imported inside functions are bundled if their packages are available, and otherwise left out."""
    sources = project(
        tmp_path,
        functions__a="def body():\n    from crossover.learner import Learner\n    import crossover.store",
        crossover__learner="import torch\nimport crossover.models",
        crossover__models="",
        crossover__store="import pika",
    )
    assert names(sources.collect_files("functions.a", available=PLAIN)) == {"functions/a.py", "crossover/store.py"}
    with_torch = sources.collect_files("functions.a", available=PLAIN | user_code.TORCH)
    assert names(with_torch) >= {"crossover/learner.py", "crossover/models.py"}


def test_an_import_that_the_layers_lack_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """Check that a module which imports torch without the torch layer is refused, and that the message says how to fix it."""
    sources = project(tmp_path, functions__a="import crossover.b", crossover__b="import torch")
    with pytest.raises(bundling.Unreachable, match=r"functions.a: importing it needs torch.*torch=True"):
        sources.collect_files("functions.a", available=PLAIN)


@pytest.mark.parametrize(
    ("text", "at_once"),
    [
        ("import torch", True),
        ("import torch.nn as nn", True),
        ("from torch import Tensor", True),
        ("if 1:\n    import torch", True),
        ("class A:\n    import torch", True),
        ("with open('x'):\n    import torch", True),
        ("def f():\n    import torch", False),
        ("class A:\n    def f(self):\n        import torch", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", False),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None", False),
        ("try:\n    import torch\nfinally:\n    pass", True),
        ("x = 'import torch'", False),
    ],
)
def test_what_runs_at_import(tmp_path: Path, text: str, at_once: bool) -> None:
    """Check which forms of import count as run when a module is imported."""
    sources = project(tmp_path, functions__a=text)
    assert ("torch" in sources.list_required_packages("functions.a")) == at_once


def test_what_is_for_type_checkers_only_stays_out(tmp_path: Path) -> None:
    """Check that imports under TYPE_CHECKING are not followed."""
    sources = project(
        tmp_path,
        functions__a="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import crossover.b",
        crossover__b="",
    )
    assert names(sources.collect_files("functions.a", available=PLAIN)) == {"functions/a.py"}


@given(edges=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=15))
def test_the_closure_is_reachability(
    tmp_path_factory: pytest.TempPathFactory, edges: list[tuple[int, int, bool]]
) -> None:
    """Check the bundled modules against a plain graph search, with cycles and with imports at module level and inside functions."""
    root = tmp_path_factory.mktemp("graph")
    files = {f"crossover__m{i}": "" for i in range(7)}
    for source, target, deferred in edges:
        line = f"import crossover.m{target}\n"
        files[f"crossover__m{source}"] += f"def f():\n    {line}" if deferred else line
    reached, todo = set[int](), [0]
    while todo:
        node = todo.pop()
        if node not in reached:
            reached.add(node)
            todo += [target for source, target, _ in edges if source == node]
    closure = project(root, **files).collect_files("crossover.m0", available=PLAIN)
    assert names(closure) == {f"crossover/m{i}.py" for i in reached}


# --- the project's own functions --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_function_imports_a_package_that_its_layers_lack(assembly: Assembly) -> None:
    """Import each function's module from the files of its zip alone, in a process without any other package, and check that none is
    missing.
    """
    guard = textwrap.dedent("""
        import importlib.abc, sys
        allowed = set(sys.argv[3].split(","))
        class Guard(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                top = name.partition(".")[0]
                if top in allowed or top in sys.stdlib_module_names or top in ("crossover", "functions", "peers"):
                    return None
                if sys._getframe(1).f_globals.get("__name__", "").startswith("importlib"):
                    importer = sys._getframe(1)
                    while importer and importer.f_globals.get("__name__", "").startswith("importlib"):
                        importer = importer.f_back
                    top_of = (importer.f_globals.get("__name__") or "").partition(".")[0] if importer else ""
                    if top_of and top_of not in ("crossover", "functions", "peers", "__main__"):
                        return None  # a package's own dependencies are the layer's business
                raise ImportError(f"{name} is not in the function's layers")
        sys.meta_path.insert(0, Guard())
        sys.path.insert(0, sys.argv[1])
        module = __import__(sys.argv[2], fromlist=["x"])
        assert module.__file__.startswith(sys.argv[1]), module.__file__
        print("ok", "torch" in sys.modules)
    """)
    seen = set()
    for step in STEPS:
        function = assembly.function(step.name)
        root = assembly.asset(assembly.experiment, function["Code"])
        torch = len(function["Layers"]) == 2
        if (root, torch) in seen:
            continue
        seen.add((root, torch))
        allowed = PLAIN | (user_code.TORCH if torch else frozenset())
        done = subprocess.run(
            [sys.executable, "-c", guard, str(root), step.module, ",".join(allowed)],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["ok", str(torch)], (
            "torch is imported by INIT where a step computes, and never elsewhere"
        )
    assert len(seen) == 2


def test_a_zip_holds_first_party_sources_only(assembly: Assembly) -> None:
    """Check that functions' zips contain only Python files of the project, unchanged, and none of the local cloud, the command line or
    validation.
    """
    for step in STEPS:
        root = assembly.asset(assembly.experiment, assembly.function(step.name)["Code"])
        files = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
        assert {path.suffix for path in files} == {".py"}
        assert {path.parts[0] for path in files} <= {"crossover", "functions"}
        assert not [p for p in files if p.parts[1] in ("local", "cli", "validation")]
        assert {p.stem for p in files if p.parts[1] == "reports"} <= BILL  # a decision knows what the run has cost
        assert all(
            (ROOT / path).read_bytes() == (root / path).read_bytes() for path in files if path.stem != "at_start"
        )


def test_a_step_without_torch_carries_nothing_that_needs_it(assembly: Assembly) -> None:
    """Check that no file in the zip of a step without torch imports torch at module level."""
    root = assembly.asset(assembly.experiment, assembly.function("notify_peers")["Code"])
    sources = bundling.Sources(root)
    for path in root.rglob("*.py"):
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        assert "torch" not in sources.list_required_packages(module), module


def test_what_the_learner_needs_is_aboard(assembly: Assembly) -> None:
    """Check that the zip of a computing function contains the learner's modules."""
    root = assembly.asset(assembly.experiment, assembly.function("compute_gradients")["Code"])
    aboard = {p.relative_to(root).as_posix() for p in root.rglob("*.py")}
    learning = {f"crossover/learning/{name}.py" for name in ("batches", "layers", "learner", "weights", "zoo")}
    assert learning <= aboard


@pytest.mark.slow
def test_equal_sources_give_equal_zips(assembly: Assembly, synth: Synthesize) -> None:
    """Check that two syntheses give functions' code the same digests."""
    again = synth()

    def codes(made: Assembly) -> list[str]:
        """Return the S3 key of each function's code."""
        functions = resources(made.experiment, "AWS::Lambda::Function").values()
        return [f["Code"]["S3Key"] for f in functions]

    assert codes(again) == codes(assembly)
    assert len(set(codes(assembly))) == 3  # with torch, without it, and CDK's own


@pytest.mark.slow
def test_no_function_draws_from_a_state_that_a_snapshot_would_share() -> None:
    """Check that no file of a function draws from Python's own random generator, except SystemRandom.

    SnapStart restores many environments from one memory image (aws.md 16), and all of them would draw the same.
    """
    sources = bundling.Sources(ROOT)
    modules = {step.module for name in architectures() for step in steps(load(name))}
    for module in modules:
        for path in sources.collect_files(module, available=PLAIN | user_code.TORCH).files:
            text = (ROOT / path).read_text()
            drawn = (
                set(re.findall(r"(?<![\w.])random\.(\w+)\(", text))
                if re.search(r"^import random$", text, re.M)
                else set()
            )
            assert drawn <= {"SystemRandom"}, path
            assert "from random import" not in text, path

"""An eighth architecture is two files and no entry elsewhere: two of them are put into a copy of the tree, and asked what we ask of ours.

tests/eighths/ holds a parameter server, whose database takes the optimizer's step, and a local SGD, whose workers vary the synchronous one.
`make test-all` asks the parameter server a part of the questions; with CROSSOVER_EVERY_CALL=1 both are asked all of them.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EIGHTHS = ROOT / "tests" / "eighths"
EVERY_CALL = bool(os.environ.get("CROSSOVER_EVERY_CALL"))
TREE = (
    "app.py",
    "cdk",
    "cdk.json",
    "config",
    "crossover",
    "functions",
    "layer",
    "peers",
    "pyproject.toml",
    "stacks",
    "tests",
)
CONTRACT = {"functions": 95, "config": 15}  # lines, at most, of a parameter server


@dataclass(frozen=True)
class Eighth:
    """An additional architecture in a copy of the project. `name`: the architecture; `tree`: folder of the copy."""

    name: str
    tree: Path

    @property
    def config(self) -> str:
        """The path of the architecture's example in the copy, relative to its root."""
        return f"config/{self.name.replace('_', '-')}.yaml"

    def python(self, *arguments: str, status: int = 0) -> str:
        """Run `python arguments` in the copy and return what it prints on standard output; on standard error too, if it must fail.
        `status`: the expected exit status, else AssertionError.
        """
        environment = {**os.environ, "PYTHONPATH": str(self.tree)}
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=self.tree, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + (done.stderr if status else "")

    def crossover(self, *arguments: str) -> str:
        """Run a command of `crossover` in the copy, and return its output with all spaces and line breaks replaced by single spaces."""
        return " ".join(self.python("-m", "crossover.cli", *arguments).split())

    def passes(self, files: list[str], only: str) -> None:
        """Run the project's own tests of architectures in these files, those of this architecture that match `only`, and check that they
        pass and that each file has one.
        """
        named = [f"tests/architectures/{file}.py" for file in files]
        base = self.tree / ".pytest"
        done = self.python("-m", "pytest", "-v", "-n0", f"--basetemp={base}", *named, "-k", f"{self.name} and ({only})")
        assert all(f"{file}::" in done for file in named), done  # each has been asked something


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project to which the architectures of tests/eighths are added."""
    made = tmp_path_factory.mktemp("tree")
    for name in (*TREE, "requirements.txt"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, made / name)
    (made / "redis_module").symlink_to(ROOT / "redis_module")
    if (ROOT / ".mypy_cache").is_dir():  # types of what both trees have in common are known already
        shutil.copytree(ROOT / ".mypy_cache", made / ".mypy_cache")
    shutil.copytree(EIGHTHS, made, dirs_exist_ok=True)
    return made


@pytest.fixture(params=["parameter_server", pytest.param("local_sgd", marks=pytest.mark.deep)])
def eighth(request: pytest.FixtureRequest, tree: Path) -> Eighth:
    """Return one of the additional architectures in the copy."""
    return Eighth(request.param, tree)


def test_a_parameter_server_is_two_short_files() -> None:
    """Check that the example of an added architecture consists of two files, each no longer than CONTRACT allows."""
    found = sorted(EIGHTHS.rglob("parameter*server.*"))
    assert {path.parent.name for path in found} == CONTRACT.keys() and len(found) == 2
    for path in found:
        assert len(path.read_text().splitlines()) <= CONTRACT[path.parent.name], path


def test_an_added_architecture_passes_what_make_check_asks(eighth: Eighth) -> None:
    """Check an added architecture by the linters, the type checker, the schema of its settings, and synthesis with the template validator
    and cdk-nag.
    """
    files = [str(path.relative_to(EIGHTHS)) for path in EIGHTHS.rglob("*.py") if path.stem == eighth.name]
    eighth.python("-m", "ruff", "check", *files)
    eighth.python("-m", "ruff", "format", "--check", *files)
    eighth.python("-m", "mypy", "--strict", *files)
    assert f'"{eighth.name}"' in eighth.crossover("schema") or "settings" not in (eighth.tree / files[0]).read_text()
    eighth.python("app.py", "-c", f"config={eighth.config}")


def test_an_added_architecture_is_planned_run_on_both_and_compared(eighth: Eighth) -> None:
    """Check that `plan`, `run` inline and on the local cloud, and `compare` work for an added architecture."""
    told = eighth.crossover("plan", eighth.config)
    described = eighth.name == "local_sgd"  # it says whose requests are like its own
    assert (
        "a run of 2 epochs: about " if described else f"no projection of a run: architecture: {eighth.name}: "
    ) in told
    one, other = eighth.tree / "results" / "inline", eighth.tree / "results" / "local"
    short = ("--set", "training.epochs=1")
    assert "[measured-local]" in eighth.crossover("run", eighth.config, *short, "--on", "inline", "--out", str(one))
    assert "[measured-local]" in eighth.crossover("run", eighth.config, *short, "--on", "local", "--out", str(other))
    assert "dollars: this machine's seconds at AWS's prices" in eighth.crossover(
        "compare", str(one), str(other), "--out", str(eighth.tree / "comparison")
    )


def test_an_added_architecture_ends_right_whatever_fails(eighth: Eighth) -> None:
    """Check the bits of the reference, a resumed run, a stopped run and a killed process; if every call is tried, also killed environments
    on the local cloud.
    """
    files = ["test_resumption", "test_stopping", "test_faults", *(["test_on_local"] if EVERY_CALL else [])]
    if eighth.name == "parameter_server":  # local steps are another mathematics than the reference's
        files.append("test_equality")
    eighth.passes(files, "test" if EVERY_CALL else "ragged or gone_on_with or a_stopped_run or killed")


DRAFTS = ["mlless", "spirt", "p2p_serverless", "gpu"]


def test_a_command_refuses_an_architecture_whose_import_loads_torch(tree: Path) -> None:
    """Check that `run` refuses an architecture whose module imports torch at module level, and names the line."""
    heavy = Eighth("heavy", tree)
    draft = (tree / "functions" / "all_reduce.py").read_text().replace('"all_reduce"', '"heavy"')
    (tree / "functions" / "heavy.py").write_text(f"import torch  # noqa\n{draft}")
    text = (tree / "config" / "all-reduce.yaml").read_text().replace("architecture: all_reduce", "architecture: heavy")
    (tree / heavy.config).write_text(text)
    try:
        said = heavy.python("-m", "crossover.cli", "run", heavy.config, "--on", "inline", status=2)
        assert "functions/heavy.py, line 1: imports torch when it is imported" in said
    finally:
        (tree / "functions" / "heavy.py").unlink()
        (tree / heavy.config).unlink()


@pytest.mark.parametrize("like", ["scatter_reduce", *(pytest.param(like, marks=pytest.mark.deep) for like in DRAFTS)])
def test_a_draft_runs_as_it_is(like: str, tree: Path) -> None:
    """Check that the draft which `crossover new` writes can be run without a change."""
    eighth = Eighth(f"like_{like}", tree)
    assert f"written: {eighth.config}" in eighth.crossover("new", eighth.name, "--like", like)
    out = str(tree / "results" / eighth.name)
    said = eighth.crossover("run", eighth.config, "--set", "training.epochs=1", "--on", "inline", "--out", out)
    assert f"{eighth.name} " in said and "On this machine [measured-local]" in said, said

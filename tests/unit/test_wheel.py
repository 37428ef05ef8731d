"""The installed package does what the checkout does."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_wheel_in_an_empty_folder_projects_and_trains(tmp_path: Path) -> None:
    """The installed wheel projects, trains and writes examples in an empty folder, writes nothing into itself, and says what needs a
    checkout.
    """
    source, installed, empty = tmp_path / "source", tmp_path / "installed", tmp_path / "empty"
    source.mkdir()
    empty.mkdir()
    for name in ("crossover", "functions", "peers", "stacks", "cdk", "layer", "config", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "requirements.txt", "setup.py"):
        shutil.copy(ROOT / name, source)
    build = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), ".")
    subprocess.run(build, cwd=source, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(installed)
    experiment = str(installed / "config" / "all-reduce-s3.yaml")

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python with the installed package in an empty folder."""
        environment = {**os.environ, "PYTHONPATH": str(installed)}
        command = (sys.executable, *arguments)
        return subprocess.run(command, cwd=empty, env=environment, check=False, capture_output=True, text=True)

    def crossover(*arguments: str, status: int = 0) -> str:
        """Run a `crossover` command with the installed package, and return its output. Fails unless it ends with `status`."""
        done = python("-m", "crossover.cli", *arguments)
        assert done.returncode == status, done
        return done.stdout + done.stderr if status else done.stdout

    where = subprocess.run(
        (sys.executable, "-c", "import crossover; print(crossover.__file__)"),
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(installed)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert where.startswith(str(installed))
    assert "$" in crossover("project", experiment, "--repetitions", "20").splitlines()[-1]
    crossover("run", experiment, "--on", "inline", "--set", "training.epochs=1", "--out", "trained")
    assert json.loads((empty / "trained" / "result.json").read_text())["outcome"] == "finished"
    assert (empty / "trained" / "report.html").is_file()
    assert {"play.html", "play.js"} <= {path.name for path in (installed / "crossover" / "reports").iterdir()}
    assert json.loads(crossover("schema", "advise"))["title"] == "crossover advise --json"
    before = sorted(path for path in installed.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__")
    crossover("examples", "mine")
    assert {"all-reduce-s3.yaml", "adapters.yaml", "experiment.schema.json"} <= {
        p.name for p in (empty / "mine").iterdir()
    }
    assert (empty / "mine" / "mails" / "model.py").is_file() and not (empty / "mine" / "pricing.yaml").exists()
    for refused in (
        ("run", experiment),
        ("deploy", experiment),
        ("new", "mine"),
        ("prices", "refresh"),
        ("doctor", experiment),
    ):
        said = " ".join(crossover(*refused, status=2).split())
        assert "needs a checkout of the project" in said and "git clone" in said and "make setup" in said, said
    missing = "import sys; sys.modules['moto'] = None; from crossover.cli import main; main.run_command(lambda **_: __import__('moto'), [])"
    assert "pip install 'crossover[local]'" in python("-c", missing).stderr
    after = sorted(path for path in installed.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__")
    assert after == before, "nothing is written into site-packages"

"""Judges that we did not write, each in an environment of its own: build/witnesses/<name>.

What goes into it lies in tests/witnesses/<name>/: `package.json` (npm), `requirements.txt` (a virtual environment), `setup` (a program that
is called with the environment's folder), or several of them. All versions are pinned there. The tests stand in test_<name>.py.

`python -m tests.witnesses.environments NAME...` makes those environments that are missing or were made from other pins.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from crossover.running.deploying import node_path

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build" / "witnesses"
DEMANDED = "CROSSOVER_WITNESS"  # names of judges: without their environments these fail instead of being skipped


def environment(name: str) -> Path:
    """Return the folder of a judge's environment. If it is not installed, the test is skipped, or fails if the judge was
    requested by name.
    """
    if not _stamp(name).exists():
        missing = f"the judge {name} is not installed here; `make witness-{name}` installs and asks it"
        if name in os.environ.get(DEMANDED, "").split():
            pytest.fail(missing)
        pytest.skip(missing)
    return FOLDER / name


def asked_of_node(name: str, question: Any) -> Any:
    """Return the JSON answer of tests/witnesses/NAME/judge.js to a question, sent as JSON. Skips the test if the judge is not installed."""
    packages = environment(name) / "node_modules"
    done = subprocess.run(
        [node_path(), HERE / name / "judge.js"],
        env={**_environ(), "NODE_PATH": str(packages)},
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def python(name: str) -> Path:
    """Return the path of Python in the judge's virtual environment. Skips the test if the judge is not installed."""
    return environment(name) / "venv" / "bin" / "python"


def install(name: str) -> None:
    """Create the environment of a judge, unless it exists; an incomplete or outdated one is deleted first. Exits the process if the
    installation fails.
    """
    if _stamp(name).exists():
        return
    recipe, folder = HERE / name, FOLDER / name
    print(f"installing the judge {name} into {folder.relative_to(FOLDER.parents[1])}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if (recipe / "package.json").exists():
        shutil.copy(recipe / "package.json", folder)
        _called([_beside_node("npm"), "install", "--prefix", folder, "--no-audit", "--no-fund", "--loglevel", "error"])
    if (recipe / "requirements.txt").exists():
        _called([sys.executable, "-m", "venv", folder / "venv"])
        pip = [folder / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _called([*pip, "-r", recipe / "requirements.txt"])
    if (recipe / "setup").exists():
        _called([recipe / "setup", folder])
    _stamp(name).touch()


def _stamp(name: str) -> Path:
    """Return the path of the file whose existence means that the environment is complete and matches its pinned versions."""
    recipe = sorted(path for path in (HERE / name).iterdir() if path.is_file())
    assert recipe, f"tests/witnesses/{name} says nothing about what to install"
    digest = hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in recipe)).hexdigest()
    return FOLDER / name / f".installed-{digest[:16]}"


def _beside_node(program: str) -> str:
    """Return the path of a program in the folder of Node.js."""
    return str(Path(node_path()).with_name(program))


def _environ() -> dict[str, str]:
    """Return this process's environment variables, with the running Python's programs first on the PATH."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def _called(command: Sequence[str | Path]) -> None:
    """Run a command up to three times until it succeeds, because downloads may fail; exit if it does not."""
    for attempt in range(3):
        if attempt:
            print("trying again", flush=True)
            time.sleep(5)
        if subprocess.run(command, env=_environ(), check=False).returncode == 0:
            return
    sys.exit(f"could not be installed: {' '.join(map(str, command))}")


if __name__ == "__main__":
    for each in sys.argv[1:]:
        install(each)

"""What `make run` calls, and what it prints on the way: the command line itself is tested elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from crossover.workflow.architecture import architectures

ROOT = Path(__file__).parents[2]


def called(*arguments: str) -> list[list[str]]:
    """Return the `crossover` commands of a make target, which are printed instead of run, each as a list of words."""
    command = ["make", "--no-print-directory", "-o", "setup", "-o", "redis-module", "CROSSOVER=echo crossover"]
    done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_all_runs_every_architecture_and_then_compares_them() -> None:
    """`make run ARCH=all` runs one file of each architecture, and then compares their folders."""
    *runs, comparison = called("run", "ARCH=all", "ON=inline")
    configs = [Path(run[2]) for run in runs]
    trained = {yaml.safe_load((ROOT / config).read_text())["architecture"] for config in configs}
    assert trained == set(architectures())
    assert len(configs) == len(trained)
    assert [run[1] for run in runs] == ["run"] * len(runs)
    assert {tuple(run[3:5]) for run in runs} == {("--on", "inline")}
    folders = [run[run.index("--out") + 1] for run in runs]
    assert comparison == ["crossover", "compare", *folders, "--out", "results/comparison"]


def test_one_is_run_alone() -> None:
    """`make run` with one architecture runs its file locally."""
    assert called("run", "ARCH=all_reduce") == [
        ["crossover", "run", "config/all-reduce.yaml", "--on", "local", "--out", "results/all-reduce"]
    ]


ODD = ["x;touch {}", "$(shell touch {})", "$$(touch {})", "`touch {}`", "x && touch {}", "x' ; touch {} '", "x\ny"]
ASKED = [
    ("run", "ON"),
    ("run", "OUT"),
    ("chaos", "SEEDS"),
    ("chaos", "CONFIG"),
    ("bench", "ONLY"),
    ("host-module", "PROCESSOR"),
]


@pytest.mark.parametrize(
    ("target", "variable", "value"), [*(("run", "ARCH", each) for each in ODD), *((*each, ODD[0]) for each in ASKED)]
)
@pytest.mark.parametrize("given", ["command line", "environment"])
def test_what_is_no_plain_name_is_refused_and_not_run(
    tmp_path: Path, target: str, variable: str, value: str, given: str
) -> None:
    """A variable of make with anything but a plain name is refused, and no command in it is run. `given`: how the variable is set."""
    command = ["make", "--no-print-directory", "-o", "setup", "-o", "redis-module", "-o", "cross-compiler", target]
    command += ["CROSSOVER=echo", "PYTHON=echo"]
    wish, surroundings = value.format(tmp_path / "touched"), dict(os.environ)
    if given == "environment":
        surroundings[variable] = wish
    else:
        command.append(f"{variable}={wish}")
    done = subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False)
    assert not (tmp_path / "touched").exists()
    assert done.returncode != 0
    assert f"{variable}: expected a plain name" in done.stderr


PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> {calls}
for line in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do echo "Selecting package $line"; echo "warning $line" >&2; done
exit {ends}
"""


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Return a folder of this machine's programs without those that `make packages` looks for; `sudo` runs its command and `sleep` does
    not wait.
    """
    (programs := tmp_path / "bin").mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name not in ("redis-server", "valkey-server", "g++", "apt-get", "sleep", "sudo", "python3", "npm"):
            (programs / program.name).symlink_to(program)
    (programs / "python3").symlink_to(sys.executable)
    for name, text in (("sudo", '#!/bin/sh\nexec "$@"\n'), ("sleep", "#!/bin/sh\n")):
        made(programs / name, text)
    return programs


def made(program: Path, text: str) -> None:
    """Write an executable program with that text."""
    program.write_text(text)
    program.chmod(0o755)


def make(*arguments: str, programs: Path) -> tuple[int, str, str]:
    """Run make with only the given programs on the PATH. Return (exit status, output, errors)."""
    command = ["make", "--no-print-directory", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": str(programs)}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("tool", ["apt-get", "pip"])
def test_package_managers_are_quiet_unless_they_fail(bare: Path, tool: str) -> None:
    """A package manager that succeeds prints one line; one that fails is tried three times, and its last lines are shown each time."""
    calls = bare.parent / "calls"
    if tool == "apt-get":
        program, target = bare / "apt-get", ["packages"]
    else:
        program, target = (
            bare.parent / "venv" / "bin" / "python",
            ["setup", "-o", "packages", f"VENV={bare.parent}/venv", f"UPLOT={bare.parent}"],
        )
        program.parent.mkdir(parents=True)
    made(program, PROGRAM.format(calls=calls, ends=0))
    status, printed, warned = make(*target, programs=bare)
    assert (status, warned) == (0, "")
    assert printed.startswith("installing") and printed.count("\n") == 1

    for stamp in bare.parent.glob("venv/.installed-*"):
        stamp.unlink()
    calls.unlink()
    made(program, PROGRAM.format(calls=calls, ends=1))
    status, printed, warned = make(*target, programs=bare)
    assert status != 0 and printed.count("\n") == 1
    assert len(calls.read_text().splitlines()) == 3
    assert warned.count("warning 16") == 3 and warned.count("trying again") == 2 and "warning 1\n" not in warned


@pytest.mark.parametrize("ends", [0, 1])
def test_setup_fetches_uplot_alone_and_goes_on_without_network(bare: Path, ends: int) -> None:
    """`make setup` installs none of the packages that only developers need, and a failing npm makes it print one line. `ends`: npm's exit
    status.
    """
    calls, venv = bare.parent / "calls", bare.parent / "venv"
    (venv / "bin").mkdir(parents=True)
    made(venv / "bin" / "python", PROGRAM.format(calls=os.devnull, ends=0))
    made(bare / "npm", PROGRAM.format(calls=calls, ends=ends))
    command = ["setup", "-o", "packages", f"VENV={venv}", f"UPLOT={bare.parent}/absent"]
    status, printed, warned = make(*command, programs=bare)
    assert status == 0 and printed.count("\n") == 1
    (call,) = calls.read_text().splitlines()
    assert call.startswith("npm ci ") and "--omit dev" in call
    assert warned.count("\n") == ends and ("make node_modules" in warned) == bool(ends)
    assert list(venv.glob(".installed-*"))

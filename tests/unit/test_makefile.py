"""What `make run` calls: the command line itself is tested elsewhere."""

import subprocess
from pathlib import Path

import yaml

from crossover.workflow import architectures

ROOT = Path(__file__).parents[2]


def called(*arguments: str) -> list[list[str]]:
    """The commands of a target, said instead of run."""
    command = ["make", "--no-print-directory", "-o", "setup", "-o", "redis-module", "CROSSOVER=echo crossover"]
    done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_all_runs_every_architecture_and_then_compares_them() -> None:
    *runs, comparison = called("run", "ARCH=all", "ON=inline")
    configs = [Path(run[2]) for run in runs]
    trained = {yaml.safe_load((ROOT / config).read_text())["architecture"] for config in configs}
    assert trained == set(architectures())
    assert len(configs) == 7
    assert [run[1] for run in runs] == ["run"] * 7
    assert {tuple(run[3:5]) for run in runs} == {("--on", "inline")}
    folders = [run[run.index("--out") + 1] for run in runs]
    assert comparison == ["crossover", "compare", *folders, "--out", "results/comparison"]


def test_one_is_run_alone() -> None:
    assert called("run", "ARCH=all_reduce") == [
        ["crossover", "run", "config/all-reduce.yaml", "--on", "local", "--out", "results/all-reduce"]
    ]

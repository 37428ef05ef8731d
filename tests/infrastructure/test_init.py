"""INIT as Lambda goes through it: AWS's own runtime client in a bare process, from the files of the zip, up to its first question for work.

The cloud on this machine cannot tell: its fork servers have torch loaded before a function starts.
"""

import ast
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from crossover.cli import plan
from crossover.simulation import calibration
from crossover.workflow.architecture import steps
from tests.infrastructure.cases import PLAIN, Case
from tests.infrastructure.conftest import Assembled

# Where the checkout is out of reach, as on Lambda, and numpy, which no layer has.
JUDGE = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
sys.modules["numpy"] = None
sys.path[:] = [each for each in sys.path if each.endswith((".zip", "-packages", "lib-dynload")) or each == os.path.dirname(os.__file__)]
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in repr(each)]
handler, folder = sys.argv[1:]
os.chdir(folder)
sys.path.insert(0, folder)
os.environ["LAMBDA_TASK_ROOT"] = folder
from awslambdaric import bootstrap

class Client:
    def wait_next_invocation(self):
        os.write(1, json.dumps(sorted(sys.modules)).encode())
        os._exit(0)

    def post_init_error(self, *error):
        os.write(2, repr(error).encode())
        os._exit(1)

bootstrap.run(handler, Client())
"""


def after_init(handler: str, folder: Path) -> set[str]:
    """Return the names of the modules that are loaded when a function with this handler has ended its INIT."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", JUDGE, handler, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def importing_torch(folder: Path) -> set[str]:
    """Return the names of the zip's modules that import torch at their top level."""
    return {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("*.py")
        for each in ast.parse(path.read_text()).body
        if (isinstance(each, ast.Import) and any(name.name.split(".")[0] == "torch" for name in each.names))
        or (isinstance(each, ast.ImportFrom) and str(each.module).split(".")[0] == "torch")
    }


@pytest.mark.slow
def test_a_function_that_computes_has_torch_when_init_ends_and_no_other_has(assembled: Assembled) -> None:
    """Check that torch and all modules of the zip that need it are imported at the end of INIT if the step computes, else no torch.

    So the first invocation imports none of them, and a snapshot holds them.
    """
    asked: dict[
        tuple[Path, str], tuple[str, bool]
    ] = {}  # a handler of each module of each zip decides it for all of them
    for case in (*PLAIN, "spirt fetching"):
        experiment = Case.of(case).experiment
        for step in steps(Case.of(case).architecture):
            made = assembled(case)  # once
            function = made.function(step.name)
            folder = made.asset(made.experiment, function["Code"])
            asked[folder, step.module] = f"{step.module}.{step.name}", step.needs_torch(experiment)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda each: after_init(each[1][0], each[0][0]), asked.items())
    assert {torch for _, torch in asked.values()} == {True, False}
    for (folder, _), (handler, torch), there in zip(asked, asked.values(), found, strict=True):
        assert ("torch" in there) is torch, f"{handler}: torch {'is not there' if torch else 'is there'} when INIT ends"
        assert importing_torch(folder) <= there, handler


def test_plan_warns_of_an_init_that_lambda_would_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that `plan` warns if loading torch exceeds Lambda's limit for INIT, except with SnapStart."""
    experiment, architecture = Case.of("all-reduce over s3").experiment, Case.of("all-reduce over s3").architecture
    assert plan.warn_of_slow_init(experiment, architecture) is None
    monkeypatch.setattr(calibration, "AWS", replace(calibration.AWS, init_torch_s=12.0))
    said = plan.warn_of_slow_init(experiment, architecture)
    assert (
        said is not None
        and "loading torch takes about 12 s, and Lambda stops an INIT after 10 s" in said
        and "takes 22 s" in said
    )
    snapped = replace(experiment, functions=replace(experiment.functions, snap_start=True))
    assert plan.warn_of_slow_init(snapped, architecture) is None

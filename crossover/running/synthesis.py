"""The cloud assembly of a local run, by a process of its own: the CDK and its Node would keep half a gigabyte that training needs."""

import json
import os
import subprocess
import sys
from pathlib import Path

from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.local import processes


def synthesized(experiment: Experiment, out: Path) -> Path:
    """`out` with the assembly in it. Raises ConfigError for what cannot be deployed, RuntimeError where the CDK itself fails."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cdk.synthesis", str(out)],
        input=json.dumps(experiment.resolved()),
        env={**os.environ, **processes.mark(), "PYTHONPATH": os.pathsep.join(each or os.getcwd() for each in sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == ConfigError.exit_code:
        raise ConfigError(done.stderr.strip())
    if done.returncode:
        raise RuntimeError(f"synthesis of {experiment.name} ended with exit code {done.returncode}:\n{done.stderr}")
    return out

"""The cloud assembly of a local run, by a process of its own: the CDK and its Node would keep half a gigabyte that training needs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from crossover import own_code
from crossover.errors import ConfigError, RunFailed
from crossover.experiment import Experiment
from crossover.local import processes


def synthesized(experiment: Experiment, out: Path) -> Path:
    """`out` with the assembly in it. Raises ConfigError for what cannot be deployed, RunFailed where the process or its Node is killed,
    RuntimeError where the CDK itself fails.
    """
    done = _python(
        "-P", "-m", "stacks.apart", str(out), *map(str, own_code.folders()), told=json.dumps(experiment.resolved())
    )
    if done.returncode == ConfigError.exit_code:
        raise ConfigError(done.stderr.strip())
    if done.returncode < 0:
        ended = processes.end_words(done.returncode)
        raise RunFailed(f"synthesis of {experiment.name}: the CDK was {ended}; nothing was started yet: run it again")
    if done.returncode:
        raise RuntimeError(f"synthesis of {experiment.name} ended with exit code {done.returncode}:\n{done.stderr}")
    return out


def _python(*arguments: str, told: str) -> subprocess.CompletedProcess[str]:
    """Python with these arguments and `told` on its standard input. If we are interrupted it ends at once, and the Node it may have started
    with it; what Node leaves then goes with its folder.
    """
    with processes.temporary_folder() as folder:
        environment = {**os.environ, **processes.mark(), "TMPDIR": str(folder)}
        environment["PYTHONPATH"] = os.pathsep.join(each or os.getcwd() for each in sys.path)
        with subprocess.Popen(
            [sys.executable, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            encoding="utf-8",
        ) as process:
            try:
                shown, errors = process.communicate(told)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, shown, errors)

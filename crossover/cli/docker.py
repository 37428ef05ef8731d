"""Docker builds functions' container images when a stack is deployed: whether it can is asked before anything costs money."""

import os
import platform
import re
import subprocess

from crossover.architecture import architecture_of, steps
from crossover.errors import MissingTool
from crossover.experiment import Experiment

OTHERWISE = "or set functions.packaging: layer, which needs no Docker"
ARM = ("aarch64", "arm64")
_PATIENCE_S = 60.0


def check_docker(experiment: Experiment) -> None:
    """Raise MissingTool where `functions.packaging: image` could not be built here; nothing for experiments without images."""
    if experiment.functions.packaging != "image" or not steps(architecture_of(experiment)):
        return
    program = os.environ.get("CDK_DOCKER", "docker")  # the CDK's own variable: finch, podman
    failure = _asked(program, "info")[0]
    if failure:
        raise MissingTool(
            f"functions.packaging: image is built with {program} when it is deployed, and {failure}; start it, {OTHERWISE}"
        )
    failure, words = _asked(program, "buildx", "inspect")
    platforms = re.search(r"^Platforms:(.*)$", words, re.MULTILINE)
    if platform.machine() in ARM or failure or not platforms or "linux/arm64" in platforms[1]:
        return
    raise MissingTool(
        f"functions.packaging: image is built for linux/arm64, and {program} here builds for{platforms[1]} alone; let it emulate ARM "
        f"(docker run --privileged --rm tonistiigi/binfmt --install arm64), {OTHERWISE}"
    )


def _asked(*command: str) -> tuple[str, str]:
    """(why it failed, or ""; its standard output)."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False, encoding="utf-8"
        )
    except FileNotFoundError:
        return "it is not on this machine", ""
    except subprocess.TimeoutExpired:
        return f"it did not answer in {_PATIENCE_S:.0f} s", ""
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"])[-1]
        return f"it does not answer: {said}", done.stdout
    return "", done.stdout

"""The programs that the cloud on one machine starts: asked for before anything is started, all at once."""

import shutil
from pathlib import Path

from crossover.errors import MissingTool

# What is looked for, and Debian's and Ubuntu's package that brings it.
PROGRAMS = {"redis-server": "redis-server", "epmd": "rabbitmq-server", "g++": "g++", "make": "make"}
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


def check() -> None:
    """Raises MissingTool naming every program that is missing and the command that installs them."""
    missing = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    if not RABBITMQ.exists():
        missing.add("rabbitmq-server")
    if missing:
        names = ", ".join(sorted(missing))
        raise MissingTool(
            f"{names}: not found on this machine; install with: apt-get install {' '.join(sorted(missing))}"
        )

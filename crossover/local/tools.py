"""The programs that the cloud on one machine starts: found here alone, and asked for before anything is started, all at once.

CROSSOVER_REDIS_SERVER and CROSSOVER_RABBITMQ_SERVER name other programs than the machine's own: another release, or Valkey. Beside another
rabbitmq-server lie the `erl` and `epmd` that it wants.
"""

import os
import shutil
from pathlib import Path

from crossover.errors import MissingTool

REDIS, RABBITMQ = "redis-server", "rabbitmq-server"
PACKAGES = {REDIS: REDIS, RABBITMQ: RABBITMQ, "g++": "g++", "make": "make"}  # program -> Debian's and Ubuntu's package
CHOSEN_BY = {REDIS: "CROSSOVER_REDIS_SERVER", RABBITMQ: "CROSSOVER_RABBITMQ_SERVER"}
_DEBIANS_RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the wrapper in sbin would switch the user


def find(program: str) -> str | None:
    """Its path, or None where this machine lacks it. Raises MissingTool where a variable names what is no program."""
    variable = CHOSEN_BY.get(program, "")
    if chosen := os.environ.get(variable):
        found = shutil.which(chosen)
        if found is None:
            raise MissingTool(f"{variable}={chosen}: no program there that can be executed")
        return str(Path(found).absolute())
    if program == REDIS:
        return shutil.which(REDIS) or shutil.which("valkey-server")
    if program == RABBITMQ:  # epmd comes with its Erlang
        return shutil.which(_DEBIANS_RABBITMQ) if shutil.which("epmd") else None
    return shutil.which(program)


def need(program: str) -> str:
    """Its path. Raises MissingTool with what to install."""
    found = find(program)
    if found is None:
        raise MissingTool(f"{program}: not found on this machine; install it with: apt-get install {PACKAGES[program]}")
    return found


def check() -> None:
    """Raises MissingTool naming every program that is missing and the command that installs them."""
    missing = sorted(package for program, package in PACKAGES.items() if find(program) is None)
    if missing:
        raise MissingTool(
            f"{', '.join(missing)}: not found on this machine; install with: apt-get install {' '.join(missing)}"
        )

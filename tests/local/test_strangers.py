"""What every architecture's run on this machine listens on, and what somebody else gets who asks there without its secrets."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from crossover.local.cloud import build_tensor_module
from crossover.local.servers import RedisServer
from crossover.workflow.architecture import Architecture, architectures, load
from crossover.workflow.infrastructure import uses_bus
from tests.conformance.servers import IN_MEMORY
from tests.local import kills, stranger
from tests.local.listening import Listening, find_listening_sockets
from tests.local.secrets_search import find_secrets, read_files
from tests.sampling import drawn

ROOT = Path(__file__).parents[2]
Ask = Callable[..., list[tuple[str, str]]]

_MAIN = """
import json, os, sys
from crossover.cli.main import main
from crossover.local.cloud import LocalCloud

destroy = LocalCloud.destroy

def paused(cloud, name=None):
    theirs = [each._variables for each in cloud.lambdas.environments()]
    secrets = [cloud.environment()["AWS_SECRET_ACCESS_KEY"]]
    secrets += [each["AWS_SECRET_ACCESS_KEY"] for each in theirs]
    secrets += [each["AWS_LAMBDA_RUNTIME_API"].partition("/")[2] for each in theirs]
    os.write(int(os.environ["TELL"]), json.dumps(secrets).encode() + b"\\n")
    sys.stdin.readline()
    destroy(cloud, name)

LocalCloud.destroy = paused
main()
"""
EXPECTED = {  # what stands around a run -> who listens for it
    "functions": {("command", "tcp")},
    "programs": {("command", "tcp")},
    "database": {("redis-server", "tcp"), ("redis-server", "unix")},
    "broker": {("broker", "tcp"), ("name server", "tcp")},
}


def list_parts(architecture: Architecture) -> set[str]:
    """Return the parts that an architecture's deployment has: functions, programs, database, broker."""
    stands = {
        "functions": architecture.run is not None or bool(architecture.machines),
        "programs": architecture.program is not None,
        "database": architecture.tensor_hosts != "none",
        "broker": uses_bus(architecture),
    }
    return {name for name, there in stands.items() if there}


NAMES = architectures()
SAMPLE = drawn([list_parts(load(name)) for name in NAMES])


@dataclass
class Run:
    """A run that waits at its end, while its functions, servers and stacks still exist. `owners`: kind of the process that was seen
    listening at each socket; `secrets`: the secrets that its processes accept.
    """

    main: "subprocess.Popen[str]"
    owners: dict[Listening, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)

    def list_sockets(self) -> list[tuple[str, Listening]]:
        """Return (kind of process, socket) of each socket at which the run's processes listen now."""
        kinds = {each.pid: each.kind for each in kills.list_children(self.main.pid)} | {self.main.pid: "command"}
        return [(kinds[each.pid], each) for each in find_listening_sockets(kinds)]


def write_experiment(architecture: str, folder: Path) -> Path:
    """Write a small experiment of one epoch into the folder, and return the file's path."""
    return kills.write_experiment(architecture, folder, epochs=1)


@contextmanager
def pause_at_end(config: Path, *more: str) -> Iterator[Run]:
    """Start a run, and yield it when it has reached its end and waits there; after the block it must end well. Its output and files lie
    beside `config`; `more`: further arguments of the command.
    """
    temporary, log = config.parent / "tmp", config.parent / "said"
    temporary.mkdir()
    hear, tell = os.pipe()
    with log.open("w") as said:
        main = subprocess.Popen(
            [sys.executable, "-c", _MAIN, "run", str(config), "--out", str(config.parent / "out"), *more],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(temporary), "TELL": str(tell)},
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            text=True,
            pass_fds=[tell],
        )
    os.close(tell)
    run = Run(main)
    try:
        with open(hear) as told:
            while not select.select([told], [], [], 0.05)[0]:
                run.owners.update((each, owner) for owner, each in run.list_sockets())
            secrets = told.readline()
        assert secrets, log.read_text()
        run.secrets = json.loads(secrets)
        yield run
        main.communicate("go on\n")
        assert main.returncode == 0, log.read_text()
    finally:
        main.kill()
        main.communicate()


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, int]:
    """Return the arity of every command of Redis and of the tensor module, by the command's name."""
    import redis

    with (
        RedisServer(tmp_path_factory.mktemp("redis"), module=build_tensor_module(), settings=IN_MEMORY) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        told = client.command().values()
    below = {each[0].decode(): each[1] for command in told for each in command.get("subcommands", [])}
    return {command["name"]: command["arity"] for command in told if not command.get("subcommands")} | below


@pytest.fixture
def ask() -> Iterator[Ask]:
    """Yield a function (kind, each, **more) that makes the attempts of one kind as a stranger at the socket `each` and returns (attempt,
    answer) pairs. `kind`: name of a function in tests/local/stranger.py, such as "redis"; `more`: its further arguments. The stranger's
    process ends with the test.
    """
    with stranger.start_stranger() as asked:
        yield lambda kind, each, **more: asked(kind, address=each.address, family=each.family, **more)


def find_admissions(owner: str, each: Listening, ask: Ask, *, node_port: str, commands: Mapping[str, int]) -> list[Any]:
    """Return the answers of a listening socket to a stranger that are no refusals; [] if it refused everything; a complaint if no attempt
    fits such a socket. `owner`: kind of its process; `node_port`: port of the broker's Erlang node; `commands`: arity of Redis's commands.
    """
    match owner, each.family:
        case "command", "tcp":
            return [said for said in ask("over_http", each) if said[1] != "403"]
        case "command", "unix datagrams":
            return [said for said in ask("datagram", each) if said[1] != "BrokenPipeError"]
        case "redis-server", _:
            answers = ask("redis", each, commands=commands)
            return [said for said in answers if not said[1].startswith(_OTHERWISE.get(said[0], "-NOAUTH"))]
        case "broker", "tcp" if each.address == node_port:
            expected = [("greeted", "sok N"), ("without the cookie", "hangs up")]
            return [said for said in ask("distribution", each) if said not in expected]
        case "broker", "tcp":
            return [said for said in ask("broker", each) if said[1] != "ProbableAuthenticationError"]
        case "name server", "tcp":
            # The name and the port of the broker's node, which asks for its cookie; nothing that it could be made to do.
            answers = dict(ask("names", each))
            return [] if node_port in answers.pop("names") and set(answers.values()) <= {"NO", ""} else [answers]
    return [f"{owner} listens on {each}, and nobody has asked there"]


_OTHERWISE = {  # Redis' word where it is not that nobody has logged in
    "connect": "PermissionError",  # the socket in the file system
    "auth": "-WRONGPASS",
    "debug": "-ERR DEBUG command not allowed",
    **dict.fromkeys(("module|load", "module|loadex", "module|unload"), "-ERR MODULE command not allowed"),
    "exec": "-EXECABORT",
    "quit": "+OK",  # he may leave
    "reset": "+RESET",
}


def find_port_of_node(there: list[tuple[str, Listening]], ask: Ask) -> str:
    """Return the port of the broker's node as the name server tells it; "" if there is no name server."""
    for owner, each in there:
        if owner == "name server":
            return dict(ask("names", each))["names"].split()[-1]
    return ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=() if n in SAMPLE else pytest.mark.deep) for n, name in enumerate(NAMES)],
)
def test_nobody_is_let_in(architecture: str, ask: Ask, commands: Mapping[str, int], tmp_path: Path) -> None:
    """Try every socket of a waiting run as a stranger: all refuse him, they are the expected ones on this machine only, and no command line
    or file shows a secret.
    """
    with pause_at_end(write_experiment(architecture, tmp_path)) as run:
        there = run.list_sockets()
        node_port = find_port_of_node(there, ask)
        answers = {
            f"{o} {e.family} {e.address}": find_admissions(o, e, ask, node_port=node_port, commands=commands)
            for o, e in there
        }
        commands_of = [(str(each), _command(each.pid)) for each in kills.list_children(run.main.pid)]
        told = find_secrets(run.secrets, [*commands_of, *read_files(tmp_path)])
    assert {where: said for where, said in answers.items() if said} == {}
    kinds = {(owner, each.family) for owner, each in there}
    assert kinds >= set().union(*(EXPECTED[name] for name in list_parts(load(architecture))))
    assert {(owner, each.family) for each, owner in run.owners.items()} <= kinds | {("broker", "udp")}, "asked too late"
    assert [(owner, each) for each, owner in run.owners.items() if each.beyond and each.family == "tcp"] == []
    assert run.secrets and told == []


@pytest.mark.slow
@pytest.mark.deep
def test_members_of_a_collective_meet_on_this_machine_alone(tmp_path: Path) -> None:
    """Run GPU programs with torch.distributed, which asks nobody who he is: no socket can be reached from other machines."""
    with pause_at_end(write_experiment("gpu", tmp_path), "--set", "gpu.exchange=distributed") as run:
        assert "program" in run.owners.values()
        assert [(owner, each) for each, owner in run.owners.items() if each.beyond] == []


def _command(pid: int) -> bytes:
    """Return the command line of the process, its arguments separated by zero bytes."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()

"""Servers of our own: what is missing is told, what fails shows the server's last words, what ends leaves nothing."""

import socket
from pathlib import Path

import pytest

from crossover.errors import MissingTool, RunFailed
from crossover.local import servers
from crossover.local.servers import RabbitServer, RedisServer
from tests.conformance.servers import IN_MEMORY


def alive(pid: int) -> bool:
    """Return True if the process exists, as a zombie too."""
    return Path(f"/proc/{pid}").exists()


def test_a_missing_program_is_named_with_the_line_that_installs_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a missing server program is an error with the command that installs it."""
    monkeypatch.setenv("PATH", "/nowhere")
    for variable in servers.CHOSEN_BY.values():
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(MissingTool, match="apt-get install redis-server"):
        RedisServer(folder / "missing")
    with pytest.raises(MissingTool, match="apt-get install rabbitmq-server"):
        RabbitServer(folder / "missing", username="u", password="p")


@pytest.mark.parametrize("program", servers.CHOSEN_BY)
def test_another_program_that_is_not_there_is_named_with_its_variable(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a program chosen by an environment variable that does not exist is an error with the variable's name."""
    variable = servers.CHOSEN_BY[program]
    monkeypatch.setenv(variable, "/nowhere/server")
    with pytest.raises(MissingTool, match=f"{variable}=/nowhere/server: no program"):
        servers.check_programs()


def test_a_machine_with_valkey_alone_runs_it(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that valkey-server is run if there is no redis-server."""
    valkey = tmp_path / "valkey-server"  # under its name, whatever server it is
    valkey.write_text(f'#!/bin/sh\nexec "{servers.require_program(servers.REDIS)}" "$@"\n')
    valkey.chmod(0o755)
    monkeypatch.delenv(servers.CHOSEN_BY[servers.REDIS], raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with RedisServer(folder / "valkey-alone", settings=IN_MEMORY) as server:
        assert alive(server.pid)


def test_a_module_that_does_not_load_shows_the_servers_words(folder: Path) -> None:
    """Check that a module that does not load is an error with what the server said."""
    with pytest.raises(RunFailed, match=r"no-such-module\.so"):
        RedisServer(folder / "bad-module", module=Path("no-such-module.so"))


def test_a_port_that_is_taken_is_chosen_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a server gets another port if the chosen one is taken."""
    with RedisServer(folder / "first", settings=IN_MEMORY) as first:
        chosen, free_port = iter([first.port, first.port]), servers.find_free_port
        monkeypatch.setattr(servers, "find_free_port", lambda: next(chosen, None) or free_port())
        with RedisServer(folder / "second", settings=IN_MEMORY) as second:
            assert second.port != first.port
            assert alive(first.pid) and alive(second.pid)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.deep), 2], ids=["listener", "mapper", "node"])
def test_any_port_of_a_broker_is_chosen_again(folder: Path, monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    """Check that a broker gets other ports if any of the chosen ones is taken."""
    calls, free_ports = [], servers.find_free_ports

    def chosen(count: int) -> list[int]:
        """Return free ports; the first time, one of them is a port that is taken."""
        calls.append(free_ports(count))
        if len(calls) == 1:
            calls[0][lost] = taken.getsockname()[1]
        return calls[-1]

    monkeypatch.setattr(servers, "find_free_ports", chosen)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        RabbitServer(folder / f"lost-{lost}", username="u", password="p") as broker,
    ):
        assert len(calls) == 2
        assert broker.port == calls[lost == 0][0]


def test_a_stopped_server_is_gone_and_stopping_twice_is_harmless(folder: Path) -> None:
    """Check that a stopped server's process does not exist, and that stop can be called twice."""
    with RedisServer(folder / "stopped", settings=IN_MEMORY) as server:
        server.stop()
        assert not alive(server.pid)
        server.stop()


def test_a_folder_with_a_long_name_can_hold_a_server(folder: Path) -> None:
    """Check that a server's socket works although its folder's path is too long for one, and is removed at the end."""
    with RedisServer(folder / ("long" * 30), settings=IN_MEMORY) as server:
        path = Path(server.socket_url.removeprefix("unix://"))
        assert path.is_socket()
    assert not path.exists()


def test_the_password_is_for_its_owner_only(folder: Path) -> None:
    """Check that the password is in a file of the owner only, and not in the command line, the environment or the log."""
    with RedisServer(folder / "owned", password="hunter2hunter2", settings=IN_MEMORY) as server:
        assert (folder / "owned" / "redis.conf").stat().st_mode & 0o077 == 0
        told = [Path(f"/proc/{server.pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
        told.append((folder / "owned" / "redis.log").read_bytes())
    assert not any(b"hunter2" in each for each in told)
    assert (
        servers.MARK.encode() in told[1]
    )  # redis-server would overwrite it by its title: then the watchdog finds it no more

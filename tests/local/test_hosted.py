"""Servers of the template's hosts and brokers: none outlives the end, whatever it comes between."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossover.errors import Lost, RunFailed
from crossover.local import cloud
from crossover.local import servers as processes
from crossover.local.cloud import Servers


@pytest.mark.parametrize("kind", ["RedisServer", "RabbitServer"])
def test_a_server_that_is_starting_at_the_end_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """End the servers while one is starting: that one is stopped too, and its address is not known."""
    servers, stopped = Servers(tmp_path), list[str]()

    def start(*_: Any, **__: Any) -> Any:
        """End all servers, then return a stand-in for the started one."""
        servers.stop()
        return SimpleNamespace(url="redis://127.0.0.1:1", stop=lambda: stopped.append(kind))

    monkeypatch.setattr(cloud, kind, start)
    monkeypatch.setattr(cloud, "build_tensor_module", lambda: None)
    if kind == "RedisServer":
        servers.start_instance("i-1", {cloud.ROLE_TAG: "redis"}, "10.0.0.1", "")
    else:
        servers.start_broker("broker", "u", "p")
    assert stopped == [kind]
    assert servers.replace_addresses("rediss://10.0.0.1:6379") == "rediss://10.0.0.1:6379"


def test_nothing_starts_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a server after the end: RunFailed at once, so that a stack that is still being made fails."""
    servers = Servers(tmp_path)
    servers.stop()
    monkeypatch.setattr(cloud, "RedisServer", None)
    monkeypatch.setattr(cloud, "RabbitServer", None)
    with pytest.raises(RunFailed, match="has ended"):
        servers.start_instance("i-1", {cloud.ROLE_TAG: "redis"}, "10.0.0.1", "")
    with pytest.raises(RunFailed, match="has ended"):
        servers.start_broker("broker", "u", "p")


def test_a_broker_that_is_started_again_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reboot a broker, as Amazon MQ does at maintenance: checks for lost servers accept that it is away, but not that it ends later."""
    servers, done = Servers(tmp_path), list[str]()

    class Broker:
        """A RabbitMQ server without a process. Servers are checked for losses while it is stopped and before it is started."""

        url, program, logs = "", "rabbitmq-server", ()
        status: int | None = None

        def __init__(self, *_: Any, **__: Any) -> None:
            """Do nothing."""

        def stop(self) -> None:
            """End with status 0 and check that the servers do not count it as lost."""
            self.status = 0
            servers.check(tmp_path / "log")
            done.append("stopped")

        def start(self) -> None:
            """Check that the servers do not count it as lost, and run again."""
            servers.check(tmp_path / "log")
            self.status = None
            done.append("started")

    monkeypatch.setattr(cloud, "RabbitServer", Broker)
    servers.start_broker("broker", "u", "p")
    servers.reboot_broker("broker")
    assert done == ["stopped", "started"]
    servers.check(tmp_path / "log")
    servers.brokers["broker"].status = 1  # type: ignore[misc]
    with pytest.raises(Lost):
        servers.check(tmp_path / "log")


def test_a_server_that_ends_by_itself_is_told_with_its_log(tmp_path: Path) -> None:
    """Kill a server: the check raises Lost, which names how it ended, and copies its log; once nobody needs the server,
    the check passes.
    """
    servers, written = Servers(tmp_path), tmp_path / "redis.log"
    written.write_text("its last words")
    child = processes.start_process(["sleep", "3600"])

    class Server(SimpleNamespace):
        """A server whose status is that of the process `child`."""

        status = property(lambda self: child.poll())

    logs = [written, tmp_path / "none.log"]
    servers.redis["i-1"] = Server(url="", program="redis-server", logs=logs, stop=lambda: None)  # type: ignore[assignment]
    log = tmp_path / "out" / "server.log"
    servers.check(log)
    assert not log.exists()
    child.kill()
    child.wait()
    with pytest.raises(Lost, match=rf"redis-server \(i-1\) has ended \(killed by SIGKILL\).*its log: {log}$"):
        servers.check(log)
    assert log.read_text() == "its last words"
    servers.stop_instance("i-1")  # from then on nobody needs it
    servers.check(log)

"""Servers of the template's hosts and brokers: none outlives the end, whatever it comes between."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossover.local import hosted
from crossover.local.hosted import Servers


@pytest.mark.parametrize("kind", ["RedisServer", "RabbitServer"])
def test_a_server_that_is_starting_at_the_end_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    servers, stopped = Servers(tmp_path), list[str]()

    def start(*_: Any, **__: Any) -> Any:
        servers.stop()
        return SimpleNamespace(url="redis://127.0.0.1:1", stop=lambda: stopped.append(kind))

    monkeypatch.setattr(hosted, kind, start)
    monkeypatch.setattr(hosted, "tensor_module", lambda variant: None)
    if kind == "RedisServer":
        servers.start_instance("i-1", {hosted.ROLE_TAG: "redis"}, "10.0.0.1", "")
    else:
        servers.start_broker("broker", "u", "p")
    assert stopped == [kind]
    assert servers.reachable("rediss://10.0.0.1:6379") == "rediss://10.0.0.1:6379"

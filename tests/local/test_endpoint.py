"""The end of the AWS endpoint: what was asked for is finished first."""

import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from crossover.local import endpoint, permissions
from crossover.local.endpoint import Endpoint


def test_a_request_under_way_is_answered_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client may have gone (Ctrl-C while a stack is made); cut off, the work would go on without the seams."""
    order, asked, ending = list[str](), threading.Event(), threading.Event()

    def at_work(*_: Any) -> None:
        asked.set()
        assert ending.wait(60)
        order.append("answered")

    wait = endpoint._InFlight.wait

    def waiting(self: Any, timeout_s: float) -> None:
        ending.set()
        wait(self, 60)

    monkeypatch.setattr(permissions, "check", at_work)
    monkeypatch.setattr(endpoint._InFlight, "wait", waiting)
    running = Endpoint(tmp_path / "logs" / "endpoint.log")
    client = threading.Thread(target=_ask, args=(running.url,))
    client.start()
    assert asked.wait(60)
    running.stop()
    order.append("ended")
    client.join(60)
    assert order == ["answered", "ended"]


def test_a_failure_after_the_workspace_has_gone_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "logs" / "endpoint.log"

    def fail(*_: Any) -> None:
        log.parent.rmdir()
        raise KeyError("no seam any more")

    monkeypatch.setattr(permissions, "check", fail)
    running = Endpoint(log)
    with pytest.raises(urllib.error.HTTPError, match="400") as failed:
        urllib.request.urlopen(running.url)
    failed.value.close()  # with the connection that its answer holds
    running.stop()
    assert capfd.readouterr().err == ""


def _ask(url: str) -> None:
    try:
        urllib.request.urlopen(url).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:  # whatever it says
        return

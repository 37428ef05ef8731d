"""A spot instance's notice: polled with a token, on spot instances alone, and answered by giving the rank back."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from crossover.runtime import use
from crossover.stores.keys import Keys
from crossover.stores.memory import MemoryObjectStore
from crossover.stores.protocols import Traffic
from crossover.training.fleet import InstanceReclaimed, Membership, ServingSettings, announce, serve
from crossover.training.interruption import NOTICE_S, has_notice
from crossover.workflow.context import Context
from tests.clocks import Passing

KEYS = Keys("run")


class Metadata(ThreadingHTTPServer):
    """An instance metadata service that insists on tokens. `notice`: what it announces."""

    notice, looks = b"", 0

    def __init__(self) -> None:
        """Listen on a free port of this machine."""
        super().__init__(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    """The handler of one request to the instance metadata service: it gives a token, and with the token the spot notice."""

    server: Metadata

    def do_PUT(self) -> None:
        """Answer with the token, or 400 without the header of its time to live."""
        asked = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self._say(200 if asked else 400, b"secret")

    def do_GET(self) -> None:
        """Answer with the notice, 404 if there is none, or 401 without the token; count the request."""
        self.server.looks += 1
        found = self.server.notice if self.path == "/latest/meta-data/spot/instance-action" else b""
        if self.headers["X-aws-ec2-metadata-token"] != "secret":
            self._say(401, b"")
        else:
            self._say(200 if found else 404, found)

    def _say(self, status: int, body: bytes) -> None:
        """Send the status and the body."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    """Yield an instance metadata service that answers in a thread."""
    with Metadata() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def member(metadata: str) -> Membership:
    """Return the membership of rank 0. `metadata`: address of the metadata service on a spot instance, "" on any other."""
    settings = ServingSettings.from_environment(
        {"CROSSOVER_FLEET": "f"} | ({"CROSSOVER_METADATA": metadata} if metadata else {})
    )
    return Membership(MemoryObjectStore(Traffic()), run="run", members=1, rank=0, attempt=0, settings=settings)


def test_a_notice_is_seen_once_the_service_has_one(metadata: Metadata) -> None:
    """A program on a spot instance asks the metadata service once for each check, and is interrupted from the check that finds a notice."""
    on_spot = member(metadata.url)
    on_spot.check_for_notice()
    assert metadata.looks == 1 and not on_spot.interrupted
    metadata.notice = b'{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'
    on_spot.check_for_notice()
    assert on_spot.interrupted


def test_without_a_metadata_service_nobody_is_asked(metadata: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program without a metadata service's URL asks nobody for notices."""
    monkeypatch.setattr("crossover.training.fleet.has_notice", lambda _: pytest.fail("asked"))
    member("").check_for_notice()


def test_a_service_that_does_not_answer_announces_nothing(metadata: Metadata) -> None:
    """There is no notice if the metadata service does not answer."""
    url = metadata.url
    metadata.server_close()
    assert not has_notice(url)


def test_the_rank_is_given_back_and_the_instance_keeps_its_place_until_it_is_taken() -> None:
    """A program whose instance is reclaimed gives back its rank without a failure, and sleeps twice the notice time before it ends."""
    store = MemoryObjectStore(Traffic())
    announce(store, fleet="f", run="run", members=1)
    resources: Any = SimpleNamespace(clients=SimpleNamespace(objects=lambda traffic: store))

    def body(ctx: Context, membership: Membership) -> None:
        """Raise InstanceReclaimed."""
        raise InstanceReclaimed("taken")

    with use(passing := Passing()):
        serve(resources, ServingSettings(fleet="f", idle_s=5.0), body)
    assert passing.slept_s == [2 * NOTICE_S]
    assert json.loads(store.get(KEYS.heartbeat(0)))["over"]
    assert not store.exists(KEYS.lease(0, 1)) and not store.list(KEYS.failures)

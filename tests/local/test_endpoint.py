"""Whom the AWS endpoint answers, and its end: what was asked for is finished first."""

import http.client
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from crossover.local import endpoint, permissions
from crossover.local.endpoint import OPERATOR, AccessKeys, Endpoint
from tests.local.stranger import sign_request


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Yield an endpoint that answers on a port; it is stopped afterwards."""
    running = Endpoint(tmp_path_factory.mktemp("endpoint") / "endpoint.log")
    yield running
    running.stop()


def test_a_log_on_a_full_disk_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    """Write a log to a full disk: nothing is printed, where Python would print a traceback for each line."""
    log, file = logging.Logger("full"), endpoint.LogFile("/dev/full")
    log.addHandler(file)
    log.error("an execution failed")
    file.close()
    assert "".join(capfd.readouterr()) == ""


def ask(running: Endpoint, method: str, path: str, **headers: str) -> tuple[int, list[str]]:
    """Return the status of the answer, and the names of those of its headers that would let a page of another origin read it."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, [name for name, _ in answer.getheaders() if name.lower().startswith("access-control")]


def sign_s3_request(
    running: Endpoint, path: str, *, method: str = "GET", host: str = "", secret: str = "", key: str = OPERATOR
) -> dict[str, str]:
    """Return the headers of an S3 request that is signed with `key`. `secret`: by default the key's own; `host`: by default the
    endpoint's address.
    """
    url = f"http://{host or f'127.0.0.1:{running.port}'}{path}"
    return sign_request(method, url, "s3", key, secret or running.keys.secret(key)) | ({"Host": host} if host else {})


@pytest.mark.parametrize("key", [OPERATOR, "role.any"])
@pytest.mark.parametrize("path", ["/", "/b%20c/d%2Fe?prefix=%C3%A9&list-type=2", "/b//c/../d~?x&a="])
def test_who_signs_with_a_key_of_the_cloud_is_let_in(
    running: Endpoint, key: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Send a request that is signed with a key of the cloud, for several paths: it gets past the signature check."""
    monkeypatch.setattr(permissions, "check_permission", lambda *_: permissions.Denied("418 Let in", "text/plain", b""))
    assert ask(running, "GET", path, **sign_s3_request(running, path, key=key)) == (418, [])


def test_every_other_request_is_refused(running: Endpoint) -> None:
    """Send requests that are unsigned, wrongly signed, for another host, from a web page or to moto's own API: each is answered 403."""
    admin, right = "/moto-api/reset", sign_s3_request(running, "/")
    refused = {
        "unsigned": ask(running, "GET", "/"),
        "by what any stand-in takes": ask(running, "GET", "/", **sign_s3_request(running, "/", secret="local")),
        "by another cloud's key": ask(
            running, "GET", "/", **sign_s3_request(running, "/", secret=AccessKeys().secret(OPERATOR))
        ),
        "by the key of a role as the operator": ask(
            running, "GET", "/", **sign_s3_request(running, "/", secret=running.keys.secret("role.x"))
        ),
        "for something else": ask(running, "GET", "/bucket", **right),
        "with another header": ask(running, "GET", "/", **right | {"X-Amz-Date": "20260101T000000Z"}),
        "by a name": ask(running, "GET", "/", **sign_s3_request(running, "/", host=f"localhost:{running.port}")),
        "by a name that was rebound": ask(running, "GET", "/", **sign_s3_request(running, "/", host="rebound.example")),
        "from a page": ask(running, "GET", "/", **right, Origin="http://rebound.example"),
        "before a page asks": ask(running, "OPTIONS", "/", Origin="http://rebound.example"),
        "for what moto has beside the APIs": ask(
            running, "POST", admin, **sign_s3_request(running, admin, method="POST")
        ),
        "with an address in the line": ask(running, "GET", "@[/", **right),
        "with no signature": ask(running, "GET", "/", Authorization="AWS4-HMAC-SHA256 Credential=local"),
    }
    assert {how: answer for how, answer in refused.items() if answer != (403, [])} == {}


def test_a_role_that_was_assumed_has_keys_of_its_own(running: Endpoint) -> None:
    """Assume a role, as the CDK's command line does: requests signed with its secret are answered, others refused."""
    sts, admin = running.session().client("sts"), "arn:aws:iam::123456789012:role/cdk"
    given = sts.assume_role(RoleArn=admin, RoleSessionName="cdk")["Credentials"]
    key, secret = given["AccessKeyId"], given["SecretAccessKey"]
    assert ask(running, "GET", "/", **sign_s3_request(running, "/", key=key, secret=secret))[0] == 200
    assert ask(running, "GET", "/", **sign_s3_request(running, "/", key=key, secret="local")) == (403, [])


def test_the_body_is_signed_too(running: Endpoint) -> None:
    """Change a signed request's body on its way: it is refused, although the client sends no checksum of the body."""
    client = running.session().client("sts")

    def altered(request: Any, **_: Any) -> None:
        """Change the request's body before it is sent."""
        request.body = request.body.replace("Caller", "Killer")

    assert client.get_caller_identity()["Account"]
    client.meta.events.register("before-send", altered)
    with pytest.raises(ClientError, match="answers only requests with its own credentials"):
        client.get_caller_identity()


def test_a_request_under_way_is_answered_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the endpoint while a request is answered: the request is finished first, even if its client has left."""
    order, asked, ending = list[str](), threading.Event(), threading.Event()

    def at_work(*_: Any) -> None:
        """Work on a request until the endpoint's end has begun, and note the answer."""
        asked.set()
        assert ending.wait(60)
        order.append("answered")

    wait = endpoint._InFlight.wait

    def waiting(self: Any, timeout_s: float) -> None:
        """Note that the end has begun, and wait for the requests."""
        ending.set()
        wait(self, 60)

    monkeypatch.setattr(permissions, "check_permission", at_work)
    monkeypatch.setattr(endpoint._InFlight, "wait", waiting)
    running = Endpoint(tmp_path / "logs" / "endpoint.log")
    client = threading.Thread(target=ask, args=(running, "GET", "/"), kwargs=sign_s3_request(running, "/"))
    client.start()
    assert asked.wait(60)
    running.stop()
    order.append("ended")
    client.join(60)
    assert order == ["answered", "ended"]


def test_a_failure_after_the_workspace_has_gone_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Let a request fail after the log's folder was deleted: it is answered 400, and nothing is printed."""
    log = tmp_path / "logs" / "endpoint.log"

    def fail(*_: Any) -> None:
        """Delete the log's folder and raise KeyError."""
        log.parent.rmdir()
        raise KeyError("no seam any more")

    monkeypatch.setattr(permissions, "check_permission", fail)
    running = Endpoint(log)
    assert ask(running, "GET", "/", **sign_s3_request(running, "/")) == (400, [])
    running.stop()
    assert capfd.readouterr().err == ""

"""Somebody else on this machine: he knows where something listens, has no secret of it, and asks.

    python -m tests.local.stranger      a line {"kind", "address", ...} is answered by one: [[what he asked, what he was told], ...]

Started as root he becomes another user once he has imported what he needs.
"""

import encodings.idna  # noqa: F401  # looked up by name once he cannot read the library any more
import hashlib
import http.client
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pika
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from pika.exceptions import AMQPError

NOBODY = 65534
LIMIT_S = 30.0
FOREIGN = {"Host": "rebound.example", "Origin": "http://rebound.example"}
PREFLIGHT = {"Origin": "http://rebound.example", "Access-Control-Request-Method": "POST"}
Answers = Iterator[tuple[str, str]]


def over_http(address: str, **_: Any) -> Answers:
    """Try HTTP requests without valid credentials; yield (request, status and the headers that would let a page of another origin read the
    answer).
    """
    create = "/2015-03-31/functions"
    asked: list[tuple[str, str, Mapping[str, str]]] = [
        ("GET", "/", {}),
        ("GET", "/", FOREIGN),
        ("OPTIONS", create, PREFLIGHT),
        ("POST", "/moto-api/reset", {"Content-Type": "text/plain"}),
        ("POST", "/moto-api/reset", FOREIGN),
        ("GET", "/latest/meta-data/iam/security-credentials/", {}),
        ("GET", "/2018-06-01/runtime/invocation/next", {}),
        ("GET", "/guess/2018-06-01/runtime/invocation/next", FOREIGN),
        ("POST", "/2018-06-01/runtime/init/error", {}),
        ("POST", create, sign_request("POST", f"http://127.0.0.1:{address}{create}", "lambda", "local")),
        ("GET", "/bucket", sign_request("GET", f"http://127.0.0.1:{address}/bucket", "s3", "role.nobody")),
        ("GET", "/bucket?X-Amz-Credential=local%2F20260101%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Signature=0", {}),
    ]
    for method, path, headers in asked:
        connection = http.client.HTTPConnection("127.0.0.1", int(address), timeout=LIMIT_S)
        try:
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            answer.read()
            shared = [name for name, _ in answer.getheaders() if name.lower().startswith("access-control")]
            yield f"{method} {path} {sorted(headers)}", f"{answer.status} {shared or ''}".strip()
        except OSError as error:
            yield f"{method} {path} {sorted(headers)}", repr(error)
        finally:
            connection.close()


def sign_request(method: str, url: str, service: str, access_key: str, secret: str = "local") -> dict[str, str]:
    """Return the headers of a signed AWS request. `secret`: by default the one that any double of AWS accepts."""
    request = AWSRequest(method=method, url=url, data=b"")
    signer = S3SigV4Auth if service == "s3" else SigV4Auth
    signer(Credentials(access_key, secret), service, "us-east-1").add_auth(request)
    return dict(request.headers.items())


def redis(address: str, *, family: str, commands: Mapping[str, int], **_: Any) -> Answers:
    """Try every Redis command without a password; yield (command, start of the answer), or ("connect", the error's name) if the socket may
    not be opened. `commands`: arity by name.
    """
    try:
        for name, arity in commands.items():
            with _connect(family, address) as client:
                client.sendall(_resp([*name.split("|"), *["x"] * (abs(arity) - len(name.split("|")))]))
                yield name, client.recv(200).decode(errors="replace")
    except PermissionError as error:
        yield "connect", type(error).__name__


def _connect(family: str, address: str) -> socket.socket:
    """Return a socket connected to a TCP port of this machine or to a unix socket."""
    if family == "tcp":
        return socket.create_connection(("127.0.0.1", int(address)), LIMIT_S)
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(LIMIT_S)
    try:
        client.connect(address)
    except OSError:
        client.close()
        raise
    return client


def _resp(words: list[str]) -> bytes:
    """Return a command as Redis's protocol encodes it."""
    return f"*{len(words)}\r\n".encode() + b"".join(f"${len(word)}\r\n{word}\r\n".encode() for word in words)


def datagram(address: str, **_: Any) -> Answers:
    """Try to send a datagram to a unix socket; yield ("send", "taken" or the error's name)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        try:
            client.sendto(b"x", address.replace("@", "\0", 1))
            yield "send", "taken"
        except OSError as error:
            yield "send", type(error).__name__


def broker(address: str, **_: Any) -> Answers:
    """Try to log in to RabbitMQ with common passwords; yield (user, "let in" or the error's name)."""
    for user, password in (("guest", "guest"), ("crossover", "crossover"), ("", "")):
        login = pika.PlainCredentials(user, password)
        try:
            pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(address), credentials=login)).close()
            yield user, "let in"
        except AMQPError as error:
            yield user, type(error).__name__


def distribution(address: str, **_: Any) -> Answers:
    """Try to join Erlang's distribution without its cookie; yield the answers to the greeting and to a wrong digest."""
    with socket.create_connection(("127.0.0.1", int(address)), LIMIT_S) as node, node.makefile("rb") as words:
        name = b"stranger@localhost"
        flags = 0x0000_000D_07DF_7FBD  # OTP 25's own
        _send_message(node, b"N" + flags.to_bytes(8, "big") + b"\0\0\0\1" + len(name).to_bytes(2, "big") + name)
        status, challenge = _read_message(words), _read_message(words)
        digest = hashlib.md5(b"guess" + str(int.from_bytes(challenge[9:13], "big")).encode()).digest()
        _send_message(node, b"r" + b"\0\0\0\1" + digest)
        yield "greeted", f"{status.decode()} {challenge[:1].decode()}"
        yield "without the cookie", _read_message(words).decode(errors="replace") or "hangs up"


def _send_message(node: socket.socket, words: bytes) -> None:
    """Send a message with its length in front, as Erlang's distribution protocol expects."""
    node.sendall(len(words).to_bytes(2, "big") + words)


def _read_message(words: BinaryIO) -> bytes:
    """Read one message of Erlang's distribution; b"" if the connection was closed."""
    try:
        return words.read(int.from_bytes(words.read(2), "big"))
    except ConnectionError:
        return b""


def names(address: str, **_: Any) -> Answers:
    """Try Erlang's name server; yield the answers to its requests to kill it, to stop a node, and for the names that it knows."""
    for what, request in (("kill", b"k"), ("stop", b"scrossover"), ("names", b"n")):
        with socket.create_connection(("127.0.0.1", int(address)), LIMIT_S) as server:
            _send_message(server, request)
            answer = b""
            while received := server.recv(4096):
                answer += received
            yield what, answer[4 if what == "names" else 0 :].decode(errors="replace")


ASK: Mapping[str, Callable[..., Answers]] = {
    each.__name__: each for each in (over_http, redis, datagram, broker, distribution, names)
}


@contextmanager
def start_stranger() -> Iterator[Callable[..., list[tuple[str, str]]]]:
    """Start a stranger, a process without privileges, and yield a function that lets it make one kind of attempt and returns its (attempt,
    answer) pairs. The process ends with the block.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "tests.local.stranger"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        told, heard = process.stdin, process.stdout

        def ask(kind: str, **about: Any) -> list[tuple[str, str]]:
            """Let the stranger's process make one kind of attempt, and return its (attempt, answer) pairs."""
            told.write(json.dumps({"kind": kind, **about}) + "\n")
            told.flush()
            return [(what, answer) for what, answer in json.loads(heard.readline())]

        yield ask
        told.close()


def main() -> None:
    """Drop all privileges if this process has them, then make the attempts that standard input asks for, one JSON line each, and print the
    answers.
    """
    logging.disable()
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(list(ASK[asked.pop("kind")](**asked))), flush=True)


if __name__ == "__main__":
    main()

"""What a booting host talks to, on one port of this machine: metadata, the AWS calls of `cdk/boot/cloud.py`, CloudFormation's handle."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

IDENTITY = {
    "AccessKeyId": "AKIDEXAMPLE",
    "SecretAccessKey": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "Token": "session==",
}
METADATA = {
    "instance-id": "i-0123",
    "local-ipv4": "127.0.0.1",
    "iam/security-credentials/": "the-role\n",
    "iam/security-credentials/the-role": json.dumps(IDENTITY),
}


class FakeAws:
    """An HTTP server with the AWS services that a booting host calls. `objects`: contents of S3 by key; `calls`: names of the calls in
    order; `signals`, `logs`: what was received; `fails`: names of calls that are refused; `listening`: socket to answer at, by default a
    new one on this machine.
    """

    def __init__(self, listening: socket.socket | None = None) -> None:
        """Start the server in a thread; it is reached at `url` until `close`."""
        self.objects: dict[str, bytes] = {}
        self.secret = "s3cret"
        self.calls: list[str] = []
        self.signals: list[dict[str, str]] = []
        self.logs: dict[str, list[str]] = {}
        self.fails: set[str] = set()
        self.unsigned: list[str] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            """The handler of one HTTP request, which lets the fake answer it."""

            def do_GET(self) -> None:
                """Let the fake answer the request."""
                fake.answer(self)

            do_PUT = do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing."""

        listening = listening or socket.create_server(("127.0.0.1", 0))
        self._server = ThreadingHTTPServer(listening.getsockname(), Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listening
        self.url = "http://{}:{}".format(*listening.getsockname())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which `cloud.py` finds this fake, as AWS's own tools would."""
        return {"AWS_ENDPOINT_URL": self.url, "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.url}

    def close(self) -> None:
        """Stop the server and wait for its end."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one HTTP request."""
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        status, answer = self._route(request, body)
        request.send_response(status)
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)

    def _route(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        """Return (HTTP status, body) for a request, and record it. Requests must have the token or signature that AWS would require."""
        path = request.path
        if path == "/latest/api/token":
            return 200, b"token"
        if path.startswith("/latest/meta-data/"):
            if request.headers["X-aws-ec2-metadata-token"] != "token":
                return 401, b""
            return 200, METADATA[path.removeprefix("/latest/meta-data/")].encode()
        if path == "/signal":
            self.signals.append(json.loads(body))
            return (200, b"") if request.headers["Content-Type"] == "" else (403, b"SignatureDoesNotMatch")
        name, act = self._action(request, body)
        self.calls.append(name)
        if not (request.headers["Authorization"] or "").startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"):
            self.unsigned.append(name)
        return (400, b'{"__type": "AccessDeniedException"}') if name.split(" ")[0] in self.fails else act()

    def _action(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[str, Any]:
        """Return (name of the AWS call, function that performs it and returns (HTTP status, body)) for a request."""
        target = request.headers["X-Amz-Target"]
        if target:
            given = json.loads(body)
            action = target.rpartition(".")[2]
            return action, lambda: self._json(action, given)
        if request.path == "/":
            form = dict(urllib.parse.parse_qsl(body.decode()))
            return " ".join([form["Action"], form["InstanceId"], form["ShouldDecrementDesiredCapacity"]]), lambda: (
                200,
                b"<x/>",
            )
        key = urllib.parse.unquote(request.path).lstrip("/")
        if request.command == "PUT":
            return f"PutObject {key}", lambda: (self.objects.__setitem__(key, body), (200, b""))[1]
        return f"GetObject {key}", lambda: (200, self.objects[key]) if key in self.objects else (404, b"NoSuchKey")

    def _json(self, action: str, given: dict[str, Any]) -> tuple[int, bytes]:
        """Perform a call of one of AWS's JSON APIs, and return (HTTP status, body)."""
        if action == "GetSecretValue":
            return 200, json.dumps({"SecretString": self.secret}).encode()
        if action == "PutLogEvents":
            self.logs[f"{given['logGroupName']} {given['logStreamName']}"] = [
                each["message"] for each in given["logEvents"]
            ]
        return 200, b""


class Machine:
    """A folder that acts as the root of a booting machine, with a fake AWS. `stubs`: the machine's programs, by name."""

    def __init__(self, root: Path, stubs: Mapping[str, str], *folders: str) -> None:
        """Make `root` with `bin` and `folders`, write each of `stubs`, by name, as a Bash program into `bin`, and start a FakeAws."""
        self.root, self.aws = root, FakeAws()
        for folder in ("bin", *folders):
            (root / folder).mkdir(parents=True)
        for name, body in stubs.items():
            path = root / "bin" / name
            path.write_text(f"#!/bin/bash\n{body}\n")
            path.chmod(0o755)

    def here(self, text: str, folders: Iterable[str]) -> str:
        """Return the text with each of these folders moved below this machine's root."""
        for folder in folders:
            text = text.replace(folder, f"{self.root}{folder}")
        return text

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command with this machine's programs, root folder and AWS, for at most 100 seconds, and return the ended process."""
        stand_ins = {"HOST": str(self.root), "PYTHON": sys.executable, **self.aws.environment, **environment}
        return subprocess.run(
            ["timeout", "100", *command],
            env={**os.environ, "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", **stand_ins},
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self) -> list[str]:
        """Return the calls of this machine's programs, one line each."""
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []


def facts(**own: str) -> str:
    """Return the settings with which a boot script begins: those of every machine, and `own`."""
    common = {
        "REGION": "us-east-1",
        "LOGS": "/crossover/x/boot",
        "BOOT_S": "1200",
        "SESSION_AGENT": "3.3.1.0",
        "SESSION_AGENT_SHA256": hashlib.sha256(b"package").hexdigest(),
    }
    return "".join(f"{key}='{value}'\n" for key, value in (common | own).items())

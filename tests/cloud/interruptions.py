"""Interrupting a command at a call to AWS: a layer before the cloud on one machine counts an operator's calls and kills there."""

import io
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from crossover.local.cloud import LocalCloud

ROOT = Path(__file__).parents[2]
OPERATOR = "operator"  # the access key of the command under test; functions and the cloud itself have others


@dataclass(frozen=True)
class Point:
    """A moment at which a command is interrupted: at the n-th call of one kind, either before AWS acts on it (`before`), or after, with the
    answer lost.
    """

    call: str
    before: bool
    number: signal.Signals
    occurrence: int = 1

    def __str__(self) -> str:
        """Return the point as text, such as `SIGINT before s3 PUT 1`."""
        return f"{self.number.name} {'before' if self.before else 'after'} {self.call} {self.occurrence}"


class Interrupter:
    """A WSGI layer in front of a cloud that interrupts commands. `calls`: number of calls of each kind by the last command, in the order of
    their first occurrence.
    """

    def __init__(self, cloud: LocalCloud) -> None:
        """Put this layer in front of the cloud's server; until a point is chosen it passes each request on."""
        self._server: Any = cloud.endpoint._server
        self._application = self._server.app
        self._environment = cloud.endpoint.environment(OPERATOR)
        self._lock = threading.Lock()
        self._point: Point | None = None
        self._victim: subprocess.Popen[str] | None = None
        self.calls: Counter[str] = Counter()
        self._server.app = self._answer

    def run(self, *arguments: str, point: Point | None = None) -> tuple[int, str]:
        """Run a command, interrupted at `point`, and return its exit status and what it printed."""
        with self._lock:
            self._point, self.calls = point, Counter()
        environment = {
            **os.environ,
            **self._environment,
            "CROSSOVER_WITHOUT_LAYERS": "1",
        }
        self._victim = subprocess.Popen(
            [sys.executable, "-m", "crossover.cli", *arguments],
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C reaches all of it, the CDK too
        )
        said, _ = self._victim.communicate()
        return self._victim.returncode, said

    @property
    def struck(self) -> bool:
        """True if the last command was interrupted."""
        return self._point is None

    def _answer(self, environ: Mapping[str, Any], start_response: Any) -> Iterable[bytes]:
        """Pass a request on to the cloud and return its answer; at the chosen point interrupt the command instead."""
        call = _call(environ)
        if call is None:
            return self._application(environ, start_response)  # type: ignore[no-any-return]
        with self._lock:
            self.calls[call] += 1
            point = self._point
            strikes = point is not None and (call, self.calls[call]) == (point.call, point.occurrence)
            if strikes:
                self._point = None
        if not strikes or point is None:
            return self._application(environ, start_response)  # type: ignore[no-any-return]
        answer: Iterable[bytes] = []
        if not point.before:
            answer = list(self._application(environ, start_response))
        self._strike(point.number)
        if point.before:
            start_response("503 Service Unavailable", [("Content-Length", "0")])
        return answer

    def _strike(self, number: signal.Signals) -> None:
        """Send the signal to the command: SIGINT to its whole process group, as Ctrl-C does, others to the command alone."""
        assert self._victim is not None
        if number is signal.SIGINT:
            os.killpg(self._victim.pid, number)
        else:
            os.kill(self._victim.pid, number)
        self._victim.wait()


def _call(environ: Mapping[str, Any]) -> str | None:
    """Return an operator's call as text, such as `cloudformation CreateStack` or `s3 PUT`; None for calls by others."""
    credential = str(environ.get("HTTP_AUTHORIZATION", "")).partition("Credential=")[2].split("/")
    of_the_cdk = "aws-sdk-js" in str(environ.get("HTTP_USER_AGENT", ""))  # it assumes the bootstrap's roles
    if len(credential) < 4 or not (of_the_cdk or credential[0] == OPERATOR):
        return None
    service = credential[3]
    if target := str(environ.get("HTTP_X_AMZ_TARGET", "")):
        return f"{service} {target.rpartition('.')[2]}"
    if "x-www-form-urlencoded" in str(environ.get("CONTENT_TYPE", "")):
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)  # type: ignore[index]
        return f"{service} {parse_qs(body.decode()).get('Action', ['?'])[0]}"
    return f"{service} {environ['REQUEST_METHOD']}"

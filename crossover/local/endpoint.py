"""The AWS APIs over HTTP: moto's application in this process, on a free port, with connections that stay open.

A port of this machine is anybody's who is on it, and a web page's whose name is made to resolve to it. So whoever asks must have signed
with a key of this cloud, must ask for this address, and must be no page; what moto has beside the APIs nobody gets.
"""

import contextlib
import functools
import io
import logging
import socket
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from crossover.errors import CrossoverError
from crossover.local import permissions
from crossover.local.moto_patches.resource_types import REGION
from crossover.local.signatures import OPERATOR, AccessKeys

_SILENT = logging.NullHandler()
_LAST_ANSWERS_S = 20.0  # a broker that starts within its request takes five, on a busy machine longer


class _InFlight:
    """The requests that are being answered."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._requests: set[object] = set()

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        me = object()
        with self._changed:
            self._requests.add(me)
        try:
            yield
        finally:
            with self._changed:
                self._requests.discard(me)
                self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Until those of now are answered, or `timeout_s` is over; others may come meanwhile."""
        with self._changed:
            now = set(self._requests)
            self._changed.wait_for(lambda: not now & self._requests, timeout_s)


class Endpoint:
    """A server in a thread; `url` once it is made. `keys`: whose signatures it takes."""

    def __init__(self, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.keys = AccessKeys()
        self._in_flight = _InFlight()
        self._server = _server(log, self._in_flight, self.keys)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="aws-endpoint", daemon=True
        )
        self._thread.start()
        self._log = logging.getLogger("werkzeug")
        self._level = self._log.level
        self._log.setLevel(logging.ERROR)  # a line per request otherwise
        self._moto = logging.getLogger("moto")  # its words on executions that fail: to the log, not to the terminal
        self._file, self._moto.propagate = logging.FileHandler(log, delay=True), False
        self._moto.addHandler(self._file)
        if _SILENT not in self._moto.handlers:  # threads of executions that are cut off end later, and have words, too
            self._moto.addHandler(_SILENT)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, access_key: str = OPERATOR) -> dict[str, str]:
        """Variables with which any AWS tool talks to this cloud: its address, and an access key with its secret."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": self.keys.secret(access_key),
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def session(self, access_key: str = OPERATOR) -> Any:
        """A boto3 Session whose clients and resources talk to this cloud."""
        import boto3

        url = self.url

        class Session(boto3.Session):
            def client(self, *arguments: Any, **named: Any) -> Any:
                return super().client(*arguments, **{"endpoint_url": url, **named})

            def resource(self, *arguments: Any, **named: Any) -> Any:
                return super().resource(*arguments, **{"endpoint_url": url, **named})

        return Session(
            aws_access_key_id=access_key, aws_secret_access_key=self.keys.secret(access_key), region_name=REGION
        )

    def stop(self) -> None:
        """No more answers. What a client asked for and did not wait for, such as a stack when Ctrl-C came, is finished first: cut off
        later, it would go on in moto without the seams.
        """
        self._in_flight.wait(_LAST_ANSWERS_S)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.hang_up()
        self._log.setLevel(self._level)
        self._moto.removeHandler(self._file)
        self._file.close()


def _application() -> Any:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    def create(service: Any) -> Any:
        if service == "moto_api":  # which would forget everything at a word
            return lambda environ, start_response: _refused(start_response, "no part of AWS")
        application = create_backend_app(service)
        application.config["PROPAGATE_EXCEPTIONS"] = True
        return application

    application: Any = DomainDispatcherApplication(create)
    # It would ask the file system for moto's folders at each request, with all other requests waiting.
    application.get_backend_for_host = functools.cache(application.get_backend_for_host)
    return application


def _server(log: Path, in_flight: _InFlight, keys: AccessKeys) -> Any:
    from moto.moto_server.werkzeug_app import MotoRequestHandler
    from werkzeug.serving import ThreadedWSGIServer

    application = _application()

    def answering(environ: Any, start_response: Any) -> Any:
        with in_flight.request():
            return answer(environ, start_response)

    def answer(environ: Any, start_response: Any) -> Any:
        """An error inside moto or a seam as an answer that names it, the traceback in the log.

        Status 400, because clients repeat what was answered with a 500.
        """
        try:
            body = functools.partial(_body, environ)
            if environ.get("HTTP_HOST") != f"127.0.0.1:{environ['SERVER_PORT']}" or "HTTP_ORIGIN" in environ:
                return _refused(start_response, "asked from a web page, or by another name than the address")
            if not keys.signed(environ, body):
                return _refused(start_response, "not signed with this cloud's credentials")
            if denied := permissions.check(environ, body):
                return _answer(start_response, denied.status, denied.content_type, denied.body)
            return application(environ, start_response)
        except Exception as error:
            return _answer(start_response, "400 Bad Request", "text/xml", _failure(error, log))

    class Handler(MotoRequestHandler):
        protocol_version = "HTTP/1.1"  # without it every request pays for a connection and a thread
        disable_nagle_algorithm = True
        timeout = None

    class Server(ThreadedWSGIServer):
        daemon_threads = True
        request_queue_size = 512

        def __init__(self) -> None:
            self.open: set[socket.socket] = set()
            super().__init__("127.0.0.1", 0, answering, Handler)

        def process_request(self, request: Any, client_address: Any) -> None:
            self.open.add(request)
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            self.open.discard(request)
            super().shutdown_request(request)

        def hang_up(self) -> None:
            """Close what clients keep open, so that the threads behind the connections end."""
            for request in list(self.open):
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    return Server()


def _answer(start_response: Any, status: str, content_type: str, body: bytes) -> list[bytes]:
    start_response(status, [("Content-Type", content_type), ("Content-Length", str(len(body)))])
    return [body]


def _refused(start_response: Any, why: str) -> list[bytes]:
    words = f"the cloud on this machine answers nobody but those whom it gave credentials: {why}"
    return _answer(start_response, "403 Forbidden", "text/xml", _error("InvalidClientTokenId", words))


def _error(code: str, words: str) -> bytes:
    return (
        f"<ErrorResponse><Error><Code>{code}</Code><Message>{escape(words)}</Message></Error></ErrorResponse>".encode()
    )


def _failure(error: Exception, log: Path) -> bytes:
    with (
        contextlib.suppress(FileNotFoundError),
        log.open("a", encoding="utf-8") as file,
    ):  # the workspace may be gone by now
        traceback.print_exception(error, file=file)
    fault = f"the local cloud failed inside: {type(error).__name__}: {error} (traceback: {log})"
    return _error("InternalFailure", str(error) if isinstance(error, CrossoverError) else fault)


def _body(environ: Any) -> bytes:
    """The request's body, left where the application will read it again."""
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    return body

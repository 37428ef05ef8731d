"""AWS's APIs on one port of this machine, with signatures checked."""

import contextlib
import functools
import hmac
import io
import logging
import re
import secrets
import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.sts.models import sts_backends

from crossover.errors import CrossoverError
from crossover.local import permissions
from crossover.local.moto_patches.resource_types import ACCOUNT, REGION
from crossover.local.sessions import WITHOUT_FILES, Session

# --- signatures -------------------------------------------------------------------------------------------------------

OPERATOR = "local"  # the access key of the user who deploys and runs experiments
_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/, ]+)/\d{8}/([^/, ]+)/([^/, ]+)/aws4_request, ?SignedHeaders=([^, ]+), ?Signature=([0-9a-f]{64})"
)


class AccessKeys:
    """The secrets of all access keys of one cloud. Every access key id is valid: its secret is derived from it and a random key of this
    object, so that only who was given a secret can sign with it.

    Temporary keys of an assumed role, as the CDK's command line uses them, have the secret that moto issued.
    """

    def __init__(self) -> None:
        """Draw the random key from which secrets are derived."""
        self._drawn = secrets.token_bytes(32)

    def secret(self, access_key: str) -> str:
        """Return the secret of an access key id: that of an assumed role, or one that is derived from the id. Equal for each call with the
        same id; any id has one.
        """
        if assumed := sts_backends[ACCOUNT]["aws"].get_assumed_role_from_access_key(access_key):
            return str(assumed.secret_access_key)
        return hmac.digest(self._drawn, access_key.encode(), "sha256").hex()

    def has_valid_signature(self, environ: Mapping[str, Any], body: Callable[[], bytes]) -> bool:
        """Return whether a request is signed (AWS Signature Version 4) with the secret of the access key that it names; False if it is not
        signed at all.

        `environ`: the WSGI request; `body`: returns the body, called only if its checksum is not among the headers.
        """
        found = _SIGNED.fullmatch(environ.get("HTTP_AUTHORIZATION", ""))
        if found is None or not environ["RAW_URI"].startswith("/"):
            return False
        access_key, region, service, names, signature = found.groups()
        headers = {name: _read_header(environ, name) for name in names.split(";")}
        url = f"http://{environ['HTTP_HOST']}{environ['RAW_URI']}"
        data = b"" if "x-amz-content-sha256" in headers else body()
        request = AWSRequest(environ["REQUEST_METHOD"], url, headers, data)
        request.context["timestamp"] = environ.get("HTTP_X_AMZ_DATE", "")
        own = S3SigV4Auth if service == "s3" else SigV4Auth
        signer = own(Credentials(access_key, self.secret(access_key)), service, region)
        expected = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
        return hmac.compare_digest(expected, signature)


def _read_header(environ: Mapping[str, Any], name: str) -> str:
    """Return the value of an HTTP header of a WSGI request; "" if the request has none of that name."""
    key = name.upper().replace("-", "_")
    return str(environ.get(key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}", ""))


# --- endpoint ---------------------------------------------------------------------------------------------------------
# The AWS APIs over HTTP: moto's application in this process, on a free port, with connections that stay open.
#
# Any local user can reach a port of this machine, and so can a web page whose name resolves to it. So a request must be signed
# with a key of this cloud, must name this address, and must not come from a page; moto's own pages are not served.

_SILENT = logging.NullHandler()
_LAST_ANSWERS_S = 20.0  # a broker that starts within its request takes five, on a busy machine longer


class _InFlight:
    """The set of the HTTP requests that are being answered at the moment, for waiting until they are answered."""

    def __init__(self) -> None:
        """Start with no requests."""
        self._changed = threading.Condition()
        self._requests: set[object] = set()

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Within the `with` block, count one request as being answered."""
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
        """Wait until the requests that are being answered now have been answered, at most `timeout_s` seconds; later requests do not
        count.
        """
        with self._changed:
            now = set(self._requests)
            self._changed.wait_for(lambda: not now & self._requests, timeout_s)


class LogFile(logging.FileHandler):
    """A log file that drops lines which cannot be written, e.g. because the disk is full, instead of printing a traceback for each."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Do nothing: the line that could not be written is dropped."""

    def close(self) -> None:
        """Close the file; lines that could not be written are dropped."""
        with contextlib.suppress(OSError):
            super().close()


class Endpoint:
    """The HTTP server of this cloud's AWS APIs, on a free port of 127.0.0.1, in a thread of this process. It runs from the object's
    creation to `stop`. Until then it also sends moto's log to a file and silences the server's own. `keys`: the secrets with which requests
    must be signed.
    """

    def __init__(self, log: Path) -> None:
        """Start the server in a thread. `log`: file for tracebacks, and until `stop` for moto's log, which the terminal no longer gets."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self.keys = AccessKeys()
        self._in_flight = _InFlight()
        self._server = _make_server(log, self._in_flight, self.keys)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="aws-endpoint", daemon=True
        )
        self._thread.start()
        self._log = logging.getLogger("werkzeug")
        self._level = self._log.level
        self._log.setLevel(logging.ERROR)  # a line per request otherwise
        self._moto = logging.getLogger("moto")  # its words on executions that fail: to the log, not to the terminal
        self._file, self._moto.propagate = LogFile(log, delay=True), False
        self._moto.addHandler(self._file)
        if _SILENT not in self._moto.handlers:  # threads of executions that are cut off end later, and have words, too
            self._moto.addHandler(_SILENT)

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The address http://127.0.0.1:port of the server."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self, access_key: str = OPERATOR) -> dict[str, str]:
        """Return the environment variables with which any AWS tool talks to this cloud: its address, `access_key` and that key's secret.
        They also hide the user's own AWS files. `access_key`: by default that of the operator, who may do everything.
        """
        return {
            **WITHOUT_FILES,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": self.keys.secret(access_key),
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def session(self, access_key: str = OPERATOR) -> Any:
        """Return a boto3 session whose clients and resources talk to this cloud, as the holder of `access_key`; the user's environment and
        ~/.aws are ignored.
        """
        return Session(
            defaults={"endpoint_url": self.url},
            aws_access_key_id=access_key,
            aws_secret_access_key=self.keys.secret(access_key),
            region_name=REGION,
        )

    def stop(self) -> None:
        """Wait for the requests that are being answered, at most 20 s, then shut the server down and close the connections.

        Also a request whose client has left is finished first, because it would otherwise continue in a moto without the patches.
        """
        self._in_flight.wait(_LAST_ANSWERS_S)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.hang_up()
        self._log.setLevel(self._level)
        self._moto.removeHandler(self._file)
        self._file.close()


def _make_application() -> Any:
    """Return moto's WSGI application for all AWS services; requests to moto's own control API, which could reset it, are refused."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    def create(service: Any) -> Any:
        """Return moto's WSGI application for `service`; for moto's own control API, one that refuses every request."""
        if service == "moto_api":  # which would forget everything at a word
            return lambda environ, start_response: _refuse(start_response, "no part of AWS")
        application = create_backend_app(service)
        application.config["PROPAGATE_EXCEPTIONS"] = True
        return application

    application: Any = DomainDispatcherApplication(create)
    # It would ask the file system for moto's folders at each request, with all other requests waiting.
    application.get_backend_for_host = functools.cache(application.get_backend_for_host)
    return application


def _make_server(log: Path, in_flight: _InFlight, keys: AccessKeys) -> Any:
    """Return the HTTP server on a free port of 127.0.0.1, not yet serving. `log`: file for tracebacks; `in_flight`: set to which it adds
    the requests being answered; `keys`: secrets with which requests must be signed.
    """
    from moto.moto_server.werkzeug_app import MotoRequestHandler
    from werkzeug.serving import ThreadedWSGIServer

    application = _make_application()

    def answer_counted(environ: Any, start_response: Any) -> Any:
        """Check and answer a request by `answer`, and return the response's body as WSGI expects it. The request counts as in flight
        meanwhile. `environ`, `start_response`: from WSGI.
        """
        with in_flight.request():
            return answer(environ, start_response)

    def answer(environ: Any, start_response: Any) -> Any:
        """Answer a request with moto's application. Refuse it if it comes from a web page or names another host, is not signed with one of
        `keys`, or is not permitted for its role.

        An error inside moto or a patch is logged with its traceback and answered with status 400, because clients repeat after a 500.
        """
        try:
            body = functools.partial(_read_body, environ)
            if environ.get("HTTP_HOST") != f"127.0.0.1:{environ['SERVER_PORT']}" or "HTTP_ORIGIN" in environ:
                return _refuse(start_response, "asked from a web page, or by another name than the address")
            if not keys.has_valid_signature(environ, body):
                return _refuse(start_response, "not signed with this cloud's credentials")
            if denied := permissions.check_permission(environ, body):
                return _send_response(start_response, denied.status, denied.content_type, denied.body)
            return application(environ, start_response)
        except Exception as error:
            return _send_response(start_response, "400 Bad Request", "text/xml", _log_fault(error, log))

    class Handler(MotoRequestHandler):
        """The handler of one connection: HTTP/1.1 with connections that stay open, and no log."""

        protocol_version = "HTTP/1.1"  # without it every request pays for a connection and a thread
        disable_nagle_algorithm = True
        timeout = None

        def log(self, kind: str, message: str, *arguments: Any) -> None:
            """Do nothing: requests are not logged."""

    class Server(ThreadedWSGIServer):
        """A server with a thread for each connection, which remembers the open connections."""

        daemon_threads = True
        request_queue_size = 512

        def __init__(self) -> None:
            """Bind the server to a free port of 127.0.0.1, with no open connections; nothing is served yet."""
            self.open: set[socket.socket] = set()
            super().__init__("127.0.0.1", 0, answer_counted, Handler)

        def process_request(self, request: Any, client_address: Any) -> None:
            """Remember the connection, then handle it in a new thread."""
            self.open.add(request)
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            """Forget the connection and close it."""
            self.open.discard(request)
            super().shutdown_request(request)

        def hang_up(self) -> None:
            """Shut down both directions of the connections that clients keep open, so that their threads end and close them. Connections
            that are already broken are no error.
            """
            for request in list(self.open):
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    return Server()


def _send_response(start_response: Any, status: str, content_type: str, body: bytes) -> list[bytes]:
    """Send status and headers of a response, and return its body as WSGI expects it. `start_response`: WSGI's function that sends status
    and headers; `status`: code and reason, such as `403 Forbidden`; `content_type`: for the header.
    """
    start_response(status, [("Content-Type", content_type), ("Content-Length", str(len(body)))])
    return [body]


def _refuse(start_response: Any, why: str) -> list[bytes]:
    """Answer a request with 403 Forbidden and the reason `why`; return the body as WSGI expects it."""
    words = f"the cloud on this machine answers only requests with its own credentials: {why}"
    return _send_response(start_response, "403 Forbidden", "text/xml", _build_error("InvalidClientTokenId", words))


def _build_error(code: str, words: str) -> bytes:
    """Return an error of an AWS service as XML. `code`: the error's code; `words`: its message."""
    return (
        f"<ErrorResponse><Error><Code>{code}</Code><Message>{escape(words)}</Message></Error></ErrorResponse>".encode()
    )


def _log_fault(error: Exception, log: Path) -> bytes:
    """Append the traceback of `error` to the file `log`, if that is possible, and return an InternalFailure as XML for the client. Its
    message is that of a CrossoverError; for any other error it says that the local cloud itself failed.
    """
    with (
        contextlib.suppress(OSError),
        log.open("a", encoding="utf-8") as file,
    ):  # the workspace may be gone by now, or its disk full
        traceback.print_exception(error, file=file)
    fault = f"the local cloud failed inside: {type(error).__name__}: {error} (traceback: {log})"
    return _build_error("InternalFailure", str(error) if isinstance(error, CrossoverError) else fault)


def _read_body(environ: Any) -> bytes:
    """Return the body of a WSGI request, as many bytes as its Content-Length says, b"" without one; and put it back, so that it can be
    read again, also by a second call. `environ`: the request, in which "wsgi.input" is replaced.
    """
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    return body

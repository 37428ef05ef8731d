"""A bucket without time behind a real botocore client: the client's own hook answers each request before it would be sent."""

import io
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import boto3
import botocore
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

from chaos.wire import Carry, Lost, Refusal, Request
from crossover.dataplane.s3 import READ_TIMEOUT_S, SETTINGS

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BUCKET = "bucket"
_PAGE = 1_000  # keys of one answer to a listing
_STATUS = {"SlowDown": 503, "InternalError": 500, "ConditionalRequestConflict": 409}
_FORM = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes = b""

    @classmethod
    def error(cls, status: int, code: str, about: str = "") -> "_Answer":
        return cls(status, f"<Error><Code>{code}</Code><Message>{escape(about or code)}</Message></Error>".encode())


class S3Server:
    """The objects of one bucket. `carry` takes every request to it."""

    def __init__(self, carry: Carry) -> None:
        self.objects: dict[str, bytes] = {}
        self.up = True
        self.close: Callable[..., object] = lambda: None  # the world has ended: its client may serve another
        self._carry = carry

    def client(self) -> "S3Client":
        """boto3's, whose requests end here; for every process of the world. Making one takes 20 ms: those of worlds that ended are taken
        again.
        """
        wired = _IDLE.pop() if _IDLE else _Wired()
        wired.server = weakref.ref(self)
        self.close = weakref.finalize(self, _IDLE.append, wired)
        return wired.client

    def answer(self, operation: str, request: Any) -> AWSResponse:
        """What botocore's `before-send` is given in place of the network's response. Raises what the network would."""
        where = urlsplit(request.url)
        key, query = unquote(where.path).removeprefix(f"/{BUCKET}").removeprefix("/"), parse_qs(where.query)
        body = _read(request.body)
        keys = (key,) if key else tuple(_named(body)) or tuple(query.get("prefix", ()))
        sent = len(body) if operation == "PutObject" else 0
        asked = Request("s3", operation, keys, sent, 0, within_s=READ_TIMEOUT_S)

        def effect() -> tuple[_Answer, int]:
            if not self.up:
                raise Lost
            answer = self._done(operation, key, query, body, only_new="If-None-Match" in request.headers)
            return answer, len(answer.body) if operation == "GetObject" else 0

        try:
            answer = self._carry(asked, effect)
        except Refusal as refusal:
            answer = _Answer.error(_STATUS[refusal.code], refusal.code)
        except Lost as lost:
            raise (ReadTimeoutError if lost.silent else ConnectionClosedError)(endpoint_url=request.url) from None
        headers = cast(Any, {"Content-Length": str(len(answer.body))})
        return AWSResponse(
            request.url, answer.status, headers, _Body(b"" if operation == "HeadObject" else answer.body)
        )

    def _done(self, operation: str, key: str, query: dict[str, list[str]], body: bytes, *, only_new: bool) -> _Answer:
        match operation:
            case "PutObject":
                if only_new and key in self.objects:
                    return _Answer.error(412, "PreconditionFailed", "At least one of the pre-conditions failed")
                self.objects[key] = body
                return _Answer(200)
            case "GetObject" | "HeadObject":
                found = self.objects.get(key)
                return _Answer.error(404, "NoSuchKey", key) if found is None else _Answer(200, found)
            case "DeleteObjects":
                for each in _named(body):
                    self.objects.pop(each, None)
                return _Answer(200, f"<DeleteResult {_FORM}/>".encode())
            case "ListObjectsV2":
                prefix, after = (query.get(name, [""])[0] for name in ("prefix", "continuation-token"))
                return _Answer(200, self._listed(prefix, after))
        raise AssertionError(f"the virtual S3 has no operation {operation}; chaos/wire gives it one")

    def _listed(self, prefix: str, after: str) -> bytes:
        """Keys in the order of their UTF-8 bytes, page by page."""
        keys = sorted((key for key in self.objects if key.startswith(prefix)), key=str.encode)
        page = [key for key in keys if key.encode() > after.encode()][:_PAGE]
        more = bool(page) and page[-1] != keys[-1]
        entries = "".join(f"<Contents><Key>{escape(key)}</Key></Contents>" for key in page)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        told = f"<IsTruncated>{str(more).lower()}</IsTruncated><KeyCount>{len(page)}</KeyCount>{token}{entries}"
        return f"<ListBucketResult {_FORM}>{told}</ListBucketResult>".encode()


class _Body(io.BytesIO):
    """A response's bytes as urllib3 hands them out."""

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        yield self.read()


def _read(body: Any) -> bytes:
    if body is None:
        return b""
    return bytes(body) if isinstance(body, bytes | bytearray) else bytes(body.read())


def _named(body: bytes) -> list[str]:
    """The keys that a DeleteObjects names."""
    if not body.startswith(b"<"):
        return []
    return [each.text or "" for each in ElementTree.fromstring(body).iter() if each.tag.endswith("Key")]


# --- the client -------------------------------------------------------------------------------------------------------


class _Wired:
    """A client of the data plane's settings, and the server that it asks now. Signatures and checks of arguments are left out: they take
    longer than all else, and nobody here reads them.
    """

    def __init__(self) -> None:
        self.server: weakref.ref[S3Server] | None = None
        unsigned = Config(
            signature_version=botocore.UNSIGNED,
            parameter_validation=False,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path"},
            user_agent="crossover",  # botocore's own is put together twice for each request, from thirty parts
        )
        self.client: S3Client = _session().client(
            "s3", endpoint_url="http://s3.virtual", config=SETTINGS.merge(unsigned)
        )
        events: Any = self.client.meta.events  # whose stubs know no handlers that answer
        events.register("before-send.s3", self._answer)

    def _answer(self, request: Any, event_name: str, **_: Any) -> AWSResponse:
        server = None if self.server is None else self.server()
        assert server is not None, "this client's world has ended"
        return server.answer(event_name.rpartition(".")[2], request)


_IDLE: list[_Wired] = []


@cache
def _session() -> boto3.session.Session:
    """One, because each reads S3's whole model anew."""
    return boto3.session.Session(region_name="us-east-1")

"""An ObjectStore on an S3 bucket."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    FlexibleChecksumError,
    HTTPClientError,
    NoCredentialsError,
)
from botocore.exceptions import ConnectionError as NoConnection
from tenacity import retry_if_exception_type

from crossover import runtime
from crossover.errors import Missing, Refused, Unavailable
from crossover.stores.documents import join_buffers, to_views
from crossover.stores.protocols import Buffer, ObjectStore, Traffic

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

T = TypeVar("T")

_KEYS_PER_DELETE = 1_000  # keys that one DeleteObjects takes
READ_TIMEOUT_S = 60
SETTINGS = Config(
    retries={"mode": "standard", "total_max_attempts": 1 + runtime.ONCE.again},
    max_pool_connections=64,
    tcp_keepalive=True,  # a function that was frozen finds out that its connection is gone
    connect_timeout=5,
    read_timeout=READ_TIMEOUT_S,
)
_MISSING = ("NoSuchKey", "404", "NotFound")
_RETRYABLE_CODES = (
    "SlowDown",
    "InternalError",
    "ServiceUnavailable",
    "RequestTimeout",
    "Throttling",
    "ThrottlingException",
)


class S3ObjectStore(ObjectStore):
    """ObjectStore in an S3 bucket. Requests that fail because S3 is busy or the connection broke are repeated for up to 12 seconds,
    with random pauses; then Unavailable is raised.
    """

    def __init__(self, bucket: str, traffic: Traffic, *, client: "S3Client | None" = None) -> None:
        """Prepare a client of the bucket named `bucket`, without a request; requests are counted in `traffic`. `client`: boto3
        client, thread-safe, made with SETTINGS; None to make one.
        """
        self._bucket = bucket
        self._traffic = traffic
        self._client = client or boto3.session.Session().client("s3", config=SETTINGS)

    def with_traffic(self, traffic: Traffic) -> "S3ObjectStore":
        """Return a client of the same bucket whose requests are counted in `traffic`."""
        return S3ObjectStore(self._bucket, traffic, client=self._client)

    def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        """Store `data` under `key`, replacing an older object."""
        self._put(key, data)

    def put_new(self, key: str, data: Buffer | Sequence[Buffer]) -> bool:
        """Store `data` under `key` unless the key exists. Returns whether this call stored it; False also if it did but the answer was
        lost, since the repeated request then finds its own object.
        """
        try:
            self._put(key, data, IfNoneMatch="*")
        except _KeyExists:
            return False
        return True

    def create(self, key: str, data: Buffer | Sequence[Buffer]) -> bytes:
        """Store `data` under `key` unless the key exists. Returns the object that is stored now."""
        return join_buffers(data) if self.put_new(key, data) else self.get(key)

    def get(self, key: str) -> bytes:
        """Return the bytes of the object under `key`. Raises Missing if there is none."""
        data = b""
        try:
            data = self._request(key, lambda: self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read())
        finally:
            self._traffic.count("get", bytes_in=len(data))
        return data

    def exists(self, key: str) -> bool:
        """Return whether the key exists."""
        self._traffic.count("exists")
        try:
            self._request(key, lambda: self._client.head_object(Bucket=self._bucket, Key=key))
        except Missing:
            return False
        return True

    def delete(self, *keys: str) -> None:
        """Delete the objects under `keys`, a thousand per request; missing keys are fine. No request is sent for no keys."""
        for start in range(0, len(keys), _KEYS_PER_DELETE):
            self._traffic.count("delete")
            wish: Any = {"Objects": [{"Key": key} for key in keys[start : start + _KEYS_PER_DELETE]], "Quiet": True}
            self._request(keys[start], partial(self._delete, wish))

    def _delete(self, wish: Any) -> None:
        """Send one DeleteObjects request with the body `wish` (boto3's argument Delete). Raises Unavailable or Refused, naming the
        first key that was not deleted.
        """
        for failure in self._client.delete_objects(Bucket=self._bucket, Delete=wish).get("Errors", ()):
            said = f"s3://{self._bucket}/{failure.get('Key')}: not deleted: {failure.get('Message')}"
            raise (Unavailable if failure.get("Code") in _RETRYABLE_CODES else Refused)(said)

    def list(self, prefix: str) -> list[str]:
        """Return all keys that begin with `prefix`, sorted."""

        def pages() -> list[str]:
            """Return the keys on all pages of the listing, sorted."""
            keys: list[str] = []
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix):
                self._traffic.count("list")
                keys += (entry["Key"] for entry in page.get("Contents", ()))
            return sorted(keys)

        return self._request(prefix, pages)

    def _put(self, key: str, data: Buffer | Sequence[Buffer], **condition: Any) -> None:
        """Store `data` as the object `key`. `condition`: more arguments of put_object, such as IfNoneMatch. Raises _KeyExists if
        that condition is not met.
        """
        parts = to_views(data)
        self._traffic.count("put", bytes_out=sum(part.nbytes for part in parts))

        def send() -> None:
            """Send one PutObject request. It can be repeated: the body is made anew each time."""
            body: Any = data if isinstance(data, bytes) else JoinedBuffers(parts)
            self._client.put_object(Bucket=self._bucket, Key=key, Body=body, **condition)

        self._request(key, send)

    def _request(self, key: str, request: Callable[[], T]) -> T:
        """Call `request` and return its result; repeat it for up to 12 seconds if S3 is busy or the connection broke. Botocore's
        errors become Missing, Refused, _KeyExists or Unavailable, of which only the last is repeated. `key`: for errors.
        """

        def attempt() -> T:
            """Call `request` once and return its result. Botocore's errors become Missing, Refused, _KeyExists or Unavailable."""
            with self._translate_errors(key):
                return request()

        result: T = runtime.OBJECTS.build_retrying(retry_if_exception_type(Unavailable))(attempt)
        return result

    @contextmanager
    def _translate_errors(self, key: str) -> Iterator[None]:
        """Within the `with` block, turn botocore's errors into Missing, _KeyExists, Unavailable if a retry may help, or Refused, naming
        `key`. Other errors pass.
        """
        where = f"s3://{self._bucket}/{key}"
        try:
            yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            raise _translate_error(error, code=code, status=status, key=key, where=where) from error
        except (HTTPClientError, NoConnection, FlexibleChecksumError) as error:  # or a body that was cut on its way
            raise Unavailable(f"{where}: {error}") from error
        except NoCredentialsError as error:
            raise Refused(f"{where}: no AWS credentials; configure them, e.g. by `aws configure`") from error
        except BotoCoreError as error:
            raise Refused(f"{where}: {error}") from error


class _KeyExists(Refused):
    """Error for an object that was not stored because its key exists (HTTP status 412)."""


def _translate_error(error: ClientError, *, code: str, status: int, key: str, where: str) -> Exception:
    """Return the error to raise for a ClientError: Missing, _KeyExists, Unavailable if it is worth a retry, otherwise Refused.
    `code`, `status`: S3's error code and HTTP status; `where`: URL of the object, for the message.
    """
    if code in _MISSING:
        return Missing(key)
    if code == "PreconditionFailed" or status == 412:
        return _KeyExists(f"{where}: exists")
    if code == "ConditionalRequestConflict":
        # 409; S3's documentation asks to send it again, and then the loser finds 412
        return Unavailable(f"{where}: other writers keep coming in between")
    if code in _RETRYABLE_CODES or status >= 500:
        return Unavailable(f"{where}: {error}")
    return Refused(f"{where}: {error}")


class JoinedBuffers(io.RawIOBase):
    """Readable, seekable file object over several buffers, so that they can be uploaded as one without being joined in memory."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        """Join `parts`, flat views of bytes, in order, without copying them."""
        self._parts = parts
        self._length = sum(part.nbytes for part in parts)
        self._at = 0

    def readable(self) -> bool:
        """Return True: the file can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: the file can be read again from any position."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, as io.IOBase.seek does, and return it, in bytes from the start. A position before the start becomes 0. Raises
        KeyError for another `whence` than io's three.
        """
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes from the current position on, and advance it; all of the rest if `size` is None or negative."""
        end = self._length if size is None or size < 0 else min(self._at + size, self._length)
        pieces = []
        start = 0
        for part in self._parts:
            low, high = max(self._at - start, 0), min(end - start, part.nbytes)
            if low < high:
                pieces.append(part[low:high])
            start += part.nbytes
        self._at = max(self._at, end)
        return b"".join(pieces)

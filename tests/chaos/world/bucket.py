"""A bucket in the virtual world, with the methods and errors of boto3's client that our object store relies on."""

import io
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from heapq import nsmallest
from typing import Any

from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from crossover.stores.s3 import READ_TIMEOUT_S
from tests.chaos.world.requests import Carry, LostReply, Request, ServerRefusal


class Bucket:
    """A virtual S3 bucket with the interface of boto3's client. `objects`: bodies by key; `carry`: carries each request to the bucket and
    its reply back.
    """

    def __init__(self, carry: Carry) -> None:
        """Create an empty bucket whose listings have 1,000 keys a page. `carry`: carries each request."""
        self.objects: dict[str, bytes] = {}
        self.page_keys, self.page_s = 1_000, 0.0  # of a listing
        self._carry = carry

    def put_object(self, *, Bucket: str, Key: str, Body: Any, IfNoneMatch: str = "") -> None:
        """Store an object. Raises PreconditionFailed if `IfNoneMatch` is given and the key exists."""
        body = Body if isinstance(Body, bytes) else bytes(Body.read())

        def put() -> bool:
            """Store the object unless the condition fails; return whether it was stored."""
            if IfNoneMatch and Key in self.objects:
                return False
            self.objects[Key] = body
            return True

        if not self._ask("PutObject", [Key], put, bytes_out=len(body), conditional=bool(IfNoneMatch)):
            raise _error("PreconditionFailed", "PutObject")

    def get_object(self, *, Bucket: str, Key: str) -> Mapping[str, Any]:
        """Return the object's body under "Body". Raises NoSuchKey."""
        return {"Body": io.BytesIO(self._found("GetObject", Key))}

    def head_object(self, *, Bucket: str, Key: str) -> None:
        """Raise NoSuchKey unless the object exists."""
        self._found("HeadObject", Key)

    def delete_objects(self, *, Bucket: str, Delete: Mapping[str, Any]) -> Mapping[str, Any]:
        """Delete the objects that exist among the given keys, in one request."""
        keys = [each["Key"] for each in Delete["Objects"]]
        self._ask("DeleteObjects", keys, lambda: [self.objects.pop(key, None) for key in keys])
        return {}

    def get_paginator(self, operation: str) -> "Bucket":
        """Return this bucket, which acts as its own paginator."""
        return self

    def paginate(self, *, Bucket: str, Prefix: str) -> Iterator[Mapping[str, Any]]:
        """Yield the pages of a listing. Each page is one request for the keys, existing at that time, after the last key of the page
        before.
        """
        last = ""
        while True:
            page = self._ask("ListObjectsV2", [Prefix], partial(self._behind, Prefix, last), takes_s=self.page_s)
            yield {"Contents": [{"Key": key} for key in page[: self.page_keys]]}
            if len(page) <= self.page_keys:
                return
            last = page[self.page_keys - 1]

    def _behind(self, prefix: str, last: str) -> list[str]:
        """Return the keys with the prefix after the key `last`, in order: those of one page, and one more if another page follows."""
        found = (key for key in self.objects if key.startswith(prefix) and key > last)
        return nsmallest(self.page_keys + 1, found)

    def _found(self, operation: str, key: str) -> bytes:
        """Return the object's body after one request of that operation. Raises NoSuchKey."""
        found = self._ask(operation, [key], lambda: self.objects.get(key))
        if found is None:
            raise _error("NoSuchKey", operation)
        return bytes(found)

    def _ask(
        self,
        operation: str,
        keys: list[str],
        effect: Callable[[], Any],
        *,
        bytes_out: int = 0,
        conditional: bool = False,
        takes_s: float = 0.0,
    ) -> Any:
        """Send one request and return what `effect` returned. Raises botocore's errors: ClientError for a refusal, ReadTimeoutError or
        ConnectionClosedError for a lost reply.
        """

        def served() -> tuple[Any, int]:
            """Return the reply, and the bytes of payload that it carries."""
            reply = effect()
            return reply, len(reply) if operation == "GetObject" and reply else 0

        asked = Request(
            "s3",
            operation,
            tuple(keys),
            bytes_out,
            within_s=READ_TIMEOUT_S,
            conditional=conditional,
            takes_s=takes_s,
        )
        try:
            return self._carry(asked, served)
        except ServerRefusal as refusal:
            raise _error(refusal.code, operation) from None
        except LostReply as lost:
            raise (ReadTimeoutError if lost.silent else ConnectionClosedError)(endpoint_url="s3://bucket") from None


def _error(code: str, operation: str) -> ClientError:
    """Return the exception that boto3 would raise, with that error code."""
    return ClientError({"Error": {"Code": code, "Message": code}}, operation)

"""Objects beside other requests: read while the ETag is computed for the first time or while they are replaced or deleted, created by two
at once, listed while one is deleted.
"""

import contextlib
import gc
import hashlib
import threading
from typing import Any

import pytest
from moto.s3.models import FakeKey
from moto.s3.responses import S3Response
from moto.s3.utils import _VersionedKeyStore

from crossover.local.cloud import LocalCloud
from crossover.local.moto_patches import objects
from crossover.local.moto_patches.replacing import Replacements


def test_a_reader_beside_the_first_etag_waits_for_it() -> None:
    """Read an object while its ETag is computed for the first time: the reader waits, and both are right."""
    key = FakeKey("k", b"abc", account_id="1", region_name="us-east-1", bucket_name="b")
    found, finished = list[bytes](), threading.Event()

    class Buffer:
        """The object's buffer, in which a second reader arrives while the ETag is half read."""

        def __init__(self, buffer: Any) -> None:
            """Wrap the object's `buffer`. `overtook`: whether the reader has finished in between."""
            self._buffer, self.overtook = buffer, False

        def __getattr__(self, name: str) -> Any:
            """Return the attribute of the wrapped buffer."""
            return getattr(self._buffer, name)

        def read(self, *size: int) -> bytes:
            """Read the buffer. The first read of a given size starts the second reader and notes if it finishes before this read."""
            if size and not reader.is_alive() and not finished.is_set():
                reader.start()
                self.overtook = finished.wait(0.2)
            return bytes(self._buffer.read(*size))

    def read() -> None:
        """Read the object's value, and note it."""
        found.append(key.value)
        finished.set()

    reader = threading.Thread(target=read)
    key._value_buffer = buffer = Buffer(key._value_buffer)
    try:
        with Replacements() as changes:
            objects.install(changes)
            assert key.etag == '"900150983cd24fb0d6963f7d28e17f72"'
            reader.join()
        assert found == [b"abc"] and not buffer.overtook
    finally:
        key.dispose()


@pytest.mark.parametrize("size", [3, 10_000_000], ids=["in memory", "on disk"])
def test_an_object_that_was_replaced_can_be_answered_to_the_end(size: int) -> None:
    """Replace an object that a request is still reading: ETag and value can be read; its buffer is closed once nothing refers to it."""
    with Replacements() as changes:
        objects.install(changes)
        key = FakeKey("k", b"a" * size, account_id="1", region_name="us-east-1", bucket_name="b", max_buffer_size=1_000)
        buffer = key._value_buffer
        key.dispose()
        assert key.etag == f'"{hashlib.md5(b"a" * size).hexdigest()}"'
        assert key.value == b"a" * size
        del key
        gc.collect()
        assert buffer.closed


def test_of_two_that_create_an_object_at_once_one_does(cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create one object by two conditional puts at the same time: only the first succeeds, and its body is stored."""
    s3, old = cloud.session().client("s3"), S3Response._get_checksum
    s3.create_bucket(Bucket="races")
    second_is_there = threading.Event()
    won: list[bytes] = []

    def create(body: bytes) -> None:
        """Create the object if it does not exist, and note the body if that worked."""
        with contextlib.suppress(s3.exceptions.ClientError):
            s3.put_object(Bucket="races", Key="key", Body=body, IfNoneMatch="*")
            won.append(body)

    def held(self: S3Response, *arguments: Any) -> Any:
        """Return the checksum, as moto does after its look at the condition. The first request starts the second and waits half a second
        at most for it to come as far.
        """
        if second.ident is None:
            second.start()
            second_is_there.wait(0.5)
        else:
            second_is_there.set()
        return old(self, *arguments)

    second = threading.Thread(target=create, args=(b"second",))
    monkeypatch.setattr(S3Response, "_get_checksum", held)
    create(b"first")
    second.join()
    assert won == [b"first"]
    assert s3.get_object(Bucket="races", Key="key")["Body"].read() == b"first"


def test_a_list_beside_a_deletion(cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete an object while a listing is made: the listing succeeds, with or without that object."""
    s3, look = cloud.session().client("s3"), _VersionedKeyStore.__getitem__
    s3.create_bucket(Bucket="lists")
    for key in ("a", "b", "c"):
        s3.put_object(Bucket="lists", Key=key, Body=b"")
    deletions = []

    def get(store: Any, key: str) -> Any:
        """Return the object at `key`; once "a" has been read, delete "c" as another request would."""
        found = look(store, key)
        if key == "a":
            deletions.append(dict.pop(store, "c", None))
        return found

    monkeypatch.setattr(_VersionedKeyStore, "__getitem__", get)
    listed = [each["Key"] for each in s3.list_objects_v2(Bucket="lists")["Contents"]]
    assert listed in (["a", "b", "c"], ["a", "b"])

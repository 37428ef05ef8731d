"""Reading an object while its ETag is computed for the first time, and while it is replaced or deleted."""

import gc
import hashlib
import threading
from typing import Any

import pytest
from moto.s3.models import FakeKey

from crossover.local.seams import objects
from crossover.local.seams.replacing import Replacements


def test_a_reader_beside_the_first_etag_waits_for_it() -> None:
    key = FakeKey("k", b"abc", account_id="1", region_name="us-east-1", bucket_name="b")
    found, finished = list[bytes](), threading.Event()

    class Buffer:
        """The object's buffer, in which a second reader arrives while the ETag is half read."""

        def __init__(self, buffer: Any) -> None:
            self._buffer, self.overtook = buffer, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._buffer, name)

        def read(self, *size: int) -> bytes:
            if size and not reader.is_alive() and not finished.is_set():
                reader.start()
                self.overtook = finished.wait(0.2)
            return bytes(self._buffer.read(*size))

    def read() -> None:
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

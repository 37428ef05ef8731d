"""What only S3 does: conflicts of conditional writes, refusals by code, bodies read in pieces."""

import io
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ReadTimeoutError
from botocore.stub import ANY, Stubber
from hypothesis import given
from hypothesis import strategies as st

from crossover import runtime
from crossover.errors import Missing, Refused, Unavailable
from crossover.stores.protocols import Traffic
from crossover.stores.s3 import JoinedBuffers, S3ObjectStore
from tests.clocks import Passing

_MANY = 1000  # of answers: more than are asked for


@pytest.fixture(autouse=True)
def clock() -> Iterator[Passing]:
    """Yield the process's clock, which passes only when something sleeps."""
    process = Passing()
    with runtime.use(process):
        yield process


def stubbed() -> tuple[S3ObjectStore, Stubber]:
    """Return a store of objects in S3 that does not retry, and the stubber that answers for S3."""
    client = boto3.client("s3", config=Config(retries={"total_max_attempts": 1}))
    return S3ObjectStore("bucket", Traffic(), client=client), Stubber(client)


PUT = {"Bucket": "bucket", "Key": "k", "Body": ANY, "IfNoneMatch": "*"}


def test_a_conflict_of_creators_is_tried_again() -> None:
    """Check that put_new is repeated after S3 reports a conflict."""
    store, stub = stubbed()
    stub.add_client_error("put_object", "ConditionalRequestConflict", "", 409, expected_params=PUT)
    stub.add_client_error("put_object", "ConditionalRequestConflict", "", 409, expected_params=PUT)
    stub.add_response("put_object", {}, PUT)
    with stub:
        assert store.put_new("k", b"data") is True
        stub.assert_no_pending_responses()


def test_a_conflict_that_was_lost_gets_the_winner() -> None:
    """Check that create returns the other writer's object after a conflict."""
    store, stub = stubbed()
    stub.add_client_error("put_object", "ConditionalRequestConflict", "", 409, expected_params=PUT)
    stub.add_client_error("put_object", "PreconditionFailed", "", 412, expected_params=PUT)
    stub.add_response("get_object", {"Body": io.BytesIO(b"winner")}, {"Bucket": "bucket", "Key": "k"})
    with stub:
        assert store.create("k", b"data") == b"winner"


def test_a_client_with_its_own_counters_asks_the_same_bucket() -> None:
    """Check that with_traffic gives a client of the same bucket which counts its own traffic."""
    store, stub = stubbed()
    counted = Traffic()
    stub.add_response("put_object", {}, PUT)
    with stub:
        assert store.with_traffic(counted).put_new("k", b"data") is True
    assert counted.as_record() == {"bytes_in": 0, "bytes_out": 4, "requests": 1}


def test_endless_conflicts_are_unavailable() -> None:
    """Check that conflicts without end raise Unavailable."""
    store, stub = stubbed()
    for _ in range(_MANY):
        stub.add_client_error("put_object", "ConditionalRequestConflict", "", 409, expected_params=PUT)
    with stub, pytest.raises(Unavailable, match="other writers"):
        store.put_new("k", b"data")


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("NoSuchKey", 404, Missing),
        ("NoSuchBucket", 404, Refused),
        ("AccessDenied", 403, Refused),
        ("SlowDown", 503, Unavailable),
        ("InternalError", 500, Unavailable),
    ],
)
def test_codes_become_errors_that_name_the_object(code: str, status: int, error: type[Exception]) -> None:
    """Check that each of S3's error codes raises the right error with the object's key."""
    store, stub = stubbed()
    for _ in range(_MANY):
        stub.add_client_error("get_object", code, "said S3", status)
    with stub, pytest.raises(error, match="k") as caught:
        store.get("k")
    assert error is Missing or "said S3" in str(caught.value)


def test_a_body_that_breaks_off_is_read_again() -> None:
    """Check that an object is read again if reading it breaks off."""

    class Broken(io.BytesIO):
        """A body whose reading times out."""

        def read(self, *_: Any) -> bytes:
            """Raise botocore's timeout error."""
            raise ReadTimeoutError(endpoint_url="s3")

    store, stub = stubbed()
    stub.add_response("get_object", {"Body": Broken()})
    stub.add_response("get_object", {"Body": io.BytesIO(b"whole")})
    with stub:
        assert store.get("k") == b"whole"


@pytest.mark.parametrize("each_s", [0.0, 5.0, 65.0])
def test_a_bucket_that_does_not_answer_is_asked_for_some_seconds_and_twice(clock: Passing, each_s: float) -> None:
    """Check that a silent bucket is asked for 12 to 16 seconds and twice at least, however long each attempt takes."""

    class Silent:
        """An S3 client that times out after `each_s` seconds of the clock."""

        def head_object(self, **_: Any) -> None:
            """Let `each_s` pass on the clock and raise botocore's timeout error."""
            clock.now_s += each_s
            raise ReadTimeoutError(endpoint_url="s3")

    with pytest.raises(Unavailable):
        S3ObjectStore("bucket", Traffic(), client=Silent()).exists("k")  # type: ignore[arg-type]
    assert 12.0 <= clock.now_s - each_s <= 16.0 + each_s
    assert len(clock.slept_s) >= 1


def test_a_deletion_that_fails_is_told() -> None:
    """Check that delete raises an error with the key that S3 did not delete."""
    store, stub = stubbed()
    stub.add_response("delete_objects", {"Errors": [{"Key": "k", "Code": "AccessDenied", "Message": "no"}]})
    with stub, pytest.raises(Refused, match="bucket/k: not deleted: no"):
        store.delete("k")


def test_a_key_that_s3_is_too_busy_to_delete_is_deleted_then() -> None:
    """Check that delete is repeated if S3 was too busy for a key."""
    store, stub = stubbed()
    stub.add_response("delete_objects", {"Errors": [{"Key": "k", "Code": "SlowDown", "Message": "later"}]})
    stub.add_response("delete_objects", {})
    with stub:
        store.delete("k")
        stub.assert_no_pending_responses()


def test_no_endpoint_is_unavailable(deserted_port: int) -> None:
    """Check that an address without a server raises Unavailable."""
    client = boto3.client(
        "s3", endpoint_url=f"http://127.0.0.1:{deserted_port}", config=Config(retries={"total_max_attempts": 1})
    )
    with pytest.raises(Unavailable, match="bucket/k"):
        S3ObjectStore("bucket", Traffic(), client=client).put("k", b"")


@pytest.mark.slow
@given(
    parts=st.lists(st.binary(max_size=20), max_size=5), reads=st.lists(st.integers(-1, 25), max_size=8), data=st.data()
)
def test_a_chain_reads_like_one_file(parts: list[bytes], reads: list[int], data: st.DataObject) -> None:
    """Check that JoinedBuffers reads, seeks and tells like one file of the joined parts."""
    chain, file = JoinedBuffers([memoryview(part) for part in parts]), io.BytesIO(b"".join(parts))
    for size in reads:
        assert chain.read(size) == file.read(size)
        assert chain.tell() == file.tell()
        whence = data.draw(st.sampled_from([io.SEEK_SET, io.SEEK_END]))
        offset = data.draw(st.integers(0, 30)) * (1 if whence == io.SEEK_SET else 0)
        assert chain.seek(offset, whence) == file.seek(offset, whence)

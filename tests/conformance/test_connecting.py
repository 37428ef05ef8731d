"""The composition root: which implementation stands behind a URL, and what is imported for it."""

import subprocess
import sys
from pathlib import Path

import pytest

from crossover.errors import ConfigError
from crossover.stores import connecting
from crossover.stores.fetch_compute import FetchCompute
from crossover.stores.files import FileObjectStore
from crossover.stores.protocols import ObjectStore, TensorStore, Traffic
from crossover.stores.redis_tensors import RedisCompute, RedisTensorStore
from crossover.stores.s3 import S3ObjectStore
from tests.conformance.conftest import BUCKET, MakeTensors
from tests.conformance.vectors import vector

PLAIN_STARTS = (
    "crossover.stores",
    "crossover.stores.connecting",
    "crossover.stores.memory",
    "crossover.stores.files",
    "crossover.stores.fetch_compute",
)


def test_object_stores_by_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_endpoint: str, s3: object, run: str
) -> None:
    """Check that a bucket's name and s3:// open S3, file:// opens a folder, and other URLs are refused."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    stores: list[ObjectStore] = [
        connecting.open_object_store(BUCKET, Traffic()),
        connecting.open_object_store(f"s3://{BUCKET}", Traffic()),
        connecting.open_object_store(f"file://{tmp_path}/objects", Traffic()),
    ]
    assert [type(store) for store in stores] == [S3ObjectStore, S3ObjectStore, FileObjectStore]
    stores[0].put(f"{run}/k", b"1")
    assert stores[1].get(f"{run}/k") == b"1"
    for url in ("http://bucket", "s3://bucket/prefix"):
        with pytest.raises(ConfigError, match="expected a bucket"):
            connecting.open_object_store(url, Traffic())


def test_arithmetic_is_where_the_vectors_are(make_tensors: MakeTensors) -> None:
    """Check that only Redis computes in the database, and only if it is asked to."""
    expected = {"redis": RedisCompute, "memory": FetchCompute, "objects": FetchCompute}
    for name, kind in expected.items():
        store: TensorStore = make_tensors(name, Traffic())
        assert type(connecting.choose_tensor_compute(store, compute="in_database")) is kind
        assert type(connecting.choose_tensor_compute(store, compute="fetch")) is FetchCompute


def test_clients_beside_one_another_count_apart(make_tensors: MakeTensors, run: str) -> None:
    """Check that with_traffic gives a second client of the same store which counts its own traffic."""
    for name in ("memory", "redis"):
        traffic = Traffic(), Traffic()
        first = make_tensors(name, traffic[0])
        second = first.with_traffic(traffic[1])  # type: ignore[attr-defined]
        first.put(f"{run}/v", vector(1, 2))
        assert second.get(f"{run}/v") == vector(1, 2)
        assert traffic[0].as_record() == {"bytes_in": 0, "bytes_out": 8, "requests": 1}
        assert traffic[1].as_record() == {"bytes_in": 8, "bytes_out": 0, "requests": 1}
        if isinstance(first, RedisTensorStore):
            assert second.client is first.client


@pytest.mark.parametrize("module", PLAIN_STARTS)
def test_importing_is_cheap(module: str) -> None:
    """Check that importing the module imports neither torch nor numpy nor a client library."""
    heavy = "torch numpy boto3 botocore pika redis"
    code = f"import sys, {module}; sys.exit(' '.join(m for m in '{heavy}'.split() if m in sys.modules) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["redis_tensors", "s3", "rabbitmq"])
def test_no_client_needs_torch_or_numpy(module: str) -> None:
    """Check that the client's module can be imported where torch and numpy are not installed."""
    code = f"import sys; sys.modules['numpy'] = sys.modules['torch'] = None; import crossover.stores.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

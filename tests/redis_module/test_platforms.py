"""Other servers and machines: Valkey, and Redis on ARM under emulation."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

from crossover.errors import MissingTool
from layer import debian, elf
from tests import references
from tests.redis_module.servers import Client, Start, build, starting, statistics, until
from tests.redis_module.vectors import floats, get, put, same_bits
from tests.witnesses import servers as witnesses


@pytest.fixture(scope="module")
def valkey() -> list[str]:
    """Return the command that runs Valkey 8. Skips the test if it cannot be downloaded."""
    try:
        return [str(witnesses.program("valkey_8"))]
    except MissingTool as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def arm_redis() -> list[str]:
    """Return the command that runs Debian 13's redis-server for ARM, which the Redis hosts have, in an emulator. Skips the test without
    one.
    """
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if emulator is None:
        pytest.skip("qemu-aarch64-static is not installed here (Debian's package qemu-user-static)")
    folder = witnesses.BUILD / "redis_8_arm64" / "root"
    try:
        root = debian.fetch_packages(folder, witnesses.PACKAGES["redis_8"], architecture="arm64")
    except MissingTool as error:
        pytest.skip(str(error))
    return [emulator, "-L", str(root), str(root / "usr" / "bin" / "redis-server")]


@pytest.fixture(scope="module")
def arm_module() -> Path:
    """Build the module for ARM, and return its path. Skips the test without a cross compiler."""
    if shutil.which("aarch64-linux-gnu-g++") is None:
        pytest.skip("aarch64-linux-gnu-g++ is not installed here (Debian's package g++-aarch64-linux-gnu)")
    return build("arm64", "tensors-arm64.so")


@pytest.fixture
def start_any(core_module: Path) -> Iterator[Start]:
    """Yield a function that starts servers, by default with the module for this machine."""
    with starting(core_module) as start:
        yield start


def a_round(client: Client) -> dict[str, bytes]:
    """Run one command of every kind, check mean and median, and return the results' bytes by name. They are the same on every machine."""
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal(5003).astype(np.float32) for _ in range(7)]
    keys = [f"g{i}" for i in range(7)]
    for i, (key, row) in enumerate(zip(keys, rows, strict=True)):
        put(client, key, row, "KIND", "gradient", "SAMPLES", i + 1)
    client.execute_command("TENSOR.MEAN", 7, *keys, "OUT", "mean", "NX", "PX", 1_000_000)
    client.execute_command("TENSOR.MEDIAN", 7, *keys, "OUT", "median")
    client.execute_command("TENSOR.TRIMMEDMEAN", 7, *keys, "TRIM", 2, "OUT", "trimmed")
    client.execute_command("TENSOR.KRUM", 7, *keys, "FAULTY", 2, "SELECT", 3, "OUT", "krum")
    rule = ["LR", 0.1, "MOMENTUM", 0.9, "WEIGHTDECAY", 5e-4, "NESTEROV"]
    client.execute_command("TENSOR.SGD", "g0", "g1", "g2", "OUT", "p", "v", *rule, "BUFFERS", 0, "STATS", 0.1)
    client.execute_command("TENSOR.ADAM", "g0", "g1", "-", "-", "OUT", "q", "m", "w", "LR", 0.1, "STEP", 1)
    client.execute_command("TENSOR.AXPY", "g0", "g1", "ALPHA", "0x1.8p-3", "OUT", "axpy")
    assert same_bits(get(client, "mean"), references.mean(rows, list(range(1, 8))))
    assert same_bits(get(client, "median"), references.median(rows))
    names = ("mean", "median", "trimmed", "krum", "p", "v", "q", "m", "w", "axpy")
    return {name: get(client, name).tobytes() for name in names} | {"norm": client.execute_command("TENSOR.NORM", "g0")}


@pytest.mark.slow
def test_redis_on_arm_computes_the_same_bits(start_any: Start, arm_redis: list[str], arm_module: Path) -> None:
    """Check that the module for ARM, in an emulator, computes the same bits as this machine's."""
    server = start_any(arm_module, program=arm_redis, config={"ignore-warnings": "ARM64-COW-BUG"})
    client = server.client()
    found = a_round(client)
    assert statistics(client)["simd"] == b"neon"
    assert found == a_round(start_any().client())
    client.execute_command("DEBUG", "RELOAD")
    assert get(client, "mean").tobytes() == found["mean"]
    assert server.stop(signal.SIGTERM) == 0


def test_the_hosts_module_asks_for_nothing_that_debian_13_lacks(arm_module: Path) -> None:
    """Check the libraries and the glibc version that the module for ARM needs, and that it contains no path of its build."""
    data = arm_module.read_bytes()
    assert elf.machine(data) == elf.AARCH64
    assert elf.list_needed_libraries(data) <= {
        "libc.so.6",
        "libm.so.6",
        "ld-linux-aarch64.so.1",
    }  # the C++ runtime is inside
    assert elf.find_newest_version(elf.list_needed_versions(data), "GLIBC") <= (2, 41)
    assert str(arm_module.parents[2]).encode() not in data  # the same bytes from whatever folder


@pytest.mark.slow
def test_debians_unit_lets_the_server_execute_the_module_where_the_boot_script_puts_it(arm_redis: list[str]) -> None:
    """Check that Debian's systemd unit allows the module's folder as executable (systemd.exec(5), ExecPaths)."""
    unit = (Path(arm_redis[2]) / "usr/lib/systemd/system/redis-server.service").read_text()
    (allowed,) = (line.partition("=")[2].split() for line in unit.splitlines() if line.startswith("ExecPaths="))
    assert "/usr/lib" in allowed
    assert "/etc/redis/redis.conf" in unit


@pytest.mark.slow
def test_valkey_runs_the_same_module(start_any: Start, valkey: list[str]) -> None:
    """Check that Valkey with the module computes the same bits, replicates them and restores them."""
    config = {"appendonly": "yes", "appendfsync": "always", "aof-use-rdb-preamble": "no"}
    server = start_any(program=valkey, config=config)
    client = server.client()
    found = a_round(client)
    assert found == a_round(start_any().client())
    replica = start_any(program=valkey, config={"replicaof": f"127.0.0.1 {server.port}"})
    other = replica.client()
    until(lambda: other.info("replication")["master_link_status"] == "up", what="the replica's link")
    put(client, "late", floats([1]), "SAMPLES", 4, "PX", 900_000)
    client.wait(1, 30_000)
    assert other.execute_command("DEBUG", "DIGEST") == client.execute_command("DEBUG", "DIGEST")
    before = client.execute_command("DEBUG", "DIGEST")
    server.stop(signal.SIGKILL)
    server.start()
    client = server.client()
    assert client.execute_command("DEBUG", "DIGEST") == before
    # Unlike Redis 7.0, Valkey counts a module's commands among its ACL categories.
    client.acl_setuser("worker", enabled=True, nopass=True, keys=["mine:*", "g*"], categories=["+@write"])
    worker = server.client(username="worker", password="x")
    assert worker.execute_command("TENSOR.MEAN", 1, "g0", "OUT", "mine:m") == b"OK"
    for refused in (("TENSOR.MEAN", 1, "g0", "OUT", "m"), ("TENSOR.INFO", "g0")):
        with pytest.raises(redis.exceptions.NoPermissionError):
            worker.execute_command(*refused)

"""Servers for the tensor module's tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redis_module.servers import Client, Server, Start, build, starting


@pytest.fixture(scope="session")
def core_module() -> Path:
    """CROSSOVER_TENSORS=asan or tsan: watched by a sanitizer, for a server that bears with it."""
    variant = os.environ.get("CROSSOVER_TENSORS")
    return build(variant, f"tensors-{variant}.so") if variant else build("core", "tensors.so")


@pytest.fixture(scope="module")
def shared_server(core_module: Path) -> Iterator[Server]:
    """One server for a file's tests; each test finds it empty."""
    with starting(core_module) as start:
        yield start(config={"proto-max-bulk-len": "1gb"})


@pytest.fixture
def server(shared_server: Server) -> Server:
    shared_server.client().flushall()
    return shared_server


@pytest.fixture
def client(server: Server) -> Client:
    return server.client()


@pytest.fixture
def start(core_module: Path) -> Iterator[Start]:
    """Starts servers of a test's own."""
    with starting(core_module) as start_one:
        yield start_one

"""Servers for the tensor module's tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redis_module.servers import Client, Server, Start, build, starting


@pytest.fixture(scope="session")
def core_module() -> Path:
    """Build the tensor module, and return its path. CROSSOVER_TENSORS=asan or tsan selects a build that a sanitizer watches."""
    variant = os.environ.get("CROSSOVER_TENSORS")
    return build(variant, f"tensors-{variant}.so") if variant else build("core", "tensors.so")


@pytest.fixture(scope="module")
def shared_server(core_module: Path) -> Iterator[Server]:
    """Yield one server for all tests of a file. Each test finds it empty."""
    with starting(core_module) as start:
        yield start(config={"proto-max-bulk-len": "1gb"})


@pytest.fixture
def server(shared_server: Server) -> Server:
    """Return the shared server, emptied."""
    shared_server.client().flushall()
    return shared_server


@pytest.fixture
def client(server: Server) -> Client:
    """Return a client of the shared server."""
    return server.client()


@pytest.fixture
def start(core_module: Path) -> Iterator[Start]:
    """Yield a function that starts servers with the module, which end after the test."""
    with starting(core_module) as start_one:
        yield start_one

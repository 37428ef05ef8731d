"""LocalStack 4.7 as a process of this machine, without Docker, in a folder of its own."""

import contextlib
import json
import os
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from crossover.local import servers
from tests.ports import held_port
from tests.witnesses.environments import python

ACCOUNT, REGION = "000000000000", "us-east-1"
_PATIENCE_S = 180.0  # a stalled machine takes its time; a start takes about 3 s


@dataclass(frozen=True)
class LocalStack:
    """A running LocalStack. Its clients are shared, because they are safe in several threads and slow to create."""

    url: str

    def client(self, service: str) -> Any:
        """Return a boto3 client of a service of this LocalStack."""
        return _client(service, self.url)


@cache
def _client(service: str, url: str) -> Any:
    """Return a boto3 client of a service at `url`, without retries."""
    config = Config(retries={"total_max_attempts": 1}, read_timeout=_PATIENCE_S, max_pool_connections=32)
    return boto3.client(service, endpoint_url=url, region_name=REGION, config=config)


@contextlib.contextmanager
def localstack(folder: Path, *, mocks: dict[str, Any] | None = None, **environment: str) -> Iterator[LocalStack]:
    """Yield a running LocalStack, which ends with the block. `folder`: where it keeps its data and its log; `mocks`: content of its
    SFN_MOCK_CONFIG file; `environment`: further variables. Raises AssertionError if it does not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = {
        "LOCALSTACK_VOLUME_DIR": folder / "volume",
        "FILESYSTEM_ROOT": folder / "filesystem",
        "HOME": folder / "home",
    }
    for each in own.values():
        each.mkdir()
    (folder / "mocks.json").write_text(json.dumps(mocks or {"StateMachines": {}, "MockedResponses": {}}))
    port, holder = held_port()
    settings = {
        **{name: str(path) for name, path in own.items()},
        "PATH": f"{python('localstack').parent}{os.pathsep}{os.defpath}",
        "TMPDIR": str(folder),
        "GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "DNS_ADDRESS": "0",  # no name server of its own
        "DISABLE_EVENTS": "1",  # tells nobody
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "LAMBDA_RUNTIME_EXECUTOR": "witness",  # localstack/witness_lambda.py
        "LAMBDA_SYNCHRONOUS_CREATE": "1",
        "SFN_MOCK_CONFIG": str(folder / "mocks.json"),
        **environment,
    }
    log = folder / "log"
    holder.close()
    with log.open("wb") as output:
        child = servers.start_process(
            [python("localstack"), "-m", "localstack.runtime.main"], environment=settings, folder=folder, output=output
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url, child, log)
        yield LocalStack(url)
    finally:
        servers.stop_process(child, grace_s=1.0)  # its threads wait for questions that nobody asks any more


def _wait(url: str, child: Any, log: Path) -> None:
    """Wait until LocalStack answers. Fails if its process ends or takes too long."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/_localstack/health", timeout=10):
            return
        assert child.poll() is None, f"LocalStack ended:\n{log.read_text()[-2000:]}"
        assert time.monotonic() < until, f"LocalStack does not answer:\n{log.read_text()[-2000:]}"
        time.sleep(0.2)

"""SmartRedis, which simulations use RedisAI through: a walk over its clients and data sets, on one server and on a cluster of three."""

import subprocess
from pathlib import Path

import pytest

from tests.redis_module.servers import Server, Start, starting, until
from tests.witnesses.environments import HERE, environment
from tests.witnesses.torch_variant import archive, torch_module

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
SLOTS = ((0, 5460), (5461, 10922), (10923, 16383))


def joined(start: Start) -> list[Server]:
    """Three masters that know each other and share the slots."""
    servers = [start(config={"cluster-enabled": "yes"}) for _ in SLOTS]
    clients = [server.client() for server in servers]
    for epoch, (client, slots) in enumerate(zip(clients, SLOTS, strict=True), 1):
        client.execute_command("CLUSTER ADDSLOTSRANGE", *slots)
        client.execute_command("CLUSTER SET-CONFIG-EPOCH", epoch)
    for server in servers[1:]:
        clients[0].execute_command("CLUSTER MEET", "127.0.0.1", server.port)
    until(
        lambda: all(len(client.execute_command("CLUSTER SLOTS")) == 3 for client in clients),
        what="all slots known to all",
    )
    state = "each server's word that the cluster stands"
    until(
        lambda: all("ok" in str(client.execute_command("CLUSTER INFO")["cluster_state"]) for client in clients),
        what=state,
    )
    return servers


@pytest.mark.parametrize("kind", ["Standalone", "Clustered"])
def test_every_method_is_answered(kind: str, tmp_path: Path) -> None:
    judge = environment("smartredis") / "venv" / "bin" / "python"
    if not judge.exists():
        pytest.skip("SmartRedis needs a Python below 3.12, and this machine has none")
    with starting(torch_module()) as start:
        servers = joined(start) if kind == "Clustered" else [start()]
        addresses = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        command = [judge, HERE / "smartredis" / "walk.py", kind, addresses, archive(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith("left out: []"), done.stdout

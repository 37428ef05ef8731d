"""Debian 13 under its own systemd: the user data of hosts, whole, as an instance runs it at its first boot. AWS alone is a stand-in."""

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdk.hosts import boot_script
from tests.infrastructure.conftest import ROOT
from tests.infrastructure.fake_aws import facts
from tests.witnesses.booting import ADDRESS, NAME, BootedHost
from tests.witnesses.environments import environment

MODULE = ROOT / "redis_module" / "build" / "tensors.so"
PORT = "6379"
VENV = "/opt/crossover/venv"
LEAVE_ADDRESS = "etc/systemd/system/leave-fleet.service.d/address.conf"
BOOT_S = 120.0  # more than any of these takes

Boot = Callable[..., BootedHost]


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Boot]:
    """Yield a function that boots a host; all hosts are ended after the test."""
    hosts = list[BootedHost]()

    def booted(script: str, **named: Any) -> BootedHost:
        """Boot a host with this user data in a new folder, and return it. `named`: further arguments of BootedHost."""
        folder = tmp_path / f"host{len(hosts)}"
        folder.mkdir()
        hosts.append(BootedHost(folder, script, **named))
        return hosts[-1]

    yield booted
    for each in hosts:
        each.close()


# --- a database host ---


def database(**own: str) -> str:
    """Return the user data of a database host. `own`: settings of the boot script that differ."""
    told = {
        "NAME": "x-redis-2",
        "RANK": "2",
        "SIGNAL_URL": f"http://{ADDRESS}/signal",
        "SECRET": "arn:secret",
        "MODULE": "s3://assets/module.so",
        "BUCKET": "bucket",
        "PORT": PORT,
        "THREADS": "1",
        "SESSION_AGENT": "",  # Amazon's package, which is not Debian's
    }
    return "#!/bin/bash\n" + facts(**told | own) + boot_script("redis.sh")


def concluded(host: BootedHost) -> dict[str, str]:
    """Wait for the signal that the host sends to CloudFormation's wait condition, and return it. Checks that there is only one, that all
    requests were signed, and that neither signal nor log contains the secret.
    """
    host.wait_for(lambda: bool(host.aws.signals), at_most_s=BOOT_S)
    (signal,) = host.aws.signals
    assert host.aws.unsigned == [] and host.aws.secret not in json.dumps([signal, host.aws.logs])
    return signal


def test_a_database_host_boots_and_serves_behind_tls_and_password_after_a_restart_too(boot: Boot) -> None:
    """Check that a database host boots, serves behind TLS and a password, and keeps its data over a restart of the server."""
    host = boot(database(), objects={"assets/module.so": MODULE.read_bytes()})
    signal = concluded(host)
    assert (signal["Status"], signal["UniqueId"]) == ("SUCCESS", "x-redis-2"), signal["Reason"]
    certificate = host.aws.objects["bucket/hosts/redis/2.pem"].decode()
    assert certificate == host.run("cat", "/etc/redis/tls/certificate.pem")

    def redis(*words: str, password: str = host.aws.secret) -> str:
        """Run redis-cli in the host over TLS, and return what it prints."""
        cli = ["redis-cli", "-h", "127.0.0.1", "-p", PORT, "--tls", "--cacert", "/etc/redis/tls/certificate.pem"]
        return host.run("env", f"REDISCLI_AUTH={password}", *cli, *words)

    assert "crossover" in redis("MODULE", "LIST") or "tensor" in redis("MODULE", "LIST")
    assert redis("AI.TENSORSET", "x", "FLOAT", "2", "VALUES", "1", "2") == "OK\n"
    assert "NOAUTH" in redis("GET", "x", password="") or "AUTH failed" in redis("GET", "x", password="")
    host.run("systemctl", "restart", "redis-server")
    assert redis("AI.TENSORGET", "x", "VALUES").split() == ["1", "2"]
    modes = host.run("stat", "-c", "%a %U %G", "/etc/redis/redis.conf", "/etc/redis/tls/key.pem")
    assert set(modes.splitlines()) == {"640 root redis"}
    assert host.run("systemctl", "show", "-P", "ActiveState", "user-data", "redis-server").split() == [
        "inactive",
        "active",
    ]
    assert "boot-deadline" not in host.run("systemctl", "list-timers", "--all")


def test_a_host_whose_module_is_missing_says_so_and_powers_off(boot: Boot) -> None:
    """Check that a host which cannot download the module tries three times, signals the reason and powers itself off."""
    host = boot(database())
    signal = concluded(host)
    assert signal["Status"] == "FAILURE" and "get: HTTP Error 404" in signal["Reason"], signal
    assert "x-redis-2: boot failed with status 1" in signal["Reason"]
    host.wait_for_the_end(at_most_s=BOOT_S)
    assert host.aws.calls.count("GetObject assets/module.so") == 3  # it was tried again
    assert any("boot failed" in line for lines in host.aws.logs.values() for line in lines)


def test_a_boot_that_hangs_ends_at_its_deadline(boot: Boot) -> None:
    """Check that the deadline ends a boot in which a program hangs: the script is killed, without waiting for the program."""
    hanging = database(BOOT_S="5").replace("apt update\n", "sleep infinity\n", 1)
    assert hanging != database(BOOT_S="5")
    host = boot(hanging)
    signal = concluded(host)
    assert signal["Status"] == "FAILURE" and "it took longer than 5 s" in signal["Reason"], signal
    host.wait_for_the_end(at_most_s=BOOT_S)


# --- a peer ---

PROGRAM = """
import os, pwd, torch

def main():
    assert pwd.getpwuid(os.getuid()).pw_name == "crossover"
    print("peer of", os.environ["CROSSOVER_BUCKET"], "in boot", len(os.environ["CROSSOVER_INSTANCE"]), torch.__version__)
    raise SystemExit({status})
"""
TORCH = "torch-2.10.0-py3-none-any.whl"
LEAVING = "TerminateInstanceInAutoScalingGroup i-0123 true"


def torch_wheel() -> bytes:
    """Return the wheel of a tiny package that stands for PyTorch, whose own wheel has hundreds of megabytes."""
    files = {
        "torch/__init__.py": "__version__ = '2.10.0'\n",
        "torch-2.10.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0\n",
        "torch-2.10.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "torch-2.10.0.dist-info/RECORD"
    hashes = {name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()) for name, text in files.items()}
    listed = [f"{name},sha256={hashes[name].decode().rstrip('=')},{len(text)}" for name, text in files.items()]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in {**files, record: "\n".join([*listed, f"{record},,"]) + "\n"}.items():
            archive.writestr(name, text)
    return packed.getvalue()


def peer(boot: Boot, *, status: int, digest: str = "") -> BootedHost:
    """Boot a peer whose program ends with `status`, and return the host. `digest`: PyTorch's SHA-256 in the lock file, by default that of
    its wheel.
    """
    wheel, packed = torch_wheel(), io.BytesIO()
    requirements = (environment(NAME) / "requirements.txt").read_text()
    requirements += f"torch==2.10.0 --hash=sha256:{digest or hashlib.sha256(wheel).hexdigest()}\n"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("peers/program.py", PROGRAM.format(status=status))
        archive.writestr("requirements.txt", requirements)
    told = {
        "NAME": "crossover-x-fleet",
        "CODE": "s3://assets/program.zip",
        "VENV": VENV,
        "SESSION_AGENT": "",
        "PROGRAM": "peers.program",
        "MAXIMUM_S": "21600",
        "ENVIRONMENT": "CROSSOVER_BUCKET=bucket",
    }
    return boot(
        "#!/bin/bash\n" + facts(**told) + boot_script("program.sh"),
        variables={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/srv/wheels /srv/torch"},
        files={
            f"srv/torch/{TORCH}": wheel,
            LEAVE_ADDRESS: f"[Service]\nEnvironment=AWS_ENDPOINT_URL=http://{ADDRESS}\n".encode(),
        },
        objects={"assets/program.zip": packed.getvalue()},
    )


@pytest.mark.parametrize(("status", "starts"), [(0, 1), (1, 4)])
def test_a_peer_installs_by_hashes_runs_as_a_service_and_leaves_the_fleet(boot: Boot, status: int, starts: int) -> None:
    """Check that a peer's program runs as a service, up to four times if it fails, and that the host leaves the fleet afterwards."""
    host = peer(boot, status=status)
    host.wait_for(lambda: LEAVING in host.aws.calls, at_most_s=BOOT_S)
    said = host.run("journalctl", "--no-pager", "-o", "cat", "-u", "crossover")
    assert said.count("peer of bucket in boot 32 2.10.0") == starts
    assert host.run("systemctl", "show", "-P", "ActiveState", "longest-run.timer") == "active\n"
    log = "\n".join(line for lines in host.aws.logs.values() for line in lines)
    assert "PyTorch 2.10.0" in log and "crossover-x-fleet: boot complete" in log


def test_a_peer_takes_no_package_of_another_hash_and_leaves(boot: Boot) -> None:
    """Check that a peer refuses a package with another hash than the lock file's, and leaves the fleet."""
    host = peer(boot, status=0, digest="0" * 64)
    host.wait_for(lambda: LEAVING in host.aws.calls, at_most_s=BOOT_S)
    log = "\n".join(line for lines in host.aws.logs.values() for line in lines)
    assert "DO NOT MATCH THE HASHES" in log and "boot failed" in log

"""The Redis host's boot script, run whole on this machine: AWS, apt and systemd are stand-ins, Redis, OpenSSL and the module are real."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crossover.local import redis_server
from tests.infrastructure.conftest import ROOT
from tests.ports import held_port

MODULE = ROOT / "redis_module" / "build" / "tensors.so"
SCRIPT = ROOT / "cdk" / "boot" / "redis.sh"

# Whatever starts here ends by itself after two minutes, also when the test is killed.
STUBS = {
    "apt-get": "true",
    "dpkg": "true",
    "chown": "true",
    "chgrp": "true",
    "systemctl": '[ -z "$NO_MODULE" ] || sed -i /loadmodule/d "$HOST/etc/redis/redis.conf"\n'
    'if [ "$*" = "enable --now redis-server" ]; then\n'
    '  setsid timeout 120 redis-server "$HOST/etc/redis/redis.conf" >"$HOST/redis.log" 2>&1 & echo $! >"$HOST/redis.pid"\n'
    # as systemctl does for Debian's unit (Type=notify): until it is ready, or has ended
    '  until grep -q "Ready to accept" "$HOST/redis.log" || ! kill -0 $!; do /bin/sleep 0.02; done; fi',
    "aws": 'echo "$*" >>"$HOST/aws.log"\n'
    'case "$1 $2" in\n'
    '  "secretsmanager get-secret-value") echo "$PASSWORD" ;;\n'
    '  "s3 cp") if [[ $4 == s3://* ]]; then cp "$TENSORS" "$5"; else cp "$4" "$HOST/uploaded.pem"; fi ;;\n'
    "esac",
    "curl": 'case "$*" in\n'
    "  *api/token*) echo token ;;\n"
    "  *local-ipv4*) echo 127.0.0.1 ;;\n"
    '  *signal.example*) while [ $# -gt 1 ]; do [ "$1" = --data-binary ] && echo "$2" >>"$HOST/signals"; shift; done ;;\n'
    "esac",
    "sleep": "exec /bin/sleep 0.05",
    "install": 'args=(); while [ $# -gt 0 ]; do case "$1" in -o|-g) shift 2 ;; *) args+=("$1"); shift ;; esac; done\n'
    'exec /usr/bin/install "${args[@]}"',
}


class Host:
    """A folder that stands for a host's root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bin").mkdir()
        for folder in ("etc/redis", "usr/lib", "var/lib/redis"):
            (root / folder).mkdir(parents=True)
        for name, body in STUBS.items():
            path = root / "bin" / name
            path.write_text(f"#!/bin/bash\n{body}\n")
            path.chmod(0o755)
        self.port, self._port_holder = held_port()

    def boot(self, **environment: str) -> subprocess.CompletedProcess[str]:
        text = SCRIPT.read_text()
        for folder in ("/etc/redis", "/etc/systemd", "/usr/lib/crossover", "/var/lib/redis"):
            text = text.replace(folder, f"{self.root}{folder}")
        facts = {
            "RANK": "2",
            "REGION": "us-east-1",
            "SIGNAL_URL": "https://signal.example/",
            "SECRET": "arn:secret",
            "MODULE": "s3://assets/module.so",
            "BUCKET": "bucket",
            "PORT": str(self.port),
            "THREADS": "1",
            "DEB": "arm64",
        }
        header = "".join(f"{key}='{value}'\n" for key, value in facts.items())
        stand_ins = {
            "HOST": str(self.root),
            "TENSORS": str(MODULE),
            "PASSWORD": "s3cret",
        } | environment
        return subprocess.run(
            ["timeout", "100", "bash", "-c", header + text],
            env={**os.environ, "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", **stand_ins},
            capture_output=True,
            text=True,
            check=False,
        )

    def signals(self) -> list[dict[str, str]]:
        path = self.root / "signals"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def stop(self) -> None:
        pid = self.root / "redis.pid"
        if pid.exists():
            number = int(pid.read_text())
            try:
                os.kill(number, 15)
                while True:  # it is no child of this process, so it cannot be waited for
                    os.kill(number, 0)
                    time.sleep(0.01)
            except ProcessLookupError:
                pass
        self._port_holder.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    for program in ("redis-server", "redis-cli", "openssl", "bash"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if not MODULE.exists():
        pytest.skip("the tensor module is not built: make redis-module")
    made = Host(tmp_path)
    yield made
    made.stop()


def test_a_host_comes_up_with_module_password_and_a_certificate_of_its_own(host: Host) -> None:
    done = host.boot()
    assert done.returncode == 0, done.stderr + done.stdout
    assert [s["Status"] for s in host.signals()] == ["SUCCESS"]
    assert host.signals()[0]["UniqueId"] == "redis-2"
    unit = host.root / "etc/systemd/system/redis-server.service.d/memory.conf"
    memory = f"[Service]\nEnvironment=MALLOC_CONF={redis_server.MEMORY}\n"
    assert unit.read_text() == memory  # what is measured here runs there
    certificate = host.root / "uploaded.pem"
    calls = (host.root / "aws.log").read_text()
    assert "s3://bucket/hosts/redis/2.pem" in calls
    assert "s3cret" not in calls + done.stdout + done.stderr

    trusting = ssl.create_default_context(cadata=certificate.read_text())  # verifies chain and address
    with socket.create_connection(("127.0.0.1", host.port)) as plain:
        with trusting.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            secure.sendall(b"PING\r\n")
            assert secure.recv(100).startswith(b"-NOAUTH")
            secure.sendall(b"AUTH s3cret\r\n")
            assert secure.recv(100) == b"+OK\r\n"
            secure.sendall(b"CONFIG GET appendfsync\r\n")
            assert b"always" in secure.recv(100)
            secure.sendall(b"AI.TENSORSET x FLOAT 2 VALUES 1 2\r\n")
            assert secure.recv(100) == b"+OK\r\n"
    without_tls = ["redis-cli", "-e", "-p", str(host.port), "-a", "s3cret", "--no-auth-warning", "ping"]
    assert subprocess.run(without_tls, capture_output=True, check=False).returncode != 0


def test_the_password_is_readable_by_the_server_alone(host: Host) -> None:
    host.boot()
    assert (host.root / "etc/redis/redis.conf").stat().st_mode & 0o777 == 0o640
    assert (host.root / "etc/redis/tls/key.pem").stat().st_mode & 0o777 == 0o640


def test_a_boot_that_fails_fails_the_deployment(host: Host) -> None:
    done = host.boot(TENSORS="/nowhere")
    assert done.returncode != 0
    (signal, *_) = host.signals()
    assert signal["Status"] == "FAILURE"
    assert "redis host 2: line" in signal["Reason"]
    assert not (host.root / "uploaded.pem").exists()


def test_a_server_without_the_module_fails_the_deployment(host: Host) -> None:
    host.boot(NO_MODULE="1")
    assert {s["Status"] for s in host.signals()} == {"FAILURE"}


def test_a_server_that_refuses_the_module_fails_the_deployment(host: Host, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    host.boot(TENSORS=str(broken))
    assert {s["Status"] for s in host.signals()} == {"FAILURE"}

"""The Redis host's boot script, run whole on this machine: AWS, apt and systemd are stand-ins, Redis, OpenSSL and the module are real."""

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdk.hosts import boot_script
from crossover.local import servers
from tests.infrastructure.conftest import ROOT
from tests.infrastructure.fake_aws import Machine, facts
from tests.ports import held_port
from tests.sampling import WHOLE

MODULE = ROOT / "redis_module" / "build" / "tensors.so"

# Whatever starts here ends by itself after two minutes, also when the test is killed. Of curl, unzip, make, g++ and AWS's command line a
# host has none.
STUBS = {
    "apt-get": 'echo "apt-get $*" >>"$HOST/calls"\n'
    '[ -z "$HANG" ] || { sh -c "$(cat "$HOST/deadline")"; exec /bin/sleep 60; }',
    "dpkg": "echo arm64",
    "chown": "true",
    "chgrp": "true",
    "snap": "false",
    "journalctl": "tail -n 40 $HOST/redis.log",
    "systemd-run": 'echo "systemd-run $*" >>"$HOST/calls"; echo "${@: -1}" >"$HOST/deadline"',
    "systemctl": 'echo "systemctl $*" >>"$HOST/calls"\n[ "$1" != is-active ] || exit 3\n'
    '[ -z "$NO_MODULE" ] || sed -i /loadmodule/d "$HOST/etc/redis/redis.conf"\n'
    'if [ "$*" = "enable --now redis-server" ]; then\n'
    '  setsid timeout 120 redis-server "$HOST/etc/redis/redis.conf" >"$HOST/redis.log" 2>&1 & echo $! >"$HOST/redis.pid"\n'
    # as systemctl does for Debian's unit (Type=notify): until it is ready, or has ended
    '  until grep -q "Ready to accept" "$HOST/redis.log" || ! kill -0 $!; do /bin/sleep 0.02; done\n'
    '  grep -q "Ready to accept" "$HOST/redis.log"; fi',
    "sleep": "exec /bin/sleep 0.05",
    "install": 'args=(); while [ $# -gt 0 ]; do case "$1" in -o|-g) shift 2 ;; *) args+=("$1"); shift ;; esac; done\n'
    'exec /usr/bin/install "${args[@]}"',
    **{name: f"echo {name} is not there; exit 127" for name in ("aws", "curl", "unzip", "g++", "make")},
    "python3": 'exec "$PYTHON" "$@"',
}
FOLDERS = ("/etc/redis", "/etc/systemd", "/usr/lib/crossover", "/usr/local", "/var/lib/redis", "/var/log", "/var/cache")
AGENT_URL = "https://s3.$REGION.amazonaws.com/amazon-ssm-$REGION/$SESSION_AGENT/debian_$(dpkg --print-architecture)/amazon-ssm-agent.deb"


class Host(Machine):
    """A host of the tensor database."""

    def __init__(self, root: Path) -> None:
        """Make the host's folders, put the tensor module and the agent's package into the fake AWS, and hold a port for Redis."""
        super().__init__(root, STUBS, "etc/redis", "usr/lib", "usr/local/lib", "var/lib/redis", "var/log", "var/cache")
        self.aws.objects |= {"assets/module.so": MODULE.read_bytes(), "agent.deb": b"package"}
        self.port, self._port_holder = held_port()

    @property
    def script(self) -> str:
        """Return the boot script of a Redis host, preceded by the variables that the stack would set."""
        own = {
            "NAME": "x-redis-2",
            "RANK": "2",
            "SIGNAL_URL": f"{self.aws.url}/signal",
            "SECRET": "arn:secret",
            "MODULE": "s3://assets/module.so",
            "BUCKET": "bucket",
            "PORT": str(self.port),
            "THREADS": "1",
        }
        return facts(**own) + boot_script("redis.sh")

    def boot(self, script: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the boot script, or `script`, on this host to its end and return the result. `environment`: variables that make its
        programs fail or hang.
        """
        text = (script or self.script).replace(AGENT_URL, f"{self.aws.url}/agent.deb")
        return self.run("bash", "-c", self.here(text, FOLDERS), **{"NO_MODULE": "", "HANG": ""} | environment)

    @property
    def log(self) -> str:
        """Return the boot's log; "" if there is none."""
        path = self.root / "var/log/crossover-boot.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def outcome(self) -> dict[str, str]:
        """Return the one signal that the deployment was sent. Asserts that the secret is in neither the signal nor the logs."""
        (signal,) = self.aws.signals
        assert signal["UniqueId"] == "x-redis-2"
        assert set(self.aws.unsigned) <= {"GetObject agent.deb"}  # anybody may read it
        assert self.aws.secret not in json.dumps(signal) + json.dumps(self.aws.logs)
        return signal

    def stop(self) -> None:
        """Close the fake AWS, end redis-server if it was started and wait until it is gone, and release the port."""
        self.aws.close()
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
    """Yield a host to boot; it is stopped afterwards. Skips if a program or the tensor module is missing."""
    for program in ("redis-server", "redis-cli", "openssl", "bash"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if not MODULE.exists():
        pytest.skip("the tensor module is not built: make redis-module")
    made = Host(tmp_path)
    yield made
    made.stop()


@pytest.mark.slow
def test_a_host_comes_up_with_module_password_and_a_certificate_of_its_own(host: Host) -> None:
    """Boot a Redis host, and check that it reports success and that its Redis has the module, the password and a certificate that clients
    verify.
    """
    done = host.boot()
    assert done.returncode == 0, host.log + done.stderr
    assert host.outcome()["Status"] == "SUCCESS"
    assert "systemctl poweroff" not in host.calls()
    unit = host.root / "etc/systemd/system/redis-server.service.d/memory.conf"
    memory = f"[Service]\nEnvironment=MALLOC_CONF={servers.MEMORY}\n"
    assert unit.read_text() == memory  # what is measured here runs there
    assert (host.root / "usr/lib/crossover/tensors.so").read_bytes() == MODULE.read_bytes()
    certificate = host.aws.objects["bucket/hosts/redis/2.pem"].decode()
    assert "s3cret" not in host.log + done.stdout + done.stderr

    trusting = ssl.create_default_context(cadata=certificate)  # verifies chain and address
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
    for path in ("redis.conf", "tls/key.pem"):  # the server alone may read them
        assert (host.root / "etc/redis" / path).stat().st_mode & 0o777 == 0o640

    installed = [call.partition("--no-install-recommends ")[2] for call in host.calls() if "recommends" in call]
    assert installed == ["ca-certificates openssl redis-server"]  # nothing else is wanted
    assert all("-o DPkg::Lock::Timeout=600" in call for call in host.calls() if call.startswith("apt-get"))
    assert host.aws.logs["/crossover/x/boot x-redis-2/i-0123"][-1] == "x-redis-2: boot complete"


def test_a_boot_that_fails_says_why_and_ends_the_host(host: Host) -> None:
    """Let a boot fail. Check that the deployment gets the reason, the log ends with the failed line, and the host shuts down."""
    host.boot(
        host.script.replace(
            "agent\n\n", "agent\nprintf 'a \"quote\", \\\\, \\x01 \\xff \\xe2\\x82\\xac\\n'\nfalse\n\n", 1
        )
    )
    signal = host.outcome()
    assert signal["Status"] == "FAILURE"
    *_, said, last = signal["Reason"].splitlines()
    assert said == 'a "quote", \\,   \ufffd \u20ac'  # control characters are none of XML's
    assert re.fullmatch(r"x-redis-2: boot failed with status 1: line \d+, false", last)
    assert host.calls()[-1] == "systemctl poweroff"
    assert host.aws.logs["/crossover/x/boot x-redis-2/i-0123"][-1] == last
    assert "bucket/hosts/redis/2.pem" not in host.aws.objects


def test_a_reason_is_the_end_of_the_log(host: Host) -> None:
    """Check that the reason of a failed boot is the end of its log, at most 2,000 bytes, while the whole log is kept."""
    noise = "for n in {1..400}; do echo $n \u20ac\u20ac\u20ac; done"
    host.boot(host.script.replace("agent\n\n", f"agent\n{noise}\nfalse\n\n", 1))
    reason = host.outcome()["Reason"]
    assert 1_900 < len(reason.encode()) <= 2_000
    assert "\n400 \u20ac\u20ac\u20ac\n" in reason
    assert len(host.aws.logs["/crossover/x/boot x-redis-2/i-0123"]) > 400


@pytest.mark.parametrize(
    ("line", "instead", "reason"),
    [
        (
            "chown root:redis",
            "echo requirepass $password; false; chown root:redis",
            "requirepass ***",
        ),  # told to nobody
        ("agent\n\n", "agent\necho $NOBODY_SET_THIS\n\n", "NOBODY_SET_THIS: unbound variable"),
    ],
)
def test_what_is_said_of_a_line_that_fails(line: str, instead: str, reason: str, host: Host) -> None:
    """Replace a line of the boot script by one that fails, and check the reason that the deployment gets."""
    host.boot(host.script.replace(line, instead, 1))
    assert reason in host.outcome()["Reason"]


def lines_of(script: str) -> list[int]:
    """Return the numbers (from 0) of the lines where a command at the script's top level begins; lines in a function, in a here-document or
    in a continued command do not count.
    """
    found, inside = [], ""
    for number, line in enumerate(script.splitlines()):
        if inside:
            inside = "" if line == inside else inside
        elif line.endswith("{") or line.startswith("concluded()"):
            inside = "}"
        elif ends := re.search(r"<<'?([A-Z]+)'?$", line):
            inside = ends[1]
            found.append(number)
        elif line and not line.startswith((" ", "if", "fi")) and "() {" not in line:
            found.append(number)
    return found


@pytest.mark.slow
def test_whatever_line_fails_the_deployment_hears_of_it_once(tmp_path: Path) -> None:
    """Check that a command that fails behind any line of the boot script is signalled with its line, and the host powers itself off.

    Lines before the trap are left out, because they set what it needs.
    """
    script = boot_script("redis.sh").splitlines()
    first = next(number for number, line in enumerate(script) if line.startswith("systemd-run"))
    numbers = [each for each in lines_of("\n".join(script)) if each > first]
    assert script[numbers[-1]] == "outcome=complete" and len(numbers) > 20
    if not WHOLE:
        numbers = numbers[::6]
    for number in numbers:
        host = Host(_folder(tmp_path / str(number)))
        try:
            header = len(host.script.splitlines()) - len(script)
            lines = host.script.splitlines()
            fails = "\n".join([*lines[: header + number], "false", *lines[header + number :]])
            assert host.boot(fails).returncode != 0, script[number]
            signal = host.outcome()
            assert (signal["Status"], host.calls()[-1]) == ("FAILURE", "systemctl poweroff"), script[number]
            assert f"line {header + number + 1}, false" in signal["Reason"]
        finally:
            host.stop()


def _folder(path: Path) -> Path:
    """Create the folder and return its path."""
    path.mkdir()
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        lambda host: host.aws.objects.pop("assets/module.so"),
        lambda host: host.aws.objects.update({"assets/module.so": b"not a library"}),
        lambda host: host.aws.fails.add("GetSecretValue"),
        lambda host: host.aws.fails.add("PutObject"),
        lambda host: host.aws.objects.pop("agent.deb"),
    ],
    ids=["no module", "no library", "no secret", "no certificate taken", "no agent"],
)
def test_a_boot_without_what_it_needs_fails_the_deployment(host: Host, fault: Callable[[Host], object]) -> None:
    """Take away something that the boot needs. Check that the deployment fails, the host shuts down, and no certificate is stored."""
    fault(host)
    assert host.boot().returncode != 0
    assert host.outcome()["Status"] == "FAILURE"
    assert host.calls()[-1] == "systemctl poweroff"
    assert "bucket/hosts/redis/2.pem" not in host.aws.objects


@pytest.mark.slow
def test_a_log_group_that_refuses_changes_nothing_else(host: Host) -> None:
    """Check that a boot succeeds although its log cannot be written."""
    host.aws.fails |= {"CreateLogStream", "PutLogEvents"}
    host.boot()
    assert host.outcome()["Status"] == "SUCCESS"


@pytest.mark.slow
def test_a_server_without_the_module_fails_the_deployment(host: Host) -> None:
    """Check that the deployment fails if Redis runs without the module."""
    host.boot(NO_MODULE="1")
    assert host.outcome()["Status"] == "FAILURE"


def test_a_boot_that_hangs_says_so(host: Host) -> None:
    """Check that the boot sets a timer for its deadline, and that its end signals the time and powers the host off.

    systemd's timer ends the script at the deadline; here the command that hangs does.
    """
    host.boot(HANG="1")
    assert "systemd-run --quiet --on-active=1200s --unit=boot-deadline /bin/sh -c kill -TERM" in host.calls()[0]
    assert "took longer than 1200 s" in host.outcome()["Reason"]
    assert host.calls()[-1] == "systemctl poweroff"

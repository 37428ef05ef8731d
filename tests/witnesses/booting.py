"""A Debian host under its own systemd, in namespaces of this machine: its user data runs at its first boot, and AWS is a stand-in.

Everything that a host mounts or starts is in its namespaces, and ends with them: with this process too, however that ends.
"""

import ctypes
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.infrastructure.fake_aws import FakeAws
from tests.witnesses.environments import HERE, environment

NAME = "debian_boot"
ADDRESS = "169.254.169.254"  # of the metadata, in the host's own network
USER_DATA = "var/lib/cloud/user-data"
UNIT = "etc/systemd/system/user-data.service"
CLONE_NEWNET = 0x40000000
PREFIX = "crossover-boot-"


class BootedHost:
    """A host under its own systemd that runs its user data at its first boot; `close` ends it. `folder`: folder for the files of its image;
    `user_data`: as an instance gets it; `variables`: of the user data's environment; `files`: further files of its image, by path;
    `objects`: contents of its buckets, by "bucket/key". `aws`: the stand-in for AWS.
    """

    def __init__(
        self,
        folder: Path,
        user_data: str,
        *,
        variables: Mapping[str, str] = {},
        files: Mapping[str, bytes] = {},
        objects: Mapping[str, bytes] = {},
    ) -> None:
        """Write the host's files, and boot it in namespaces and a control group of its own."""
        base = environment(NAME) / "base"
        self._folder = folder
        self._write(USER_DATA, user_data.encode())
        told = {"AWS_ENDPOINT_URL": f"http://{ADDRESS}", "PAUSES": "0.2 0.2 0", **variables}
        self._write(UNIT, _unit(told).encode())
        for path, content in files.items():
            self._write(path, content)
        wanted = folder / "etc/systemd/system/multi-user.target.wants"
        wanted.mkdir(parents=True)
        (wanted / "user-data.service").symlink_to("/" + UNIT)
        self._group = _control_group()
        namespaces = ["--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--kill-child", "--fork"]
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, HERE / "booting.sh", base, folder]
        enter = 'echo $$ >"$0/cgroup.procs"; exec "$@"'
        self.console = (folder.parent / f"{folder.name}.console").open("w+")
        self._process = subprocess.Popen(
            ["sh", "-c", enter, self._group, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.console,
            text=True,
        )
        assert self._process.stdout is not None and self._process.stdin is not None
        line = self._process.stdout.readline()
        assert line == "ready\n", self.said()
        self.aws = FakeAws(_listening_in(self.init))
        self.aws.objects |= objects
        self._draining = threading.Thread(target=self._drain)
        self._draining.start()
        self._process.stdin.write("go\n")
        self._process.stdin.close()

    def _write(self, path: str, content: bytes) -> None:
        """Write a file into the host's folder."""
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    def _drain(self) -> None:
        """Copy the host's output to the console's file until the host ends."""
        assert self._process.stdout is not None
        with self._process.stdout as shown:
            for line in shown:
                self.console.write(line)

    @property
    def init(self) -> int:
        """The host's first process, by its number on this machine."""
        number = self._process.pid
        return int(Path(f"/proc/{number}/task/{number}/children").read_text().split()[0])

    def said(self) -> str:
        """Return the last 6,000 characters of the console's output."""
        self.console.flush()
        return Path(self.console.name).read_text(errors="replace")[-6_000:]

    def run(self, *command: str, fails: bool = False) -> str:
        """Run a command in the host, and return what it prints on standard output. `fails`: whether the command must fail. Raises
        AssertionError if it does the opposite, TimeoutExpired after 60 s.
        """
        enter = ["nsenter", "-t", str(self.init), "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup"]
        done = subprocess.run([*enter, *command], capture_output=True, text=True, check=False, timeout=60)
        assert bool(done.returncode) is fails, done.stdout + done.stderr
        return done.stdout

    def wait_for(self, what: Callable[[], bool], *, at_most_s: float) -> None:
        """Wait until `what` returns True. Raises AssertionError after `at_most_s` seconds, or if the host has ended."""
        limit = time.monotonic() + at_most_s
        while not what():
            assert self._process.poll() is None, f"the host has ended: {self.said()}"
            assert time.monotonic() < limit, self.said()
            time.sleep(0.1)

    def wait_for_the_end(self, *, at_most_s: float) -> None:
        """Wait until the host has powered itself off. Raises TimeoutExpired after `at_most_s` seconds."""
        self._process.wait(timeout=at_most_s)

    def close(self) -> None:
        """End the host, and all that it started."""
        (self._group / "cgroup.kill").write_text("1")
        self._process.wait()
        self._draining.join()
        self.aws.close()
        self.console.close()
        _remove(self._group)


def _unit(variables: Mapping[str, str]) -> str:
    """Return the systemd unit that runs the user data, in place of cloud-init."""
    given = "".join(f'Environment="{name}={value}"\n' for name, value in variables.items())
    return (
        "[Unit]\nDescription=User data, in cloud-init's place\nAfter=basic.target\n"
        f"[Service]\nType=oneshot\nTimeoutStartSec=infinity\n{given}ExecStart=/bin/bash /{USER_DATA}\n"
    )


def _control_group() -> Path:
    """Create a control group of version 2, and return its path. Empty ones that killed tests have left are removed."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    root = next((Path(each[1]) for each in mounts if each[2] == "cgroup2"), None)
    assert root, "no control groups of version 2 are mounted here, and systemd takes no other"
    for left in root.glob(f"{PREFIX}*"):
        if "populated 0" in (left / "cgroup.events").read_text():
            _remove(left)
    made = root / f"{PREFIX}{os.getpid()}-{time.monotonic_ns()}"
    made.mkdir()
    return made


def _remove(group: Path) -> None:
    """Wait until a control group has no more processes, and remove it and those below it."""
    while "populated 1" in (group / "cgroup.events").read_text():
        time.sleep(0.02)
    for folder, _, _ in os.walk(group, topdown=False):
        os.rmdir(folder)


def _listening_in(process: int) -> socket.socket:
    """Return a socket that listens at ADDRESS in the network of a process."""
    made = list[socket.socket]()

    def listen() -> None:  # in a thread of its own, as a thread has one network
        """Enter the network namespace of the process, and open the socket. Runs in a thread of its own, because it changes the thread's
        namespace for good.
        """
        with open(f"/proc/{process}/ns/net") as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        made.append(socket.create_server((ADDRESS, 80)))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    return made[0]

"""Processes on this machine: Redis, RabbitMQ, their ports, and a watchdog that ends them with their parent."""

import atexit
import base64
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any

from crossover.errors import MissingTool, RunFailed
from crossover.local import watchdog
from crossover.processes import EndedBySignal, resend_ignored_signals

# --- ports ------------------------------------------------------------------------------------------------------------


def find_free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is free at this moment; it is not reserved. A caller that cannot bind it must choose again."""
    return find_free_ports(1)[0]


def find_free_ports(count: int) -> list[int]:
    """Return `count` different TCP ports of 127.0.0.1 that are free at this moment; they are not reserved. A caller that cannot bind one
    must choose again.
    """
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


# --- tools ------------------------------------------------------------------------------------------------------------
# The programs that the cloud on one machine starts: found here alone, and asked for before anything is started, all at once.
#
# CROSSOVER_REDIS_SERVER and CROSSOVER_RABBITMQ_SERVER name other programs than the machine's own: another release, or Valkey. Beside
# another rabbitmq-server lie the `erl` and `epmd` that it wants.

REDIS, RABBITMQ = "redis-server", "rabbitmq-server"
PACKAGES = {REDIS: REDIS, RABBITMQ: RABBITMQ, "g++": "g++", "make": "make"}  # program -> Debian's and Ubuntu's package
CHOSEN_BY = {REDIS: "CROSSOVER_REDIS_SERVER", RABBITMQ: "CROSSOVER_RABBITMQ_SERVER"}
_DEBIANS_RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the wrapper in sbin would switch the user


def find_program(program: str) -> str | None:
    """Return the path of `program` on this machine, or None if it is not installed. Valkey counts as Redis; RabbitMQ needs Erlang's `epmd`
    too. The environment variable CROSSOVER_REDIS_SERVER or CROSSOVER_RABBITMQ_SERVER names another program to use.

    Raises MissingTool if that variable names no executable program.
    """
    variable = CHOSEN_BY.get(program, "")
    if chosen := os.environ.get(variable):
        found = shutil.which(chosen)
        if found is None:
            raise MissingTool(f"{variable}={chosen}: no program there that can be executed")
        return str(Path(found).absolute())
    if program == REDIS:
        return shutil.which(REDIS) or shutil.which("valkey-server")
    if program == RABBITMQ:  # epmd comes with its Erlang
        return shutil.which(_DEBIANS_RABBITMQ) if shutil.which("epmd") else None
    return shutil.which(program)


def require_program(program: str) -> str:
    """Return the path of `program` (a key of PACKAGES), as `find_program` does. Raises MissingTool, which names the package to install, if
    it is not installed; also as `find_program` does.
    """
    found = find_program(program)
    if found is None:
        raise MissingTool(f"{program}: not found on this machine; install it with: apt-get install {PACKAGES[program]}")
    return found


def check_programs() -> None:
    """Raise MissingTool if a program that the local cloud needs is not installed. The message names the packages of all missing ones and
    the command that installs them. Only if CROSSOVER_REDIS_SERVER or CROSSOVER_RABBITMQ_SERVER names no executable program, it names that
    variable alone.
    """
    missing = sorted(package for program, package in PACKAGES.items() if find_program(program) is None)
    if missing:
        raise MissingTool(
            f"{', '.join(missing)}: not found on this machine; install with: apt-get install {' '.join(missing)}"
        )


# --- processes --------------------------------------------------------------------------------------------------------
# Child processes that never outlive this process.
#
# Three nets, each for what the one before cannot catch: context managers and `atexit` for an orderly end, signals turned into an orderly
# end (`exit_on_signals`), and the watchdog (watchdog.py), a process of its own that notices a kill -9. A watchdog that is itself killed
# has a successor as soon as that is noticed. PR_SET_PDEATHSIG is not among them: it fires when the starting *thread* ends, and servers are
# started from request threads here.

MARK = "CROSSOVER_STARTED_BY"  # in the environment of everything started here; the watchdog looks for it

_lock = threading.Lock()
_guard: "_Guard | None" = None


class _Guard:
    """The mark and the watchdog of this process: they make sure that its child processes and temporary folders do not outlive it.
    `_ensure_guard` makes the only one. The mark, `value`, is in the environment of every child; the watchdog is a process that kills all
    processes with the mark once this one is gone, and deletes the registered folders.
    """

    def __init__(self) -> None:
        """Choose a mark that only this process has, and start the watchdog."""
        self.pid = os.getpid()
        self.value = f"{self.pid}-{secrets.token_hex(8)}"
        self.children: list[subprocess.Popen[bytes]] = []
        self.folders: list[Path] = []
        self._lock = threading.Lock()
        self._watchdog = self._start_watchdog()

    def _start_watchdog(self) -> "subprocess.Popen[bytes]":
        """Start the watchdog's process, which ends this process's children when its standard input closes."""
        return subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__, f"{MARK}={self.value}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            bufsize=0,  # what a dead watchdog did not read must not be written once more when the pipe is closed
            start_new_session=True,  # a Ctrl-C in the terminal must not reach it
        )

    def register(self, folder: Path) -> None:
        """Register `folder` to be deleted when this process ends, however it ends."""
        with self._lock:
            self.folders.append(folder)
            self._notify_watchdog("remove", folder)

    def unregister(self, folder: Path) -> None:
        """Undo `register` for `folder`, which was deleted or may stay."""
        with self._lock:
            self.folders.remove(folder)
            self._notify_watchdog("keep", folder)

    def _notify_watchdog(self, verb: str, folder: Path) -> None:
        """Write a line "remove FOLDER" or "keep FOLDER" to the watchdog."""
        assert self._watchdog.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its successor is told of all folders
            self._watchdog.stdin.write(f"{verb} {folder}\n".encode())

    def restart_dead_watchdog(self) -> None:
        """Start a new watchdog if the current one has ended, and register all folders with it."""
        with self._lock:
            if self._watchdog.poll() is None:
                return
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()
            self._watchdog = self._start_watchdog()
            for folder in self.folders:
                self._notify_watchdog("remove", folder)

    def end(self) -> None:
        """Stop all child processes, kill every process that carries the mark, delete the registered folders, and end the watchdog. Does
        nothing in a fork of this process.
        """
        if os.getpid() != self.pid:  # a fork of the main process runs atexit too
            return
        for child in reversed(self.children):
            if child.poll() is None:
                stop_process(child, grace_s=3.0)
        watchdog.kill_marked(f"{MARK}={self.value}".encode())
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        self._watchdog.wait()


def _ensure_guard() -> _Guard:
    """Return the guard of this process; create it, with its watchdog, at the first call or after a fork, and replace a killed watchdog. A
    new guard's `end` is registered to run at this process's regular end.
    """
    global _guard
    with _lock:
        if _guard is None or _guard.pid != os.getpid():
            _guard = _Guard()
            atexit.register(_guard.end)
        else:
            _guard.restart_dead_watchdog()
        return _guard


def restart_dead_watchdog() -> None:
    """Start a new watchdog (the process that ends this process's children after its end) if the current one was killed, or if there is none
    yet. Starting a process or creating a temporary folder does so too.
    """
    _ensure_guard()


def mark_variable() -> dict[str, str]:
    """Return {name: value} of the environment variable by which the watchdog finds a process and kills it after this process's end, for
    processes that `start_process` does not start. Starts the watchdog if there is none.
    """
    return {MARK: _ensure_guard().value}


def start_process(
    arguments: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
    output: int | IO[bytes] = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start the command `arguments` (program and options) as a child process in a session of its own, without standard input, and return
    it. It ends at the latest with this process. Raises FileNotFoundError if there is no such program.

    `environment`: replaces this process's variables (the one by which the watchdog finds the child is added); `folder`: its working
    directory; `output`: receives standard output and error; `pass_fds`: file descriptors that it inherits.
    """
    guard = _ensure_guard()
    child = subprocess.Popen(
        [str(argument) for argument in arguments],
        env={**(os.environ if environment is None else environment), MARK: guard.value},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    )
    with _lock:
        guard.children = [each for each in guard.children if each.poll() is None] + [child]
    return child


def stop_process(
    child: subprocess.Popen[bytes], *, number: signal.Signals = signal.SIGTERM, grace_s: float = 10.0
) -> int:
    """Send the signal `number` to the process `child` and wait for its end; if it still runs after `grace_s` seconds, kill its whole
    process group. Return its exit status, negative if a signal ended it.

    If the process had ended before, the rest of its group is killed, such as the server of a killed script. Children that survive its end
    within `grace_s` are left to the watchdog.
    """
    if child.poll() is not None:
        watchdog.kill_marked(f"{MARK}={_ensure_guard().value}".encode(), group=child.pid)
    else:
        child.send_signal(number)
        try:
            child.wait(grace_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def describe_exit(status: int | None) -> str:
    """Return a phrase for how a process ended, such as `killed by SIGKILL` or `exit status 1`. `status`: its exit status, in which a signal
    is the negative number, as Python reports it, or 128 + number, as a shell does; None if the process still runs: `it runs, and does not
    answer`.
    """
    if status is None:
        return "it runs, and does not answer"
    number = -status if status < 0 else status - 128
    known = number in {each.value for each in signal.Signals}
    return f"killed by {signal.Signals(number).name}" if known else f"exit status {status}"


@contextlib.contextmanager
def temporary_folder(prefix: str = "crossover-") -> Iterator[Path]:
    """Return a context manager that creates a temporary folder, yields its path, and deletes it at the end; if this process ends before,
    even by kill -9, the watchdog deletes it. `prefix`: beginning of the folder's name.
    """
    path = Path(tempfile.mkdtemp(prefix=prefix))
    with remove_at_end(path):
        yield path


@contextlib.contextmanager
def remove_at_end(path: Path) -> Iterator[None]:
    """Return a context manager that deletes the folder `path` with all its content at the end of its block, or when this process ends,
    however it ends. Files that cannot be deleted stay, without an error.
    """
    guard = _ensure_guard()
    guard.register(path)
    try:
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)
        guard.unregister(path)


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Return a context manager within which SIGTERM and SIGHUP end this process as `sys.exit(128 + number)` does, so that every `with`
    block is left properly. At its end the signals have their default action again.

    It has an effect only in the main thread and on signals without a handler; SIGINT raises KeyboardInterrupt anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    changed = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is signal.SIG_DFL]
    for number in changed:
        signal.signal(number, _raise_signal_exit)
    try:
        with resend_ignored_signals():
            yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _raise_signal_exit(number: int, _frame: FrameType | None) -> None:
    """Raise EndedBySignal(`number`). Used as a signal handler."""
    raise EndedBySignal(number)


# --- redis server -----------------------------------------------------------------------------------------------------
# A redis-server of our own: a free port, a folder of its own, stopped with this process at the latest.

_REDIS_START_S = 30.0
_REDIS_ATTEMPTS = 5  # free ports can be lost to another program
_LONGEST_SOCKET_PATH = 100  # bytes; the kernel takes 107
# Redis takes new memory for each large value on its way in and out. Huge pages make first touches of it 512 times rarer; without the
# threshold what was freed is taken again (jemalloc returns pieces of 8 MB and more at once, to be cleared once more).
MEMORY = "thp:always,oversize_threshold:0"  # MALLOC_CONF; cdk/boot/redis.sh sets the same


class RedisServer(AbstractContextManager[Any]):
    """A redis-server on 127.0.0.1, from the object's creation to `stop` or the end of its `with` block. Creating it raises MissingTool, or
    RunFailed with the end of the server's log.

    `url` (redis://127.0.0.1:port) and `socket_url` (unix://) carry no password. Acknowledged data is on the disk (append-only file, synced
    always) and is loaded again after `kill()` and `start()` in the same folder. `program`: the name redis-server; `logs`: its log files.
    """

    def __init__(
        self,
        folder: Path,
        *,
        password: str | None = None,
        module: Path | None = None,
        settings: Mapping[str, object] = {},
    ) -> None:
        """Start the server in `folder`, which is created if missing, and wait until it answers, with the data that is in the folder.

        `password`: None for none; `module`: path of the library with the tensor commands, to load; `settings`: lines of redis.conf, {name:
        value}, which replace or extend those set here.
        """
        self._folder = folder.resolve()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._password = password
        self._module = _quote(str(module.resolve())) if module else ""
        self._settings = settings
        self._program = require_program(REDIS)
        self.program, self.logs = REDIS, [self._folder / "redis.log"]
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        """The address redis://127.0.0.1:port, without a password."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def socket_url(self) -> str:
        """The address unix://PATH of the server's socket, without a password."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status of the server; None while it runs."""
        return self._process.poll()

    def start(self) -> None:
        """Start the server, which must not be running, and wait until it answers, with the data in its folder loaded. Raises RunFailed if
        it ends or does not answer within 30 s.

        It keeps its port, unless another program has taken it: then `port` changes.
        """
        for _ in range(_REDIS_ATTEMPTS):
            self.port = self.port or find_free_port()
            with open(self._folder / "redis.log", "ab") as log:
                self._process = start_process(
                    [self._program, self._write_configuration()],
                    environment={  # no credentials
                        "LANG": "C.UTF-8",
                        "PATH": os.environ.get("PATH", os.defpath),
                        "MALLOC_CONF": MEMORY,
                    },
                    folder=self._folder,
                    output=log,
                )
            if self._wait_until_ready():
                return
            words, ended = self._read_log_end(), describe_exit(self.status)
            self.stop()
            if "Address already in use" not in words:
                raise RunFailed(f"redis-server did not start ({ended}); its last words:\n{words}")
            self.port = 0
        raise RunFailed(f"redis-server: {_REDIS_ATTEMPTS} free ports in a row were taken by other programs")

    def stop(self) -> None:
        """End the server by SIGTERM, or SIGKILL after 10 s; its data stays in the folder. Harmless if it has ended."""
        stop_process(self._process)

    def kill(self) -> None:
        """Kill the server by SIGKILL, as in a crash, and wait for its end; `start` starts it again."""
        self._process.kill()
        self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.stop()

    @property
    def _socket(self) -> Path:
        """The path of the server's Unix socket: in its folder, or in /tmp if that path would be too long for the kernel."""
        path = self._folder / "redis.sock"
        if len(str(path).encode()) > _LONGEST_SOCKET_PATH:
            return Path(f"/tmp/crossover-redis-{self.port}.sock")
        return path

    def _write_configuration(self) -> Path:
        """Write redis.conf into the server's folder, readable by its owner alone, and return its path."""
        lines = {
            "bind": "127.0.0.1",
            "port": self.port,
            "unixsocket": self._socket,
            "unixsocketperm": 700,
            "dir": self._folder,
            "daemonize": "no",
            "set-proc-title": "no",  # it would overwrite the environment, and with it the mark that the watchdog looks for
            "save": '""',
            "appendonly": "yes",
            "appendfsync": "always",
            "lazyfree-lazy-user-del": "yes",  # freeing a large vector must not hold up the other clients
            "lazyfree-lazy-expire": "yes",
            "disable-thp": "no",  # Redis would keep huge pages from itself and the module where all programs get them
            **self._settings,
        }
        if self._password:
            lines["requirepass"] = _quote(self._password)
        if self._module:
            lines["loadmodule"] = self._module
        path = self._folder / "redis.conf"
        path.touch(mode=0o600)  # it holds the password
        path.write_text("".join(f"{name} {value}\n" for name, value in lines.items()), encoding="utf-8")
        return path

    def _wait_until_ready(self) -> bool:
        """Wait until the server answers PING with its data loaded, and return True; return False if it ends or does not answer within
        30 s.
        """
        end_s = time.monotonic() + _REDIS_START_S
        while self._process.poll() is None:
            with suppress(OSError):
                if self._ping().endswith(b"+PONG\r\n"):
                    return True
            if time.monotonic() > end_s:
                return False
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.01)
        return False

    def _ping(self) -> bytes:
        """Send AUTH (if there is a password), PING and QUIT to the server and return its reply without the one to QUIT. Raises OSError if
        the server cannot be reached or is silent for 1 s.
        """
        login = f"AUTH {_quote(self._password)}\r\n".encode() if self._password else b""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1.0)
            client.connect(str(self._socket))
            client.sendall(login + b"PING\r\nQUIT\r\n")
            reply = b""
            while received := client.recv(4096):
                reply += received
        return reply.removesuffix(b"+OK\r\n")

    def _read_log_end(self) -> str:
        """Return the last 2,000 characters of the server's log."""
        return (self._folder / "redis.log").read_text(errors="replace", encoding="utf-8")[-2000:]


def _quote(value: str) -> str:
    """Return `value` as a double-quoted string for redis.conf and for commands to Redis, each byte escaped."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in value.encode()) + '"'


# --- rabbitmq server --------------------------------------------------------------------------------------------------
# A RabbitMQ broker of our own: free ports, a folder, a port mapper (epmd) and a cookie of its own.

_RABBITMQ_START_S = 120.0
_RABBITMQ_ATTEMPTS = 5
FREE_MB = 200  # with less free where it lives it takes no messages
_PORT_LOST = {  # what it says when another program has taken the port of ...
    "listener": ("eaddrinuse",),
    "node": (
        "dist_port_already_used",
        "could not bind to distribution port",
        "nodistribution",
        "no_reg_reply_from_epmd",
    ),
}
# One scheduler of each kind, asleep while idle: training needs the cores. Erlang reads its thousand modules by handing each search of a
# folder from one kind to the other, and on busy cores every such hand-over waits its turn: with two of each a start took 59 s beside two
# trainings, with one 10 to 38 s, alone 6.4 s either way.
_ERLANG = "+S 1:1 +SDcpu 1:1 +SDio 1 +sbwt none +sbwtdcpu none +sbwtdio none"
# Nodes would listen for one another on every network; who knows a node's cookie commands it. Not only the broker's node: the script starts
# others that look for a name server.
_OF_THIS_MACHINE = "-kernel inet_dist_use_interface {127,0,0,1}"


class RabbitServer(AbstractContextManager[Any]):
    """A RabbitMQ broker on 127.0.0.1, from the object's creation to `stop` or the end of its `with` block. Creating it raises MissingTool,
    or RunFailed with the end of the broker's log.

    `url`: amqp://127.0.0.1:port, without a password; `program`: the name rabbitmq-server; `logs`: its log files. Queues and persistent
    messages are kept in its folder.
    """

    def __init__(self, folder: Path, *, username: str, password: str, settings: Mapping[str, object] = {}) -> None:
        """Start the broker in `folder`, which is created if missing, with one user, who may do everything, and wait until it answers.
        `settings`: lines of its configuration, {name: value}, which replace or extend those set here.
        """
        self._folder = folder.resolve()
        self._username = username
        self._password = password
        self._settings = settings
        self._mapper: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._program = Path(require_program(RABBITMQ))
        self.program, self.logs = RABBITMQ, [self._folder / "rabbit.log", self._folder / "output.log"]
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        """The address amqp://127.0.0.1:port, without user and password."""
        return f"amqp://127.0.0.1:{self.port}"

    @property
    def status(self) -> int | None:
        """The exit status of the broker; None while it runs."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Start the broker, which must not be running, and wait until it speaks AMQP. Raises RunFailed if it ends or does not answer within
        120 s.

        It keeps its port, unless another program has taken it: then `port` changes.
        """
        for _ in range(_RABBITMQ_ATTEMPTS):
            port, mapper_port, node_port = find_free_ports(3)
            self.port = self.port or port
            environment, said = self._prepare_environment(mapper_port, node_port), self._measure_logs()
            self._mapper = start_process(
                ["epmd", "-port", str(mapper_port), "-address", "127.0.0.1"], environment=environment
            )
            with open(self._folder / "output.log", "ab") as log:
                self._process = start_process([self._program], environment=environment, folder=self._folder, output=log)
            if self._wait_until_ready(self._process):
                return
            ended = describe_exit(self.status)
            self.stop()
            words = self._read_new_logs(said)
            if any(each in words for each in _PORT_LOST["listener"]):
                self.port = 0
            elif not any(each in words for each in _PORT_LOST["node"]):
                raise RunFailed(f"rabbitmq-server did not start ({ended}); its last words:\n{words[-4000:]}")
        raise RunFailed(f"rabbitmq-server: {_RABBITMQ_ATTEMPTS} times a free port was taken by another program")

    def stop(self) -> None:
        """End broker and port mapper by SIGTERM, or SIGKILL after 30 s; queues and persistent messages stay in the folder. Harmless if they
        have ended.
        """
        for process in (self._process, self._mapper):
            if process is not None:
                stop_process(process, grace_s=30.0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the broker."""
        self.stop()

    def _prepare_environment(self, mapper_port: int, node_port: int) -> dict[str, str]:
        """Return the environment variables of the broker and its port mapper, after creating the files that they name: home folder, cookie,
        configuration. `mapper_port`, `node_port`: ports of the port mapper and of the Erlang node.
        """
        home = self._folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        cookie = home / ".erlang.cookie"
        if not cookie.exists():
            cookie.touch(mode=0o600)
            cookie.write_text(secrets.token_hex(16), encoding="utf-8")
            cookie.chmod(0o400)
        (self._folder / "enabled_plugins").write_text("[].\n", encoding="utf-8")
        return {
            "PATH": f"{self._program.parent}:{os.environ.get('PATH', os.defpath)}",  # its own Erlang before others
            "LANG": "C.UTF-8",
            "HOME": str(home),
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_AFLAGS": _OF_THIS_MACHINE,
            "RABBITMQ_NODENAME": f"crossover{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(node_port),
            "RABBITMQ_MNESIA_BASE": str(self._folder / "data"),
            "RABBITMQ_LOG_BASE": str(self._folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self._write_configuration()),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(self._folder / "no-such-file"),
            "RABBITMQ_PID_FILE": str(self._folder / "pid"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self._folder / "generated"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ERLANG,
        }

    def _write_configuration(self) -> Path:
        """Write the broker's configuration and the definitions of its user and virtual host to files, and return the path of the
        configuration.
        """
        definitions = self._folder / "definitions.json"
        definitions.touch(mode=0o600)
        definitions.write_text(json.dumps(_build_definitions(self._username, self._password)), encoding="utf-8")
        lines = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "load_definitions": definitions,
            "max_message_size": 16 * 2**20,  # RabbitMQ 4's own; earlier releases would take what AWS refuses
            "vm_memory_high_watermark.absolute": "2GB",
            "disk_free_limit.absolute": f"{FREE_MB}MB",
            "log.console": "false",
            "log.file": self._folder / "rabbit.log",
            **self._settings,
        }
        path = self._folder / "rabbitmq.conf"
        path.write_text("".join(f"{name} = {value}\n" for name, value in lines.items()), encoding="utf-8")
        return path

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait until the broker speaks AMQP, and return True; return False if it ends or does not answer within 120 s."""
        end_s = time.monotonic() + _RABBITMQ_START_S
        while process.poll() is None and time.monotonic() < end_s:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0) as client:
                client.settimeout(5.0)
                client.sendall(b"AMQP\x00\x00\x09\x01")
                if client.recv(8):
                    return True
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        return False

    def _measure_logs(self) -> dict[Path, int]:
        """Return the size in bytes of each of the broker's logs; 0 if a log does not exist."""
        return {log: log.stat().st_size if log.exists() else 0 for log in self.logs}

    def _read_new_logs(self, since: Mapping[Path, int]) -> str:
        """Return the text that the broker's logs have gained since they had the sizes in `since`."""
        return "\n".join(
            log.read_bytes()[size:].decode(errors="replace") for log, size in since.items() if log.exists()
        )


def _build_definitions(username: str, password: str) -> dict[str, object]:
    """Return the content of RabbitMQ's definitions file: one virtual host, and one user with the hash of the password. Such a file accepts
    any character in a password.
    """
    salt = secrets.token_bytes(4)
    digest = base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
    return {
        "vhosts": [{"name": "/"}],
        "users": [
            {
                "name": username,
                "password_hash": digest,
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": "administrator",
            }
        ],
        "permissions": [{"user": username, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
    }

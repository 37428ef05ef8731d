"""The zygote: a process that has loaded the large modules and forks execution environments from itself.

    python -I zygote.py torch|plain DESCRIPTOR

It is a script of its own, so that nothing of the checkout is in the memory that its children share: handlers and `crossover` come from the
deployed zip. It imports, but never computes, connects or starts a thread: a fork keeps one thread only, and torch's pools would be lost.
numpy is blocked: Lambda's layers have none, so a function that needs it must fail here as well.

Messages on the socket DESCRIPTOR (SOCK_SEQPACKET, JSON): a request {id, environment, folder, path, handler, title} carries the log's
descriptor and is answered by {id, pid}; {exited, status} reports that an environment has ended (a wait status).
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import selectors
import signal
import socket
import sys
import traceback
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_LIBC = ctypes.CDLL(None, use_errno=True)
_MODULES = (
    "annotated_types boto3 botocore.session botocore.client botocore.httpsession concurrent.futures ctypes fcntl "
    "http.client logging.config pika queue resource s3transfer ssl uuid"
)


def import_modules(kind: str) -> None:
    """Import into this process, the fork server, the modules that most functions use, and torch if `kind` is "torch". First removes this
    checkout from sys.path and makes an import of numpy fail; it also switches garbage collection off.
    """
    sys.modules["numpy"] = None  # type: ignore[assignment]
    sys.path[:] = [
        entry for entry in sys.path if entry.endswith((".zip", "-packages", "lib-dynload")) or _is_standard(entry)
    ]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
    gc.disable()  # collecting would write to every page that the children are to share
    for name in _MODULES.split():
        importlib.import_module(name)
    _warm_boto()
    if kind == "torch":
        importlib.import_module("torch")
    gc.collect()
    gc.freeze()


def _is_standard(entry: str) -> bool:
    """Return whether an entry of sys.path is the folder of the standard library."""
    return entry == os.path.dirname(os.__file__)


def _warm_boto() -> None:
    """Create two boto3 clients, so that the modules which boto3 loads only then are in memory before a fork."""
    import boto3

    session = boto3.session.Session(aws_access_key_id="-", aws_secret_access_key="-", region_name="us-east-1")
    for service in ("s3", "secretsmanager"):
        session.client(service)


def serve(channel: socket.socket) -> None:
    """Fork an execution environment for each request on `channel` and reply with its process id, and report each environment that ends,
    until the parent closes the channel. The module's docstring has the messages. SIGINT is ignored. Environments that still run are left
    alone here; the system kills them when this process ends.
    """
    alarm_in, alarm_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(alarm_out, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    selector = selectors.DefaultSelector()
    selector.register(channel, selectors.EVENT_READ)
    selector.register(alarm_in, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not channel:
                _drain(alarm_in)
                _reap(channel)
                continue
            message, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 1)
            if not message:
                return
            request = json.loads(message)
            pid = _fork(request, descriptors[0], (channel.fileno(), alarm_in, alarm_out, selector.fileno()))
            os.close(descriptors[0])
            channel.send(json.dumps({"id": request["id"], "pid": pid}).encode())


def _drain(descriptor: int) -> None:
    """Read a non-blocking pipe until it is empty."""
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def _reap(channel: socket.socket) -> None:
    """Collect each child process that has ended, and send {exited, status} as JSON on `channel` for each: its id and its wait status, as
    `os.waitpid` returns it. Does not wait for those that still run, and does nothing if there are no children. The OSError of a closed
    channel passes.
    """
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            channel.send(json.dumps({"exited": pid, "status": status}).encode())


def _fork(request: dict[str, Any], log: int, own: tuple[int, ...]) -> int:
    """Fork an execution environment for `request` (a message of `serve`) and return its process id. The child never returns from this call,
    and is killed when the fork server ends. `log`: file descriptor for its output; `own`: the fork server's descriptors, which the child
    closes.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        _LIBC.prctl(
            _PR_SET_PDEATHSIG, signal.SIGKILL
        )  # this process has one thread: here the thread's end is the process's
        if os.getppid() != parent:
            os._exit(1)
        _become(request, log, own)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _become(request: dict[str, Any], log: int, own: tuple[int, ...]) -> None:
    """Turn this fork into the execution environment that `request` describes (variables, folder, sys.path, handler, title), in a session of
    its own, and run AWS's runtime client in it until it ends.

    `log`: descriptor for standard output and error; `own`: the fork server's descriptors, which are closed.
    """
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    for descriptor in (*own, log):
        os.close(descriptor)
    _LIBC.prctl(_PR_SET_NAME, request["title"].encode()[:15], 0, 0, 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[:0] = request["path"]
    sys.argv = ["awslambdaric", request["handler"]]
    random.seed()
    gc.enable()
    _run_client(request["handler"], *os.environ["AWS_LAMBDA_RUNTIME_API"].split("/"))


def _run_client(handler: str, address: str, path: str) -> None:
    """Run AWS's Lambda runtime client with `handler`, as awslambdaric's main does, against the Runtime API at `address`.

    `path`: the secret path of the Runtime API. awslambdaric's native client accepts it as part of the address; its Python client does not,
    which only reports that a handler could not be imported. There the path is put before the path of each request.
    """
    from awslambdaric import bootstrap  # reads the environment at import, hence only now
    from awslambdaric.lambda_runtime_client import LambdaRuntimeClient

    class Client(LambdaRuntimeClient):  # type: ignore[misc]  # it declares no types
        """AWS's Runtime API client, which also puts the secret path before the path of an error report that it sends from Python."""

        def call_rapid(self, http_method: str, endpoint: str, *more: Any) -> None:
            """Send a request with the method `http_method` to `endpoint` (a path) of the Runtime API, below the secret path."""
            super().call_rapid(http_method, f"/{path}{endpoint}", *more)

    bootstrap.run(handler, Client(address))


if __name__ == "__main__":
    import_modules(sys.argv[1])
    serve(socket.socket(fileno=int(sys.argv[2])))

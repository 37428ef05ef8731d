"""AWS Lambda on this machine: Invoke in front, the Runtime API behind, AWS's own runtime client in every worker."""

import asyncio
import contextlib
import hmac
import json
import math
import os
import secrets
import shutil
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from crossover.errors import Unavailable
from crossover.local.zygotes import ForkStart, Runtime, Zygote, ZygoteKind, describe_wait_status
from crossover.runtime import EVENT
from crossover.stores.clients import Pool

# --- occupancy --------------------------------------------------------------------------------------------------------

_PAGE = os.sysconf("SC_PAGE_SIZE")


def read_resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes, shared pages included; 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def read_peak_mb(pid: int) -> int:
    """Return the peak resident memory of a process in MiB, rounded up; 0 if the process has ended."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return -(-int(line.split()[1]) // 1024)
    except OSError:
        pass
    return 0


# --- function ---------------------------------------------------------------------------------------------------------
# A function as the local Lambda service knows it, what a caller gets back, and Lambda's own limits.

REQUEST_LIMIT = 6 * 1024 * 1024  # bytes of a synchronous invocation's payload
EVENT_LIMIT = 1024 * 1024  # bytes of an asynchronous one's


@dataclass(frozen=True, kw_only=True)
class Function:
    """A deployed Lambda function as the local service runs it. `name`, `arn`, `timeout_s`, `memory_mb` (in MB), `log_group`: as deployed;
    `handler`: `module.function`; `folder`: its unpacked zip; `environment`: its variables; `torch`: whether it needs torch; `waits`:
    whether it may wait for other functions, so that it is never queued. The last two come from its tags.
    """

    name: str
    arn: str
    handler: str
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 3.0
    memory_mb: int = 128
    torch: bool = False
    waits: bool = False
    log_group: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a synchronous invocation.

    `request_id`: id of the invocation; `payload`: the function's result as JSON bytes; `error`: None, or "Unhandled" if the function failed
    and `payload` is {"errorType", "errorMessage", ...}; `log_tail`: the last 4 KB that it printed, as bytes.
    """

    request_id: str
    payload: bytes
    error: str | None = None
    log_tail: bytes = b""


class TooLarge(Exception):
    """Error for an invocation's payload above Lambda's limit. The text is the service's message."""

    def __init__(self, size: int, *, kind: str, limit: int) -> None:
        """Build the message. `size`, `limit`: in bytes; `kind`: the invocation type, "RequestResponse" or "Event"."""
        super().__init__(f"{size} byte payload is too large for the {kind} invocation type (limit {limit} bytes)")


class TooManyRequests(Exception):
    """Error for an invocation above the account's concurrency limit, or after the service was closed."""


def build_error_payload(kind: str, message: str) -> bytes:
    """Return the JSON bytes {"errorType": `kind`, "errorMessage": `message`}, as Lambda sends a function's error."""
    return json.dumps({"errorType": kind, "errorMessage": message}).encode()


def build_timeout_error(request_id: str, timeout_s: float) -> bytes:
    """Return the error payload (JSON bytes) of invocation `request_id`, which ran longer than `timeout_s`, in Lambda's words: a
    Sandbox.Timedout.

    It is not proven that Step Functions on AWS sees this error name.
    """
    return build_error_payload(
        "Sandbox.Timedout", f"RequestId: {request_id} Error: Task timed out after {timeout_s:.2f} seconds"
    )


def build_exit_error(request_id: str, words: str) -> bytes:
    """Return the error payload (JSON bytes) of a function whose process has ended, in Lambda's words: a Runtime.ExitError. `words`: how the
    process ended.
    """
    return build_error_payload(
        "Runtime.ExitError", f"RequestId: {request_id} Error: Runtime exited with error: {words}"
    )


def build_memory_error(request_id: str) -> bytes:
    """Return the error payload (JSON bytes) of a function that was killed because it used more memory than it has, in Lambda's words: a
    Runtime.OutOfMemory.
    """
    return build_error_payload(
        "Runtime.OutOfMemory", f"RequestId: {request_id} Error: Runtime exited with error: signal: killed"
    )


# --- api --------------------------------------------------------------------------------------------------------------
# The Lambda Runtime API (version 2018-06-01), to which AWS's runtime client in each environment talks.
#
# One thread runs all of it; every environment has a port of its own, which is how a request tells where it comes from. Anybody on this
# machine can ask there: so each address has a drawn path besides, that only its environment's variables tell. Source:
# https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html

SHUT_DOWN = "the local Lambda service is shut down"
RESPONSE_LIMIT = 6 * 1024 * 1024 + 100  # bytes; the 100 is what the service itself allows over
_HEADER_LIMIT = 2 * 1024 * 1024  # an error's trace travels in a header of up to 1 MiB


@dataclass(frozen=True, slots=True)
class Handout:
    """An invocation as it is handed to the runtime in an execution environment. `request_id`: its id; `function_arn`: of the invoked
    function; `payload`: the event as JSON bytes; `deadline_ms`: when the function times out, Unix time in milliseconds; `client_context`:
    as in Lambda's API (base64), None if the caller gave none.
    """

    request_id: str
    payload: bytes
    deadline_ms: int
    function_arn: str
    client_context: str | None = None


class ServedEnvironment(Protocol):
    """Protocol of an execution environment, as the Runtime API's server calls it. The methods that are no coroutines must not block,
    because they run in the server's only thread.
    """

    async def take(self) -> Handout | None:
        """Wait for the next invocation and return it, or None if there are no more; the server then closes the connection. Called when the
        runtime is ready for work.
        """

    def record_answer(self, request_id: str, body: bytes, *, error: bool) -> None:
        """Finish the invocation `request_id` with `body`, the runtime's answer in JSON, unless it is finished already. `error`: whether it
        describes a failure of the function.
        """

    def record_init_error(self, body: bytes) -> None:
        """Keep `body`, the error (JSON) of a runtime that could not load the function's code. When the runtime's process then ends, the
        invocation that waits for it fails with `body`.
        """


class RuntimeApi:
    """The HTTP server of the Lambda Runtime API, for all execution environments, in a thread of its own from the object's creation to
    `close`. `open` returns the address for one environment, `release` closes that address.
    """

    def __init__(self) -> None:
        """Start the server's thread; no address is open yet."""
        self._loop = asyncio.new_event_loop()
        self._servers: dict[str, asyncio.Server] = {}
        self._serving: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._over = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="lambda-runtime-api", daemon=True)
        self._lock = threading.Lock()
        self._thread.start()

    def open(self, environment: ServedEnvironment) -> str:
        """Start to listen on a new port for one environment; return its address `host:port/path`, whose path is secret. Raises Unavailable
        if the server is closed.
        """
        with self._lock:
            if self._loop.is_closed():
                raise Unavailable(SHUT_DOWN)
            return asyncio.run_coroutine_threadsafe(self._open(environment), self._loop).result()

    def schedule(self, call: Callable[..., object], *arguments: object) -> None:
        """Let the server's thread call `call(*arguments)` soon, without waiting for it; do nothing if the server is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    def release(self, address: str) -> None:
        """Stop listening at `address`, soon and without waiting for it; connections that are open stay open. Harmless to repeat."""
        self.schedule(self._release, address)

    def close(self) -> None:
        """End all connections and the server's thread; harmless to repeat. `open` raises Unavailable afterwards."""
        with self._lock:
            if self._loop.is_closed():
                return
            done: Future[None] = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            done.result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _open(self, environment: ServedEnvironment) -> str:
        """Start to listen on a free port for one environment and return its secret address `host:port/path`."""
        path = secrets.token_hex(16)

        async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """Serve one connection of an environment's runtime until either side closes it, or the server ends; then close it. Errors of
            the connection are not raised.
            """
            task = asyncio.current_task()
            assert task is not None
            self._serving.add(task)
            try:
                if not self._over:
                    await _serve(environment, path, reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
                return  # also the last: asyncio's own callback would stumble over a task that was cancelled
            finally:
                self._serving.discard(task)
                if self._over:
                    writer.transport.abort()  # data that was not read by now never will be
                writer.close()

        server = await asyncio.start_server(handle_connection, "127.0.0.1", 0, limit=_HEADER_LIMIT)
        host, port = server.sockets[0].getsockname()
        address = f"{host}:{port}/{path}"
        self._servers[address] = server
        return address

    def _release(self, address: str) -> None:
        """Stop listening at `address`; do nothing if that was done before. Runs in the server's thread."""
        if server := self._servers.pop(address, None):
            closing = self._loop.create_task(_close_server(server))
            self._closing.add(closing)  # the loop alone would let it go
            closing.add_done_callback(self._closing.discard)

    async def _end(self) -> None:
        """End all connections and close all servers. Runs in the server's thread.

        It waits for connections that are just being accepted, because asyncio would not close them.
        """
        self._over = True
        me = asyncio.current_task()
        while others := asyncio.all_tasks() - {me}:
            for task in self._serving:
                task.cancel()
            await asyncio.wait(others)
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        await asyncio.sleep(0)  # transports close one turn later


async def _close_server(server: asyncio.Server) -> None:
    """Close the server of an environment that has ended or is about to end.

    It first stops accepting and lets accepted connections begin, because asyncio would not close a connection that begins after its server
    is closed.
    """
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    for _ in range(3):
        await asyncio.sleep(0)
    server.close()


async def _serve(
    environment: ServedEnvironment, secret: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the HTTP requests of one connection until the runtime closes it, the environment has no more invocations, or a request's path
    does not begin with `secret`; that one is answered 403.
    """
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        request, *lines = head.decode("latin-1").split("\r\n")
        method, _, target = request.partition(" ")
        if not hmac.compare_digest(target[: len(secret) + 2].encode(), f"/{secret}/".encode()):
            writer.write(_build_reply("403 Forbidden", b"{}"))
            return
        path = target.partition(" ")[0]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        body = await _read_body(reader, headers)
        if method == "GET" and path.endswith("/invocation/next"):
            handout = await environment.take()
            if handout is None:
                return
            writer.write(_build_handout_reply(handout))
        else:
            writer.write(_handle_post(environment, path.split("/"), body))
        await writer.drain()


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    """Return the body of an HTTP request, sent in chunks or with a content length."""
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    chunks = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(chunks)


def _handle_post(environment: ServedEnvironment, path: list[str], body: bytes) -> bytes:
    """Pass a POST of the runtime (an answer, an error, a failed start) on to its environment, and return the HTTP response's bytes: 404 for
    another path, 413 for an answer of more than 6 MiB, which becomes an error of the function.

    `path`: the request's path, split at slashes.
    """
    match path[-3:]:
        case [_, "init", "error"]:
            environment.record_init_error(body)
        case ["invocation", request_id, "error"]:
            environment.record_answer(request_id, body, error=True)
        case ["invocation", request_id, "response"] if len(body) > RESPONSE_LIMIT:
            said = f"Response payload size ({len(body)} bytes) exceeded maximum allowed payload size ({RESPONSE_LIMIT} bytes)."
            environment.record_answer(
                request_id, build_error_payload("Function.ResponseSizeTooLarge", said), error=True
            )
            return _build_reply("413 Payload Too Large", b"{}")
        case ["invocation", request_id, "response"]:
            environment.record_answer(request_id, body, error=False)
        case _:
            return _build_reply("404 Not Found", b"{}")
    return _build_reply("202 Accepted", b'{"status":"OK"}\n')


def _build_handout_reply(handout: Handout) -> bytes:
    """Return the HTTP response, as bytes, that hands an invocation to the runtime: its event as body; id, deadline and function in
    headers.
    """
    headers = {
        "Lambda-Runtime-Aws-Request-Id": handout.request_id,
        "Lambda-Runtime-Deadline-Ms": str(handout.deadline_ms),
        "Lambda-Runtime-Invoked-Function-Arn": handout.function_arn,
    }
    if handout.client_context:
        headers["Lambda-Runtime-Client-Context"] = handout.client_context
    return _build_reply("200 OK", handout.payload, headers)


def _build_reply(status: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a complete HTTP response as one block of bytes, because two segments would wait 40 ms for an acknowledgement. `status`: code
    and reason, such as `200 OK`.
    """
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


# --- environment ------------------------------------------------------------------------------------------------------
# One execution environment: a forked process, its Runtime API port, and the one invocation it works on at a time.

_INIT_S = 60.0  # generous beside Lambda's 10 s: many may start at once on few cores
_END_S = 10.0


@dataclass(frozen=True, kw_only=True)
class InvocationOutcome:
    """The result of one invocation and its figures for Lambda's report. `payload`: result or error as JSON bytes; `status`: success, error
    (the function raised), timeout, or failure (its process ended); `duration_ms`: without `init_ms`, the duration of the cold start, which
    is None if there was none; `max_memory_mb`: peak resident memory of its process in MiB; `log`: what the function printed, as bytes. If
    the process has ended, `max_memory_mb` is the function's memory.
    """

    payload: bytes
    status: str  # success | error | timeout | failure
    duration_ms: float
    init_ms: float | None
    max_memory_mb: int
    log: bytes


class Environment:
    """A Lambda execution environment: a forked process that runs invocations of one function, one at a time.

    Call `start` once, then `run` any number of times, from one thread at a time. `record_end` is called once, from another thread, when the
    process has ended. `pid`: id of the process, 0 before `start`; `log`: file of its output; `used_at`: monotonic time, in seconds, of the
    last invocation's end.
    """

    def __init__(
        self, function: Function, *, number: int, variables: Mapping[str, str], api: RuntimeApi, folder: Path
    ) -> None:
        """Open the environment's Runtime API address and create its log and scratch folder; the process is started by `start`.

        `number`: of the environment; `variables`: its environment variables; `folder`: holds logs and scratch folders. Raises Unavailable
        if the Runtime API is closed.
        """
        self.function, self.number, self.pid = function, number, 0
        self.used_at = time.monotonic()
        self.log = folder / "logs" / function.name / f"{number:05d}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._api = api
        self._address = api.open(self)
        self._scratch = folder / "tmp" / f"{function.name}-{number:05d}"
        self._scratch.mkdir(parents=True)
        self._variables = {**variables, "AWS_LAMBDA_RUNTIME_API": self._address, "TMPDIR": str(self._scratch)}
        self._queue: asyncio.Queue[Handout | None] = asyncio.Queue()
        self._ready: Future[None] = Future()  # the runtime asked for work, or ended
        self._work: tuple[str, Future[tuple[bytes, str]]] | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._cold = True
        self._zygote: Zygote | None = None
        self._baseline = 0
        self._started_at = self._handed_out_at = time.perf_counter()
        self._init_error: bytes | None = None
        self._out_of_memory = False
        self._words = "unknown"

    @property
    def is_alive(self) -> bool:
        """True if the environment's process has not ended."""
        return not self._over.is_set()

    @property
    def is_usable(self) -> bool:
        """True if both the environment's process and its fork server run.

        If the fork server has ended, its environments end too, but this is reported later.
        """
        return self.is_alive and self._zygote is not None and self._zygote.is_alive

    @property
    def request_id(self) -> str | None:
        """The id of the invocation in progress; None while idle."""
        return self._work[0] if self._work else None

    def start(self, zygote: Zygote) -> None:
        """Fork the process from the fork server `zygote`, without waiting until the function is loaded. Raises Unavailable if the fork
        server has ended, TimeoutError if it does not reply.
        """
        function = self.function
        self._zygote, self._started_at = zygote, time.perf_counter()
        with self.log.open("ab", buffering=0) as log:
            self.pid = zygote.fork(
                ForkStart(
                    environment=self._variables,
                    folder=function.folder,
                    path=[function.folder],
                    handler=function.handler,
                    title=function.name.removeprefix("crossover-"),
                    log=log.fileno(),
                )
            )
        self._baseline = read_resident_bytes(self.pid)

    async def take(self) -> Handout | None:
        """Wait for the next invocation and return it, or None if the environment has ended. The first call marks the start as complete."""
        self._resolve_ready()
        handout = await self._queue.get()
        self._handed_out_at = time.perf_counter()
        return handout

    def record_answer(self, request_id: str, body: bytes, *, error: bool) -> None:
        """Finish the invocation `request_id` with `body`, the runtime's answer. Does nothing if that is not the invocation in progress, or
        if it is finished already, such as by its timeout. `error`: whether the answer reports an error of the function.
        """
        self._finish(request_id, body, "error" if error else "success")

    def record_init_error(self, body: bytes) -> None:
        """Keep `body`, the error (JSON) of a runtime that could not load the function's code. It finishes nothing itself: when the process
        ends, the invocation in progress, or the next one, fails with `body`.
        """
        self._init_error = body

    def record_end(self, status: int) -> None:
        """Record that the process has ended: fail the invocation in progress, close the Runtime API address, and delete the scratch
        folder. `status`: the process's wait status, as from os.waitpid.
        """
        self._words = describe_wait_status(status)
        self._over.set()
        self._resolve_ready()
        if work := self._work:
            self._finish(work[0], self._build_end_error(work[0]), "failure")
        self._api.schedule(self._queue.put_nowait, None)
        self._api.release(self._address)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def run(self, request_id: str, payload: bytes, *, client_context: str | None = None) -> InvocationOutcome:
        """Run one invocation with the event `payload`, wait until it is answered, has timed out or its process has ended, and return the
        outcome.

        `request_id`: the invocation's id; `client_context`: as in Lambda's API, passed on. After a timeout the process is killed. The first
        call also waits for the process's start, at most a minute. If the process had ended before, the outcome is a failure at once.
        """
        function, result = self.function, Future[tuple[bytes, str]]()
        offset = 0 if self._cold else self.log.stat().st_size
        self._work = (request_id, result)
        init_ms = self._wait_for_start() if self._cold else None
        self._handed_out_at = time.perf_counter()
        if self.is_alive:
            deadline_ms = int((time.time() + function.timeout_s) * 1000)
            handout = Handout(request_id, payload, deadline_ms, function.arn, client_context)
            self._api.schedule(self._queue.put_nowait, handout)
        else:
            self._finish(request_id, self._build_end_error(request_id), "failure")
        body, status = self._wait(request_id, result)
        duration_ms = (time.perf_counter() - self._handed_out_at) * 1000
        peak_mb = read_peak_mb(self.pid) or function.memory_mb
        self._work, self._cold, self.used_at = None, False, time.monotonic()
        with self.log.open("rb") as log:
            log.seek(offset)
            printed = log.read()
        return InvocationOutcome(
            payload=body,
            status=status,
            duration_ms=duration_ms,
            init_ms=init_ms,
            max_memory_mb=peak_mb,
            log=printed,
        )

    def enforce_memory_limit(self) -> None:
        """Check the process's memory once: kill the process if it is running an invocation and its resident memory has grown by more than
        the function's memory since the fork; the invocation then fails as Runtime.OutOfMemory.

        Memory that was shared at the fork, such as torch, does not count.
        """
        grown = read_resident_bytes(self.pid) - self._baseline
        if self._baseline and self._work and grown > self.function.memory_mb * 1_048_576:
            self._out_of_memory = True
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL to the environment's process group, without waiting for its end; harmless if the process has ended."""
        if not self.is_alive or not self.pid:
            return
        with contextlib.suppress(ProcessLookupError):
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:  # so young that it has no group of its own yet
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> None:
        """Wait until `record_end` has been called because the process has ended, at most `timeout_s` seconds."""
        self._over.wait(timeout_s)

    def _wait(self, request_id: str, result: Future[tuple[bytes, str]]) -> tuple[bytes, str]:
        """Wait for the invocation's result and return it as (body, status). After the function's timeout, kill the process and return the
        timeout error.
        """
        try:
            return result.result(self.function.timeout_s)
        except NotYet:
            self._finish(request_id, build_timeout_error(request_id, self.function.timeout_s), "timeout")
            self.kill()
            self.wait(_END_S)  # so that it is over before anybody retries
            return result.result()

    def _wait_for_start(self) -> float:
        """Wait until the runtime is ready or its process has ended; kill it after a minute. Return the milliseconds since the start."""
        try:
            self._ready.result(_INIT_S)
        except NotYet:
            self.kill()
            self.wait(_END_S)
        return (time.perf_counter() - self._started_at) * 1000

    def _resolve_ready(self) -> None:
        """Mark the environment's start as complete, because the runtime is ready or its process has ended."""
        with self._lock:
            if not self._ready.done():
                self._ready.set_result(None)

    def _finish(self, request_id: str, body: bytes, status: str) -> None:
        """Set the result of the invocation `request_id` to (`body`, `status`) unless it has one: a reply that comes after the timeout is
        dropped, as on Lambda.
        """
        with self._lock:
            if self._work and self._work[0] == request_id and not self._work[1].done():
                self._work[1].set_result((body, status))

    def _build_end_error(self, request_id: str) -> bytes:
        """Return the error payload that explains why the process has ended: out of memory, a function that could not be loaded, or its exit
        status.
        """
        if self._out_of_memory:
            return build_memory_error(request_id)
        return self._init_error or build_exit_error(request_id, self._words)


# --- reporting --------------------------------------------------------------------------------------------------------
# Lambda's platform.report records: what was billed and what it occupied, joined to a step's own record by the request id.
#
# Source of the format: https://docs.aws.amazon.com/lambda/latest/dg/telemetry-schema-reference.html


def build_report(function: Function, request_id: str, outcome: InvocationOutcome) -> dict[str, Any]:
    """Return Lambda's platform.report record of invocation `request_id`, which ended with `outcome`, ready for JSON: {"time", "type",
    "record"}, with duration, billed duration and peak memory under record.metrics.

    Run and initialisation are billed together, rounded up to a millisecond: Lambda bills initialisation since August 2025.
    """
    metrics: dict[str, Any] = {
        "durationMs": round(outcome.duration_ms, 3),
        "billedDurationMs": math.ceil(outcome.duration_ms + (outcome.init_ms or 0.0)),
        "memorySizeMB": function.memory_mb,
        "maxMemoryUsedMB": outcome.max_memory_mb,
    }
    if outcome.init_ms is not None:
        metrics["initDurationMs"] = round(outcome.init_ms, 3)
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "type": "platform.report",
        "record": {"requestId": request_id, "status": outcome.status, "metrics": metrics},
    }


def list_log_lines(record: dict[str, Any], printed: bytes) -> list[str]:
    """Return the lines for the function's log group: what it `printed`, without empty lines, then `record` as one line of JSON."""
    text = printed.decode(errors="replace").replace("\r", "\n")
    return [*(line for line in text.splitlines() if line.strip()), json.dumps(record)]


# --- service ----------------------------------------------------------------------------------------------------------
# The local Lambda service: Invoke in front, execution environments behind.
#
# Functions whose steps only compute (waits=False) run `cores` at once where they use torch and 8 at once where they do not; more of them
# queue. Functions that wait for one another (waits=True) get an environment each at once, as they must. Environments are reused warm.

Sink = Callable[[Function, str, list[str]], None]  # function, log stream, lines
_PLAIN_AT_ONCE = 8
_IDLE_KEPT: Mapping[ZygoteKind, int] = {"torch": 8, "plain": 32}  # the most idle environments of each kind
_WATCH_S = 0.05
_ENDED_WITHIN_S = 2.0


class Lambdas:
    """The local Lambda service: it runs all functions in execution environments, from the object's creation to `close`, which ends every
    process. `extra_environment`: variables that tests set, {function's name, or "*" for all: {variable: value}}.

    `variables(function)`: returns the environment variables for a function; `sink(function, log stream, lines)`: receives the lines of its
    log.
    """

    def __init__(
        self,
        folder: Path,
        *,
        cores: int | None = None,
        concurrency: int = 1000,
        variables: Callable[[Function], Mapping[str, str]] = lambda function: function.environment,
        sink: Sink = lambda function, stream, printed: None,
        runtime: Runtime | None = None,
    ) -> None:
        """Start the service without environments.

        `folder`: holds logs and scratch files; `cores`: number of functions with torch that run at the same time, None for as many as this
        machine has CPUs; `concurrency`: the account's limit, above which an invocation is refused; `variables`: by default those of the
        template; `sink`: by default drops the lines; `runtime`: the Python that functions run on, None for this process's.
        """
        self.extra_environment: dict[str, dict[str, str]] = {}  # by function name, "*" for all; fault tests set it
        self._folder = folder
        self._variables, self._sink, self._runtime = variables, sink, runtime
        self._pools: dict[ZygoteKind, Pool] = {
            "torch": Pool(cores or os.cpu_count() or 1),
            "plain": Pool(_PLAIN_AT_ONCE),
        }
        # The account's limit: above it an invocation is refused, never queued.
        self._concurrency = threading.Semaphore(concurrency)
        self._api = RuntimeApi()
        self._lock = threading.RLock()
        self._zygotes: dict[ZygoteKind, Zygote] = {}
        self._environments: dict[int, Environment] = {}  # by process id
        self._early_ends: dict[int, int] = {}
        self._idle: dict[str, list[Environment]] = {}
        self._number = 0
        self._closed = threading.Event()
        self._events = ThreadPoolExecutor(max_workers=32, thread_name_prefix="lambda-event")
        self._watcher = threading.Thread(target=self._watch, name="lambda-memory", daemon=True)
        self._watcher.start()

    def invoke(self, function: Function, payload: bytes, *, client_context: str | None = None) -> Answer:
        """Invoke the function synchronously with the event `payload` and return its answer; a function that fails, times out or ends is an
        answer with an `error`. Unless the function may wait for others, first wait until one of the slots for its kind is free.

        `client_context`: as in Lambda's API, passed on. Raises TooLarge, or TooManyRequests above the concurrency limit or after `close`.
        Raises Unavailable or TimeoutError if no execution environment can be started.
        """
        if len(payload) > REQUEST_LIMIT:
            raise TooLarge(len(payload), kind="RequestResponse", limit=REQUEST_LIMIT)
        request_id = str(uuid.uuid4())
        with contextlib.nullcontext() if function.waits else self._pools[_zygote_kind(function)].hold_place():
            if not self._concurrency.acquire(blocking=False):
                raise TooManyRequests("Rate Exceeded.")
            try:
                outcome = self._run(function, request_id, payload, client_context)
            finally:
                self._concurrency.release()
        return Answer(
            request_id=request_id,
            payload=outcome.payload,
            error=None if outcome.status == "success" else "Unhandled",
            log_tail=outcome.log[-4096:],
        )

    def invoke_event(self, function: Function, payload: bytes) -> str:
        """Invoke the function asynchronously, in a thread, with up to two retries; its result and errors are dropped. Raises TooLarge;
        TooManyRequests if the service is closed.

        Returns a request id for the response alone: the attempts have other ids in the records.
        """
        if len(payload) > EVENT_LIMIT:
            raise TooLarge(len(payload), kind="Event", limit=EVENT_LIMIT)
        try:
            self._events.submit(self._invoke_with_retries, function, payload)
        except RuntimeError as error:
            raise TooManyRequests(SHUT_DOWN) from error
        return str(uuid.uuid4())

    def prepare(self, kind: ZygoteKind) -> None:
        """Start the fork server of `kind` ("plain" or "torch") now unless it runs, without waiting for its imports, so that it is ready
        when the first function is invoked. Raises Unavailable if the service is closed.
        """
        self._get_zygote(kind)

    def environments(self) -> list[Environment]:
        """Return all environments that are alive, busy or idle."""
        with self._lock:
            return [each for each in self._environments.values() if each.is_alive]

    def list_running(self) -> list[Environment]:
        """Return the environments with an invocation in progress."""
        return [each for each in self.environments() if each.request_id]

    def kill_idle(self, name: str) -> None:
        """Kill the idle environments of the function `name`, because it was deleted or changed. Busy ones finish their invocation; the
        next invocation kills those of an older version.
        """
        with self._lock:
            idle = self._idle.pop(name, [])
        for environment in idle:
            environment.kill()

    def close(self) -> None:
        """End all processes and threads of the service; invocations in progress are answered as crashed. Harmless to repeat."""
        with self._lock:  # what is not registered by now looks at `_closed` when it is
            if self._closed.is_set():
                return
            self._closed.set()
            zygotes, environments = list(self._zygotes.values()), list(self._environments.values())
        self._events.shutdown(wait=False, cancel_futures=True)
        for environment in environments:
            environment.kill()
        for environment in environments:
            environment.wait(_ENDED_WITHIN_S)  # so that their parent, the zygote, is still there to reap them
        for zygote in zygotes:
            zygote.close()
        for environment in environments:
            if environment.is_alive:
                environment.record_end(signal.SIGKILL)
        self._watcher.join()
        self._api.close()

    def _run(
        self, function: Function, request_id: str, payload: bytes, client_context: str | None
    ) -> InvocationOutcome:
        """Run an invocation in an idle environment of the function, or in a new one if there is none; write its log, keep the environment
        for later invocations if it is alive, and return the outcome.
        """
        environment = self._take_warm(function) or self._start_cold(function)
        outcome = environment.run(request_id, payload, client_context=client_context)
        self._write_log(environment, request_id, outcome)
        if environment.is_alive:
            self._keep_idle(environment)
        return outcome

    def _take_warm(self, function: Function) -> Environment | None:
        """Remove and return the idle environment of this function that was used last; None if there is none. Idle environments of an older
        version of the function, or without their fork server, that are met first are killed.
        """
        with self._lock:
            idle = self._idle.get(function.name, [])
            while idle:
                environment = idle.pop()
                if environment.is_usable and environment.function == function:
                    return environment
                environment.kill()
        return None

    def _start_cold(self, function: Function) -> Environment:
        """Start and return a new environment of the function; if its fork server was killed, start a new fork server first. Raises
        TooManyRequests if the service is closed, Unavailable if the second fork server ends too, TimeoutError if one does not reply.
        """
        try:
            return self._start_environment(function)
        except Unavailable as error:
            if self._closed.is_set():
                raise TooManyRequests(SHUT_DOWN) from error
            return self._start_environment(function)  # by a new fork server: the other was killed

    def _start_environment(self, function: Function) -> Environment:
        """Start, register and return a new environment of the function; a fork server is started if none runs. Raises Unavailable if
        that ends meanwhile, or if the service is closed, TimeoutError if it does not reply. The caller does not hold the lock.
        """
        with self._lock:
            self._number += 1
            number = self._number
        extra = {**self.extra_environment.get("*", {}), **self.extra_environment.get(function.name, {})}
        variables = {**_standard_variables(function, number), **self._variables(function), **extra}
        environment = Environment(function, number=number, variables=variables, api=self._api, folder=self._folder)
        try:
            environment.start(self._get_zygote(_zygote_kind(function)))
        except (Unavailable, TimeoutError):
            environment.record_end(signal.SIGKILL)
            raise
        with self._lock:
            self._environments[environment.pid] = environment
            status = self._early_ends.pop(environment.pid, None)
            late = self._closed.is_set()
        if status is not None:
            self._on_exit(environment.pid, status)
        elif late:
            environment.kill()
            self._on_exit(environment.pid, signal.SIGKILL)
        return environment

    def _keep_idle(self, environment: Environment) -> None:
        """Keep `environment` as idle for later invocations. If more than 8 that use torch, or 32 others, are idle, kill those that have
        been idle longest.
        """
        kind = _zygote_kind(environment.function)
        with self._lock:
            self._idle.setdefault(environment.function.name, []).append(environment)
            idle = [each for group in self._idle.values() for each in group if _zygote_kind(each.function) == kind]
            surplus = sorted(idle, key=lambda each: each.used_at)[: -_IDLE_KEPT[kind]]
            for each in surplus:
                self._idle[each.function.name].remove(each)
        for each in surplus:
            each.kill()

    def _get_zygote(self, kind: ZygoteKind) -> Zygote:
        """Return the running fork server of a kind, started now if there is none. Raises Unavailable if the service is closed."""
        with self._lock:
            if self._closed.is_set():
                raise Unavailable(SHUT_DOWN)
            zygote = self._zygotes.get(kind)
            if zygote is None or not zygote.is_alive:
                logs = self._folder / "logs"
                logs.mkdir(parents=True, exist_ok=True)
                output = logs / f"zygote-{kind}.log"
                zygote = Zygote(kind, on_exit=self._on_exit, output=output, runtime=self._runtime)
                self._zygotes[kind] = zygote
            return zygote

    def _on_exit(self, pid: int, status: int) -> None:
        """Remove the environment whose process `pid` has ended with the wait status `status`. If that environment is not registered yet,
        the status is kept until it is.
        """
        with self._lock:
            environment = self._environments.pop(pid, None)
            if environment is None:
                self._early_ends[pid] = status  # told before the fork's caller had its answer
                return
            group = self._idle.get(environment.function.name, [])
            if environment in group:
                group.remove(environment)
        environment.record_end(status)

    def _write_log(self, environment: Environment, request_id: str, outcome: InvocationOutcome) -> None:
        """Append the report of invocation `request_id` to platform.jsonl in its function's log folder, and pass what it printed and the
        report to the sink as lines. `outcome`: of the invocation, with its output and figures.
        """
        record = build_report(environment.function, request_id, outcome)
        printed = list_log_lines(record, outcome.log)
        with (environment.log.parent / "platform.jsonl").open("a", encoding="utf-8") as file:
            file.write(printed[-1] + "\n")
        self._sink(environment.function, f"{environment.number:05d}", printed)

    def _invoke_with_retries(self, function: Function, payload: bytes) -> None:
        """Invoke the function until it succeeds, with at most two retries, as Lambda makes for an asynchronous invocation, after 1 s and
        2 s. A refusal (TooManyRequests) is retried too; after the last failure, or once the service is closed, give up silently.
        """
        for pause_s in (*(EVENT.first_s * 2**number for number in range(EVENT.again)), None):
            with contextlib.suppress(TooManyRequests):
                if self.invoke(function, payload).error is None:
                    return
            if pause_s is None or self._closed.wait(pause_s):
                return

    def _watch(self) -> None:
        """Check every 0.05 s, until the service is closed, for environments that exceed their function's memory, and kill them. Runs in a
        thread.
        """
        while not self._closed.wait(_WATCH_S):
            for environment in self.list_running():
                environment.enforce_memory_limit()


def _zygote_kind(function: Function) -> ZygoteKind:
    """Return the kind of fork server that the function needs."""
    return "torch" if function.torch else "plain"


def _standard_variables(function: Function, number: int) -> dict[str, str]:
    """Return the environment variables that Lambda itself sets for a function. `number`: of the execution environment, in the name of its
    log stream. Those with the address of the runtime API and with credentials are not among them.
    """
    return {
        "_HANDLER": function.handler,
        "LAMBDA_TASK_ROOT": str(function.folder),
        "AWS_LAMBDA_FUNCTION_NAME": function.name,
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory_mb),
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_LAMBDA_LOG_GROUP_NAME": function.log_group or f"/aws/lambda/{function.name}",
        "AWS_LAMBDA_LOG_STREAM_NAME": f"{number:05d}",
        "AWS_EXECUTION_ENV": "AWS_Lambda_python3.11",
        "LANG": "C.UTF-8",
        "PATH": os.defpath,
        "TZ": ":UTC",
    }

"""The Lambda Runtime API (version 2018-06-01), to which AWS's runtime client in each environment talks.

One thread runs all of it; every environment has a port of its own, which is how a request tells where it comes from. Anybody on this
machine can ask there: so each address has a drawn path besides, that only its environment's variables tell. Source:
https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html
"""

import asyncio
import contextlib
import hmac
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from crossover.errors import Unavailable
from crossover.local.lambda_runtime.function import error_payload

SHUT_DOWN = "the local Lambda service is shut down"
RESPONSE_LIMIT = 6 * 1024 * 1024 + 100  # bytes; the 100 is what the service itself allows over
_HEADER_LIMIT = 2 * 1024 * 1024  # an error's trace travels in a header of up to 1 MiB


@dataclass(frozen=True, slots=True)
class Handout:
    """One invocation as the runtime receives it."""

    request_id: str
    payload: bytes
    deadline_ms: int
    function_arn: str
    client_context: str | None = None


class Served(Protocol):
    """What the server asks of an execution environment. All but `take` are called in the server's thread and must not block."""

    async def take(self) -> Handout | None:
        """The next invocation; called once the runtime is ready for it. None: there will be no more."""

    def answered(self, request_id: str, body: bytes, *, error: bool) -> None: ...

    def failed_to_start(self, body: bytes) -> None: ...


class RuntimeApi:
    """The server. `open` gives an environment its address."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._servers: dict[str, asyncio.Server] = {}
        self._serving: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._over = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="lambda-runtime-api", daemon=True)
        self._lock = threading.Lock()
        self._thread.start()

    def open(self, environment: Served) -> str:
        """Listen for one environment; its `host:port/path`, to be kept secret. Raises Unavailable once this is closed."""
        with self._lock:
            if self._loop.is_closed():
                raise Unavailable(SHUT_DOWN)
            return asyncio.run_coroutine_threadsafe(self._open(environment), self._loop).result()

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """`call(*arguments)` in the server's thread; nothing once this is closed, when nobody waits for it any more."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    def release(self, address: str) -> None:
        """Stop listening at `address`; harmless to repeat."""
        self.soon(self._release, address)

    def close(self) -> None:
        """Stop the thread; harmless to repeat."""
        with self._lock:
            if self._loop.is_closed():
                return
            done: Future[None] = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            done.result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _open(self, environment: Served) -> str:
        path = secrets.token_hex(16)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
                    writer.transport.abort()  # what nobody has read by now nobody will
                writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=_HEADER_LIMIT)
        host, port = server.sockets[0].getsockname()
        address = f"{host}:{port}/{path}"
        self._servers[address] = server
        return address

    def _release(self, address: str) -> None:
        if server := self._servers.pop(address, None):
            closing = self._loop.create_task(_closed(server))
            self._closing.add(closing)  # the loop alone would let it go
            closing.add_done_callback(self._closing.discard)

    async def _end(self) -> None:
        """Until nothing is open. Connections that are being accepted end when they begin: neither are they cancelled, nor their servers
        closed before, since asyncio would forget to close them.
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


async def _closed(server: asyncio.Server) -> None:
    """Close the server of an environment that is dead, or about to be: nothing is accepted any more, and what was accepted begins within
    two turns. A connection whose server closes before it begins asyncio would forget to close.
    """
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    for _ in range(3):
        await asyncio.sleep(0)
    server.close()


async def _serve(environment: Served, secret: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection: requests one after another until the runtime closes it, or one is not for the path of its environment."""
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
            writer.write(_reply("403 Forbidden", b"{}"))
            return
        path = target.partition(" ")[0]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        body = await _body(reader, headers)
        if method == "GET" and path.endswith("/invocation/next"):
            handout = await environment.take()
            if handout is None:
                return
            writer.write(_handed_out(handout))
        else:
            writer.write(_posted(environment, path.split("/"), body))
        await writer.drain()


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    chunks = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(chunks)


def _posted(environment: Served, path: list[str], body: bytes) -> bytes:
    match path[-3:]:
        case [_, "init", "error"]:
            environment.failed_to_start(body)
        case ["invocation", request_id, "error"]:
            environment.answered(request_id, body, error=True)
        case ["invocation", request_id, "response"] if len(body) > RESPONSE_LIMIT:
            said = f"Response payload size ({len(body)} bytes) exceeded maximum allowed payload size ({RESPONSE_LIMIT} bytes)."
            environment.answered(request_id, error_payload("Function.ResponseSizeTooLarge", said), error=True)
            return _reply("413 Payload Too Large", b"{}")
        case ["invocation", request_id, "response"]:
            environment.answered(request_id, body, error=False)
        case _:
            return _reply("404 Not Found", b"{}")
    return _reply("202 Accepted", b'{"status":"OK"}\n')


def _handed_out(handout: Handout) -> bytes:
    headers = {
        "Lambda-Runtime-Aws-Request-Id": handout.request_id,
        "Lambda-Runtime-Deadline-Ms": str(handout.deadline_ms),
        "Lambda-Runtime-Invoked-Function-Arn": handout.function_arn,
    }
    if handout.client_context:
        headers["Lambda-Runtime-Client-Context"] = handout.client_context
    return _reply("200 OK", handout.payload, headers)


def _reply(status: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """Head and body in one piece: two segments would wait 40 ms for each other's acknowledgement."""
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

"""One execution environment: a forked process, its Runtime API port, and the one invocation it works on at a time."""

import asyncio
import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from pathlib import Path

from crossover.local.lambda_runtime import occupancy
from crossover.local.lambda_runtime.api import Handout, RuntimeApi
from crossover.local.lambda_runtime.function import Function, exited, out_of_memory, timed_out
from crossover.local.lambda_runtime.zygotes import ForkStart, Zygote, exit_words

_INIT_S = 60.0  # generous beside Lambda's 10 s: many may start at once on few cores
_END_S = 10.0


@dataclass(frozen=True, kw_only=True)
class InvocationOutcome:
    """What came of an invocation, with the figures of a platform.report record. `init_ms`: None unless it was a cold start."""

    payload: bytes
    status: str  # success | error | timeout | failure
    duration_ms: float
    init_ms: float | None
    max_memory_mb: int
    log: bytes


class Environment:
    """Made, started once, then `run` any number of times by one thread at a time; `ended` is told once, from another thread."""

    def __init__(
        self, function: Function, *, number: int, variables: Mapping[str, str], api: RuntimeApi, folder: Path
    ) -> None:
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
    def alive(self) -> bool:
        return not self._over.is_set()

    @property
    def usable(self) -> bool:
        """Alive, and so is the fork server, whose end is seen before those of its environments are told one by one."""
        return self.alive and self._zygote is not None and self._zygote.alive

    @property
    def request_id(self) -> str | None:
        """Of the invocation it works on; None while idle."""
        return self._work[0] if self._work else None

    def start(self, zygote: Zygote) -> None:
        """Fork it. Raises Unavailable when the zygote is gone."""
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
        self._baseline = occupancy.resident(self.pid)

    async def take(self) -> Handout | None:
        self._resolve_ready()
        handout = await self._queue.get()
        self._handed_out_at = time.perf_counter()
        return handout

    def answered(self, request_id: str, body: bytes, *, error: bool) -> None:
        self._finish(request_id, body, "error" if error else "success")

    def failed_to_start(self, body: bytes) -> None:
        self._init_error = body

    def ended(self, status: int) -> None:
        """The process is gone; `status` is its wait status."""
        self._words = exit_words(status)
        self._over.set()
        self._resolve_ready()
        if work := self._work:
            self._finish(work[0], self._last_words(work[0]), "failure")
        self._api.soon(self._queue.put_nowait, None)
        self._api.release(self._address)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def run(self, request_id: str, payload: bytes, *, client_context: str | None = None) -> InvocationOutcome:
        """Give it one invocation; wait for the answer, its end or the time-out."""
        function, result = self.function, Future[tuple[bytes, str]]()
        offset = 0 if self._cold else self.log.stat().st_size
        self._work = (request_id, result)
        init_ms = self._wait_for_start() if self._cold else None
        self._handed_out_at = time.perf_counter()
        if self.alive:
            deadline_ms = int((time.time() + function.timeout_s) * 1000)
            handout = Handout(request_id, payload, deadline_ms, function.arn, client_context)
            self._api.soon(self._queue.put_nowait, handout)
        else:
            self._finish(request_id, self._last_words(request_id), "failure")
        body, status = self._wait(request_id, result)
        duration_ms = (time.perf_counter() - self._handed_out_at) * 1000
        peak_mb = occupancy.peak_mb(self.pid) or function.memory_mb
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

    def watch_memory(self) -> None:
        """Kill it if it has grown by more than the function's memory since the fork (torch itself, shared, is not counted)."""
        grown = occupancy.resident(self.pid) - self._baseline
        if self._baseline and self._work and grown > self.function.memory_mb * 1_048_576:
            self._out_of_memory = True
            self.kill()

    def kill(self) -> None:
        """SIGKILL to its process group; harmless when it has ended."""
        if not self.alive or not self.pid:
            return
        with contextlib.suppress(ProcessLookupError):
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:  # so young that it has no group of its own yet
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> None:
        """Until its process is gone."""
        self._over.wait(timeout_s)

    def _wait(self, request_id: str, result: Future[tuple[bytes, str]]) -> tuple[bytes, str]:
        try:
            return result.result(self.function.timeout_s)
        except NotYet:
            self._finish(request_id, timed_out(request_id, self.function.timeout_s), "timeout")
            self.kill()
            self.wait(_END_S)  # so that it is over before anybody retries
            return result.result()

    def _wait_for_start(self) -> float:
        try:
            self._ready.result(_INIT_S)
        except NotYet:
            self.kill()
            self.wait(_END_S)
        return (time.perf_counter() - self._started_at) * 1000

    def _resolve_ready(self) -> None:
        with self._lock:
            if not self._ready.done():
                self._ready.set_result(None)

    def _finish(self, request_id: str, body: bytes, status: str) -> None:
        """First come, first served: a reply that crosses a time-out loses, as on Lambda."""
        with self._lock:
            if self._work and self._work[0] == request_id and not self._work[1].done():
                self._work[1].set_result((body, status))

    def _last_words(self, request_id: str) -> bytes:
        if self._out_of_memory:
            return out_of_memory(request_id)
        return self._init_error or exited(request_id, self._words)

"""The local Lambda service: Invoke in front, execution environments behind.

Functions whose steps only compute (waits=False) run `cores` at once where they use torch and 8 at once where they do not; more of them
queue. Functions that wait for one another (waits=True) get an environment each at once, as they must. Environments are reused warm.
"""

import contextlib
import os
import signal
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from crossover.clients.pools import Pool
from crossover.errors import Unavailable
from crossover.local.lambda_runtime.api import SHUT_DOWN, RuntimeApi
from crossover.local.lambda_runtime.environment import Environment, InvocationOutcome
from crossover.local.lambda_runtime.function import (
    EVENT_LIMIT,
    REQUEST_LIMIT,
    Answer,
    Function,
    TooLarge,
    TooManyRequests,
)
from crossover.local.lambda_runtime.reporting import lines, report
from crossover.local.lambda_runtime.zygotes import Runtime, Zygote, ZygoteKind
from crossover.runtime.retries import EVENT

Sink = Callable[[Function, str, list[str]], None]  # function, log stream, lines
_PLAIN_AT_ONCE = 8
_IDLE_KEPT: Mapping[ZygoteKind, int] = {"torch": 8, "plain": 32}
_WATCH_S = 0.05
_END_S = 2.0


class Lambdas:
    """The functions and their environments; `close` ends every process.

    `variables(function)` gives what the cloud adds to a worker's environment (addresses, region, credentials); `sink` takes the logs.
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
        """Synchronously. Raises TooLarge, TooManyRequests."""
        if len(payload) > REQUEST_LIMIT:
            raise TooLarge(len(payload), kind="RequestResponse", limit=REQUEST_LIMIT)
        request_id = str(uuid.uuid4())
        with contextlib.nullcontext() if function.waits else self._pools[_kind(function)].place():
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
        """Asynchronously, retried twice; the request id. Raises TooLarge, TooManyRequests once this is closed."""
        if len(payload) > EVENT_LIMIT:
            raise TooLarge(len(payload), kind="Event", limit=EVENT_LIMIT)
        try:
            self._events.submit(self._retried, function, payload)
        except RuntimeError as error:
            raise TooManyRequests(SHUT_DOWN) from error
        return str(uuid.uuid4())

    def prepare(self, kind: ZygoteKind) -> None:
        """Start the fork server of a kind now, so that its imports run beside the caller's work."""
        self._zygote(kind)

    def environments(self) -> list[Environment]:
        """All that are alive, at work or idle."""
        with self._lock:
            return [each for each in self._environments.values() if each.alive]

    def running(self) -> list[Environment]:
        """The environments that work on an invocation right now."""
        return [each for each in self.environments() if each.request_id]

    def forget(self, name: str) -> None:
        """End the idle environments of a function that is deleted or changed."""
        with self._lock:
            idle = self._idle.pop(name, [])
        for environment in idle:
            environment.kill()

    def close(self) -> None:
        """End everything; invocations in flight come back as crashed. Harmless to repeat."""
        with self._lock:  # what is not registered by now looks at `_closed` when it is
            if self._closed.is_set():
                return
            self._closed.set()
            zygotes, environments = list(self._zygotes.values()), list(self._environments.values())
        self._events.shutdown(wait=False, cancel_futures=True)
        for environment in environments:
            environment.kill()
        for environment in environments:
            environment.wait(_END_S)  # so that their parent, the zygote, is still there to reap them
        for zygote in zygotes:
            zygote.close()
        for environment in environments:
            if environment.alive:
                environment.ended(signal.SIGKILL)
        self._watcher.join()
        self._api.close()

    def _run(
        self, function: Function, request_id: str, payload: bytes, client_context: str | None
    ) -> InvocationOutcome:
        environment = self._warm(function) or self._cold(function)
        outcome = environment.run(request_id, payload, client_context=client_context)
        self._log(environment, request_id, outcome)
        if environment.alive:
            self._park(environment)
        return outcome

    def _warm(self, function: Function) -> Environment | None:
        with self._lock:
            idle = self._idle.get(function.name, [])
            while idle:
                environment = idle.pop()
                if environment.usable and environment.function == function:
                    return environment
                environment.kill()
        return None

    def _cold(self, function: Function) -> Environment:
        try:
            return self._started(function)
        except Unavailable as error:
            if self._closed.is_set():
                raise TooManyRequests(SHUT_DOWN) from error
            return self._started(function)  # by a new fork server: the other was killed

    def _started(self, function: Function) -> Environment:
        with self._lock:
            self._number += 1
            number = self._number
        extra = {**self.extra_environment.get("*", {}), **self.extra_environment.get(function.name, {})}
        variables = {**_standard_variables(function, number), **self._variables(function), **extra}
        environment = Environment(function, number=number, variables=variables, api=self._api, folder=self._folder)
        try:
            environment.start(self._zygote(_kind(function)))
        except Unavailable:
            environment.ended(signal.SIGKILL)
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

    def _park(self, environment: Environment) -> None:
        kind = _kind(environment.function)
        with self._lock:
            self._idle.setdefault(environment.function.name, []).append(environment)
            idle = [each for group in self._idle.values() for each in group if _kind(each.function) == kind]
            surplus = sorted(idle, key=lambda each: each.used_at)[: -_IDLE_KEPT[kind]]
            for each in surplus:
                self._idle[each.function.name].remove(each)
        for each in surplus:
            each.kill()

    def _zygote(self, kind: ZygoteKind) -> Zygote:
        with self._lock:
            if self._closed.is_set():
                raise Unavailable(SHUT_DOWN)
            zygote = self._zygotes.get(kind)
            if zygote is None or not zygote.alive:
                logs = self._folder / "logs"
                logs.mkdir(parents=True, exist_ok=True)
                output = logs / f"zygote-{kind}.log"
                zygote = Zygote(kind, on_exit=self._on_exit, output=output, runtime=self._runtime)
                self._zygotes[kind] = zygote
            return zygote

    def _on_exit(self, pid: int, status: int) -> None:
        with self._lock:
            environment = self._environments.pop(pid, None)
            if environment is None:
                self._early_ends[pid] = status  # told before the fork's caller had its answer
                return
            group = self._idle.get(environment.function.name, [])
            if environment in group:
                group.remove(environment)
        environment.ended(status)

    def _log(self, environment: Environment, request_id: str, outcome: InvocationOutcome) -> None:
        record = report(environment.function, request_id, outcome)
        printed = lines(record, outcome.log)
        with (environment.log.parent / "platform.jsonl").open("a", encoding="utf-8") as file:
            file.write(printed[-1] + "\n")
        self._sink(environment.function, f"{environment.number:05d}", printed)

    def _retried(self, function: Function, payload: bytes) -> None:
        for pause_s in (*(EVENT.first_s * 2**number for number in range(EVENT.again)), None):
            with contextlib.suppress(TooManyRequests):
                if self.invoke(function, payload).error is None:
                    return
            if pause_s is None or self._closed.wait(pause_s):
                return

    def _watch(self) -> None:
        while not self._closed.wait(_WATCH_S):
            for environment in self.running():
                environment.watch_memory()


def _kind(function: Function) -> ZygoteKind:
    return "torch" if function.torch else "plain"


def _standard_variables(function: Function, number: int) -> dict[str, str]:
    """What Lambda itself sets."""
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

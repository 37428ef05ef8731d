"""A function as the local Lambda service knows it, what a caller gets back, and Lambda's own limits."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

REQUEST_LIMIT = 6 * 1024 * 1024  # bytes of a synchronous invocation's payload
EVENT_LIMIT = 1024 * 1024  # bytes of an asynchronous one's


@dataclass(frozen=True, kw_only=True)
class Function:
    """One deployed function. `folder`: the unpacked zip; `torch`, `waits`: its tags crossover:torch and crossover:waits."""

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
    """What an invocation came to. `error`: None, or "Unhandled" when `payload` is {"errorType", "errorMessage", ...}."""

    request_id: str
    payload: bytes
    error: str | None = None
    log_tail: bytes = b""


class TooLarge(Exception):
    """A payload above Lambda's limit; `str` is the service's message."""

    def __init__(self, size: int, *, kind: str, limit: int) -> None:
        super().__init__(f"{size} byte payload is too large for the {kind} invocation type (limit {limit} bytes)")


class TooManyRequests(Exception):
    """More environments at once than the account's concurrency."""


def error_payload(kind: str, message: str) -> bytes:
    return json.dumps({"errorType": kind, "errorMessage": message}).encode()


def timed_out(request_id: str, timeout_s: float) -> bytes:
    """As Lambda words it; that Step Functions sees this name is unproven on AWS."""
    return error_payload(
        "Sandbox.Timedout", f"RequestId: {request_id} Error: Task timed out after {timeout_s:.2f} seconds"
    )


def exited(request_id: str, words: str) -> bytes:
    return error_payload("Runtime.ExitError", f"RequestId: {request_id} Error: Runtime exited with error: {words}")


def out_of_memory(request_id: str) -> bytes:
    return error_payload(
        "Runtime.OutOfMemory", f"RequestId: {request_id} Error: Runtime exited with error: signal: killed"
    )

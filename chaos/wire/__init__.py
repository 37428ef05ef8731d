"""The wire of the virtual world: servers without time behind our real clients of Redis, S3 and RabbitMQ.

A fake of a wire asks its world for one thing: carry this request to the server and its reply back. The world decides how long that takes
and what goes wrong on the way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Service = Literal["redis", "s3", "rabbitmq", "aws"]  # the last: APIs of AWS's own, such as Step Functions
Effect = Callable[
    [], tuple[Any, int]
]  # changes the server's state at once; the reply, and how many payload bytes it carries


@dataclass(frozen=True, slots=True)
class Request:
    """What goes over a wire once. `operation` is in the wire's own words: AI.TENSORSET, PutObject, basic.publish, connect."""

    service: Service
    operation: str
    keys: tuple[str, ...]
    bytes_out: int  # of payload
    connection: int  # of this server's, from 1; 0 where the wire keeps none, as S3's
    server: int = 0  # which one of several of this service
    within_s: float = float("inf")  # how long the client waits for the reply


class Lost(Exception):
    """Raised by who carries, in place of a reply: the connection broke, or with `silent` nothing came for as long as the client waits.

    Whether the effect took place is not told. A silent loss is raised when the client's patience has passed, not before: who carries
    keeps the time.
    """

    def __init__(self, *, silent: bool = False) -> None:
        super().__init__("no answer" if silent else "connection lost")
        self.silent = silent


class Refusal(Exception):
    """Raised by who carries: the server's refusal in place of an effect, by the server's own code. Redis: LOADING, BUSY, TRYAGAIN. S3:
    SlowDown, InternalError, ConditionalRequestConflict. RabbitMQ: basic.nack, to a publish.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Carry(Protocol):
    """The way to a server and back: returns the reply that effect() gave. What effect() raises goes through unchanged: Lost, from a server
    that is down, or what the fake has for its own client.
    """

    def __call__(self, request: Request, effect: Effect) -> Any: ...

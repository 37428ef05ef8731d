"""Requests of the virtual world: whoever stands for a server asks the world to carry each there and its reply back.

The world decides how long that takes and what goes wrong on the way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

ServiceName = Literal["redis", "s3", "rabbitmq", "aws"]  # the last: APIs of AWS's own, such as Step Functions
# Changes the server's state at once; the reply, and how many payload bytes it carries.
Effect = Callable[[], tuple[Any, int]]


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a server. `operation`: in the server's own words, such as AI.TENSORSET, PutObject, basic.publish or connect."""

    service: ServiceName
    operation: str
    keys: tuple[str, ...]
    bytes_out: int = 0  # of payload
    server: int = 0  # which one of several of this service
    within_s: float = float("inf")  # how long the client waits for the reply
    conditional: bool = False  # whether it creates a key only if there is none
    takes_s: float = 0.0  # how long the server takes for the reply after the effect


class LostReply(Exception):
    """Error in place of a reply that was lost: the connection broke, or, if `silent`, nothing came for as long as the client waits.
    Whether the request took effect is not known.
    """

    def __init__(self, *, silent: bool = False) -> None:
        """Create the error; `silent`: whether no answer came at all."""
        super().__init__("no answer" if silent else "connection lost")
        self.silent = silent


class ServerRefusal(Exception):
    """Error of a request that a server refuses with an error code of its own. Redis: LOADING, BUSY, TRYAGAIN. S3: SlowDown, InternalError,
    ConditionalRequestConflict. RabbitMQ: basic.nack, to a publish.
    """

    def __init__(self, code: str) -> None:
        """Create the error with the server's error code."""
        super().__init__(code)
        self.code = code


class Carry(Protocol):
    """A function that carries a request to its server and returns the reply that effect() gave. It passes on what effect() raises:
    LostReply from a server that is down, or an error of the server's stand-in for its own client.
    """

    def __call__(self, request: Request, effect: Effect) -> Any:
        """Carry `request` to its server, call `effect` there, and return the reply that it gave. `effect`: changes the server, returns
        (reply, bytes of its payload).
        """

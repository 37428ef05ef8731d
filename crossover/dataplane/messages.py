"""What every message bus agrees on: how large a message may be, and what stands in a barrier's messages."""

import json

from crossover.dataplane import plain
from crossover.dataplane.protocols import Buffer
from crossover.errors import Refused

# Amazon MQ's RabbitMQ 4 may refuse more than 16 MiB; the same limit holds on one machine, so that a run that works there works on AWS.
MAX_BODY_BYTES = 15 * 2**20


def checked(name: str, body: Buffer) -> bytes:
    """`body` as bytes, or Refused where it is too long for `name`."""
    bytes_ = memoryview(body).nbytes
    if bytes_ > MAX_BODY_BYTES:
        raise Refused(
            f"{name}: a message of {bytes_:,} bytes; at most {MAX_BODY_BYTES:,} (15 MiB) fit: "
            "put the body into the object store and send its key"
        )
    return body if isinstance(body, bytes) else bytes(body)


def arrival(round_: int, member: int) -> bytes:
    """What `member` tells the others of a barrier."""
    return json.dumps({"round": round_, "member": member}).encode()


def read_arrival(body: bytes, *, queue: str) -> tuple[int, int]:
    """(round, member) of a barrier's message. Raises Corrupt."""
    message = plain.read(body, {"round": int, "member": int}, key=queue)
    return message["round"], message["member"]

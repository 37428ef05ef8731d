"""One rule for the wire and the file: RESTORE takes exactly what AI.TENSORSET takes, and what it takes survives a rewrite."""

from __future__ import annotations

import math
import random
import signal
from dataclasses import dataclass

import pytest
import redis

from tests.redis_module.servers import Client, Start, until
from tests.redis_module.test_persistence import contents, digest
from tests.redis_module.vectors import DTYPES

BAD = 99  # a dtype that is none
NAMES = dict(enumerate([*DTYPES, "STRING"]))
TEXT = len(DTYPES)
WIDTHS = {"FLOAT": 4, "DOUBLE": 8, "INT16": 2, "INT32": 4, "INT64": 8, "UINT16": 2}


@dataclass(frozen=True)
class Saved:
    """A tensor as a dump describes it, valid or not. `dtype`: its number in the dump; `kind`, `samples`: its labels; `blob`: its values."""

    dtype: int
    shape: tuple[int, ...]
    kind: bytes
    samples: int | None
    blob: bytes

    @property
    def whole(self) -> int:
        """The number of bytes that dtype and shape need; -1 if they are invalid."""
        if self.dtype not in NAMES or min(self.shape, default=0) < 0:
            return -1
        return WIDTHS.get(NAMES[self.dtype], 1) * math.prod(self.shape)

    def words(self) -> list[object]:
        """Return the words of AI.TENSORSET that set the tensor. A size beyond 63 bits stays as it is."""
        labels: list[object] = ["KIND", self.kind] if self.kind else []
        labels += [] if self.samples is None else ["SAMPLES", self.samples]
        return [NAMES.get(self.dtype, "NONE"), *self.shape, *labels, "BLOB", self.blob]

    def payload(self, like: bytes) -> bytes:
        """Return the payload for RESTORE, with the type, version and (unchecked) checksum of `like`, a payload that the server made."""
        numbers = [self.dtype, len(self.shape), *(size % 2**64 for size in self.shape)]
        fields = b"".join(map(number, numbers)) + text(self.kind)
        fields += number(self.samples is not None) + number(self.samples or 0)
        fields += number(len(self.blob)) if self.dtype == TEXT else b""
        fields += text(self.blob) if self.blob else b""
        return like[:10] + fields + b"\0" + like[-10:]


def length(value: int) -> bytes:
    """Return a length in the encoding of dumps."""
    return bytes([value]) if value < 64 else b"\x81" + value.to_bytes(8, "big")


def number(value: int) -> bytes:
    """Return an unsigned integer in the encoding of modules' dumps."""
    return b"\x02" + length(value)


def text(value: bytes) -> bytes:
    """Return a string in the encoding of modules' dumps."""
    return b"\x05" + length(len(value)) + value


def drawn(source: random.Random) -> Saved:
    """Return a random tensor, often with an invalid dtype, shape, label or size."""
    dtype = source.choice([*NAMES, *NAMES, 8, 8, TEXT, BAD])
    rank = source.choice([0, 1, 1, 2, 2, 3, 64, 65])
    sizes = [1] if rank > 3 else [0, 1, 1, 2, 2, 3, 3, source.choice([-5, -1, -(2**63), 2**62, 2**63 - 1])]
    shape = tuple(source.choice(sizes) for _ in range(rank))
    kind = source.randbytes(source.choice([0, 0, 1, 32, 33]))
    samples = source.choice([None, None, 0, 5, 2**63 - 1, 2**63, 2**64 - 1])
    saved = Saved(dtype, shape, kind, samples, b"")
    size = saved.whole + source.choice([0] * 9 + [1])  # of STRING: empty ones, or not enough of them
    blob = bytes(source.choices(range(source.choice([2, 2, 3])), k=size)) if 0 <= size <= 1000 else b"\0"
    return Saved(dtype, shape, kind, samples, blob)


def taken(client: Client, *command: object) -> bool:
    """Return whether the server executes the command without an error."""
    try:
        client.execute_command(*command)
    except redis.ResponseError:
        return False
    return True


@pytest.mark.parametrize("seed", range(2))
def test_a_file_holds_what_a_client_may_send(start: Start, seed: int) -> None:
    """Restore random valid and invalid dumps, and check that the server accepts exactly those that a client may set."""
    config = {"appendonly": "yes", "aof-use-rdb-preamble": "no", "auto-aof-rewrite-percentage": "0"}
    server = start(config=config)
    client = server.client()
    client.execute_command("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 1)
    client.execute_command("AI.TENSORSET", "like", "FLOAT", 1, "VALUES", 1)
    like: bytes = client.execute_command("DUMP", "like")
    source, known = random.Random(seed), []
    for i in range(400):
        saved = drawn(source)
        wire = taken(client, "AI.TENSORSET", f"wire:{i}", *saved.words())
        file = taken(client, "RESTORE", f"file:{i}", 0, saved.payload(like))
        assert wire == file, saved
        if wire:
            assert client.execute_command("TENSOR.GET", f"wire:{i}") == client.execute_command(
                "TENSOR.GET", f"file:{i}"
            )
        known.append(wire)
    assert 40 < sum(known) < 360
    before, total = contents(client), digest(client)
    client.bgrewriteaof()
    until(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0, what="the AOF's rewrite")
    server.stop(signal.SIGKILL)
    server.start()
    client = server.client()
    assert contents(client) == before and digest(client) == total
    client.execute_command("DEBUG", "RELOAD")
    assert digest(client) == total

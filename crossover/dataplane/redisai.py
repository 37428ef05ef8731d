"""Vectors in a Redis with stock RedisAI 1.2.7, by its public commands alone (oss.redis.com/redisai/1.2/commands).

Its tensors carry neither kind nor samples, it cannot create if absent, and it cannot set a time to live: so a vector is sent
under a temporary key, and one script gives it its name, its description (`<key>:about`) and its time to live, or drops it
where the name is taken. A client that is killed between the two commands leaves that one temporary tensor behind.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crossover.dataplane.buffers import fitting
from crossover.dataplane.redis_client import RedisClient
from crossover.dataplane.redis_wire import new_memory
from crossover.dataplane.traffic import Traffic
from crossover.dataplane.vector import ITEM_BYTES, DType, Kind, Vector
from crossover.errors import Corrupt, Missing, Refused

_DTYPES: dict[DType, str] = {"float32": "FLOAT", "uint8": "UINT8"}
_BY_NAME: dict[str, DType] = {dtype: dtype for dtype in _DTYPES}

# KEYS: n temporary tensors, n names, n descriptions' names. ARGV: time to live in ms, "NX" or "", n descriptions.
_APPEAR = """
local n = #KEYS / 3
if ARGV[2] == 'NX' and redis.call('EXISTS', KEYS[2 * n + 1]) == 1 then
  redis.call('UNLINK', unpack(KEYS, 1, n))
  return 0
end
for i = 1, n do
  redis.call('RENAME', KEYS[i], KEYS[n + i])
  redis.call('PEXPIRE', KEYS[n + i], ARGV[1])
  redis.call('SET', KEYS[2 * n + i], ARGV[2 + i], 'PX', ARGV[1])
end
return 1
"""


@dataclass(frozen=True, slots=True)
class About:
    """What a stored vector is, without its data."""

    kind: Kind
    samples: int
    dtype: DType
    elements: int


class RedisAITensorStore:
    """A TensorStore on AI.TENSORSET and AI.TENSORGET. Every key it writes lives `time_to_live_s`."""

    def __init__(self, client: RedisClient, traffic: Traffic, *, time_to_live_s: float) -> None:
        self.client = client
        self.traffic = traffic
        self._time_to_live_s = time_to_live_s

    def beside(self, traffic: Traffic) -> "RedisAITensorStore":
        """The same store by the same connections, counted into `traffic`."""
        return RedisAITensorStore(self.client, traffic, time_to_live_s=self._time_to_live_s)

    def put(self, key: str, vector: Vector) -> None:
        self.appear([(self._send(key, vector, "put"), key, _about_of(vector))], if_absent=False)

    def create(self, key: str, vector: Vector) -> bool:
        return self.appear([(self._send(key, vector, "create"), key, _about_of(vector))])

    def create_together(self, vectors: Sequence[tuple[str, Vector]]) -> bool:
        if self.exists(vectors[0][0]):
            return False
        return self.appear([(self._send(key, vector, "create"), key, _about_of(vector)) for key, vector in vectors])

    def get(self, key: str, *, kind: Kind | None = None, out: memoryview | None = None) -> Vector:
        def place(bytes_: int) -> memoryview:
            return new_memory(bytes_) if out is None else fitting(out, bytes_, key=key)

        about = self.about([key])[0]
        if kind is not None and about.kind != kind:
            raise Corrupt(f"{key}: holds a {about.kind} vector where a {kind} was expected")
        data = tensor_get(self.client, key, place)
        self.traffic.count("get", bytes_in=data.nbytes)
        if data.nbytes != about.elements * ITEM_BYTES[about.dtype]:
            raise Corrupt(f"{key}: holds {data.nbytes} bytes; its description says {about.elements} {about.dtype}")
        return Vector(about.kind, data, about.samples, about.dtype)

    def exists(self, key: str) -> bool:
        self.traffic.count("exists")
        return bool(self.client.control("EXISTS", _about(key), keys=[key]))

    def delete(self, *keys: str) -> None:
        self.traffic.count("delete")
        if keys:
            self.client.control("UNLINK", *keys, *map(_about, keys), keys=keys)

    def about(self, keys: Sequence[str]) -> list[About]:
        """What the vectors are; their data stays in the database. Raises Missing, Corrupt."""
        self.traffic.count("about")
        words = self.client.control("MGET", *map(_about, keys), keys=keys)
        return [_described(key, word) for key, word in zip(keys, words, strict=True)]

    def appear(self, vectors: Sequence[tuple[str, str, About]], *, if_absent: bool = True) -> bool:
        """Give temporary tensors, as (temporary key, key, what it is), their names: all at once, or none where the first name is taken."""
        self.traffic.count("rename")
        temporary, keys = [each[0] for each in vectors], [each[1] for each in vectors]
        names = [*temporary, *keys, *map(_about, keys)]
        descriptions = [f"{v.kind} {v.samples} {v.dtype} {v.elements}" for _, _, v in vectors]
        milliseconds = round(self._time_to_live_s * 1000)
        arguments = [milliseconds, "NX" if if_absent else "", *descriptions]
        return bool(self.client.control("EVAL", _APPEAR, len(names), *names, *arguments, keys=keys))

    def _send(self, key: str, vector: Vector, operation: str) -> str:
        name = temporary_key(key)
        self.traffic.count(operation, bytes_out=vector.data.nbytes)
        self.client.command(
            "AI.TENSORSET", name, _DTYPES[vector.dtype], vector.elements, "BLOB", vector.data, keys=[key]
        )
        return name


def temporary_key(key: str) -> str:
    """A name that nobody else uses, for a tensor that is to become `key`."""
    return f"{key}:{uuid.uuid4().hex}"


def tensor_get(client: RedisClient, key: str, place: Any) -> memoryview:
    """The blob of a tensor. Raises Missing."""
    try:
        reply = client.command("AI.TENSORGET", key, "META", "BLOB", keys=[key], place=place)
    except Refused as error:
        if "empty" in str(error):  # how RedisAI 1.2 says that a key does not exist
            raise Missing(key) from None
        raise
    blob: memoryview = reply[-1]
    return blob


def _about(key: str) -> str:
    return f"{key}:about"


def _about_of(vector: Vector) -> About:
    return About(vector.kind, vector.samples, vector.dtype, vector.elements)


def _described(key: str, word: bytes | None) -> About:
    if word is None:
        raise Missing(key)
    try:
        kind, samples, dtype, elements = word.decode().split(" ")
        return About(Kind(kind), int(samples), _BY_NAME[dtype], int(elements))
    except (ValueError, KeyError):
        raise Corrupt(f"{key}: {word[:60]!r} describes no vector") from None

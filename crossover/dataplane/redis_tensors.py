"""Vectors in a Redis with the tensor module: stored as its native tensors, so that its arithmetic finds them in place."""

from collections.abc import Sequence
from typing import Any, Self

from crossover import runtime
from crossover.dataplane.buffers import fitting
from crossover.dataplane.redis_client import RedisClient
from crossover.dataplane.redis_wire import Argument, new_memory
from crossover.dataplane.traffic import Traffic
from crossover.dataplane.vector import DType, Vector, VectorKind, expect
from crossover.errors import Corrupt, Missing

MODULE_NAMES: dict[DType, str] = {"float32": "FLOAT", "uint8": "UINT8"}
DTYPES: dict[str, DType] = {name: dtype for dtype, name in MODULE_NAMES.items()}

# Vectors sent under temporary keys appear under their own names at once, or not at all where the first name is taken.
APPEAR_TOGETHER = """
local n = #KEYS / 2
if redis.call('EXISTS', KEYS[n + 1]) == 1 then
  redis.call('UNLINK', unpack(KEYS, 1, n))
  return 0
end
for i = 1, n do
  redis.call('RENAME', KEYS[i], KEYS[n + i])
  redis.call('PEXPIRE', KEYS[n + i], ARGV[1])
end
return 1
"""


class RedisTensorStore:
    """A TensorStore on the tensor module's commands. Every key it writes lives `time_to_live_s`."""

    def __init__(self, client: RedisClient, traffic: Traffic, *, time_to_live_s: float) -> None:
        self.client = client
        self.time_to_live_ms = round(time_to_live_s * 1000)
        self.traffic = traffic

    def beside(self, traffic: Traffic) -> Self:
        """The same store by the same connections, counted into `traffic`."""
        return type(self)(self.client, traffic, time_to_live_s=self.time_to_live_ms / 1000)

    def close(self) -> None:
        self.client.close()

    def put(self, key: str, vector: Vector) -> None:
        self._set(key, vector, operation="put")

    def create(self, key: str, vector: Vector) -> bool:
        return bool(self._set(key, vector, "NX", operation="create"))

    def create_together(self, vectors: Sequence[tuple[str, Vector]]) -> bool:
        keys = [key for key, _ in vectors]
        if self.exists(keys[0]):
            return False
        mark = runtime.identifier()
        temporary = [f"{key}:{mark}" for key in keys]
        for key, (_, vector) in zip(temporary, vectors, strict=True):
            self._set(key, vector, operation="put")
        self.traffic.count("rename")
        names = [*temporary, *keys]
        return bool(self.client.command("EVAL", APPEAR_TOGETHER, len(names), *names, self.time_to_live_ms, keys=keys))

    def get(self, key: str, *, kind: VectorKind | None = None, out: memoryview | None = None) -> Vector:
        def place(bytes_: int) -> memoryview:
            return new_memory(bytes_) if out is None else fitting(out, bytes_, key=key)

        try:
            reply = self.client.command("TENSOR.GET", key, keys=[key], place=place)
        except Missing:
            reply = None
        self.traffic.count("get", bytes_in=reply[-1].nbytes if reply else 0)
        if reply is None:
            raise Missing(key)
        return expect(_vector(key, reply), key=key, kind=kind)

    def exists(self, key: str) -> bool:
        self.traffic.count("exists")
        return bool(self.client.command("EXISTS", key, keys=[key]))

    def delete(self, *keys: str) -> None:
        self.traffic.count("delete")
        if keys:
            self.client.command("UNLINK", *keys, keys=keys)

    def _set(self, key: str, vector: Vector, *options: str, operation: str) -> Any:
        self.traffic.count(operation, bytes_out=vector.data.nbytes)
        about: list[Argument] = ["KIND", vector.kind.value]
        if (
            vector.samples
        ):  # a vector that stands for no samples counts once in a mean, and so does one that does not say
            about += ["SAMPLES", vector.samples]
        return self.client.command(
            "AI.TENSORSET",
            key,
            MODULE_NAMES[vector.dtype],
            vector.elements,
            *about,
            *options,
            "PX",
            self.time_to_live_ms,
            "BLOB",
            vector.data,
            keys=[key],
        )


def _vector(key: str, reply: Sequence[Any]) -> Vector:
    """What TENSOR.GET answered: [dtype, shape, kind, samples, blob]."""
    dtype, _, kind, samples, data = reply
    if text(dtype) not in DTYPES:
        raise Corrupt(f"{key}: holds a tensor of {text(dtype)}; vectors are FLOAT or UINT8")
    if text(kind) not in VectorKind.__members__.values():
        raise Corrupt(f"{key}: holds a tensor of kind {text(kind)!r}; one of {', '.join(VectorKind)}")
    return Vector(VectorKind(text(kind)), data, int(samples or 0), DTYPES[text(dtype)])


def text(word: Any) -> str:
    """A word of a reply, whichever way it was sent: as a status, as a bulk string, or as nil."""
    return word.decode() if isinstance(word, bytes) else str(word or "")

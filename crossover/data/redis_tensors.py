"""Tensors in a Redis server or in an object store, and the commands that compute on them where they are."""

from collections.abc import Sequence
from typing import Any, Self

from crossover import runtime
from crossover.algorithms.optimizers import OPTIMIZERS, Update
from crossover.algorithms.rules import RULES, Agree, participants
from crossover.data.documents import deliver, fitting
from crossover.data.encoding import DType, Vector, VectorKind, decode, expect, header
from crossover.data.protocols import ObjectStore, StateKeys, Traffic, optimizer_keys
from crossover.data.redis_client import Argument, RedisClient, new_memory
from crossover.errors import Corrupt, Missing, Refused
from crossover.experiment import Aggregation

# --- redis tensors ----------------------------------------------------------------------------------------------------

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
        """Return a store on the same connections whose requests are counted into `traffic`."""
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
    """Build a vector from TENSOR.GET's reply [dtype, shape, kind, samples, blob]. Raises Corrupt."""
    dtype, _, kind, samples, data = reply
    if text(dtype) not in DTYPES:
        raise Corrupt(f"{key}: holds a tensor of {text(dtype)}; vectors are FLOAT or UINT8")
    if text(kind) not in VectorKind.__members__.values():
        raise Corrupt(f"{key}: holds a tensor of kind {text(kind)!r}; one of {', '.join(VectorKind)}")
    return Vector(VectorKind(text(kind)), data, int(samples or 0), DTYPES[text(dtype)])


def text(word: Any) -> str:
    """Return a word of a reply as text, whether it was sent as a status, a bulk string or nil."""
    return word.decode() if isinstance(word, bytes) else str(word or "")


# --- redis compute ----------------------------------------------------------------------------------------------------
# TensorCompute inside the database: SPIRT's averaging and update by the tensor module's own kernels. No vector leaves Redis.

_NONE = "-"  # the module's word for a vector that does not exist (yet)


class RedisCompute(RedisTensorStore):
    """A RedisTensorStore that computes, by the module's commands TENSOR.*. Every result is created (NX) and lives as long as other keys."""

    def mean(self, keys: Sequence[str], *, out: str) -> None:
        self._combine("MEAN", keys, out)

    def combine(self, keys: Sequence[str], *, rule: Aggregation, out: str, agree: Agree = list) -> None:
        options: list[Argument] = ["FINITE"]
        if rule.non_finite == "drop":
            if self.exists(out):
                return
            kept, rule = participants([self.finite(key) for key in keys], rule, names=keys, agree=agree)
            keys, options = [keys[index] for index in kept], []
        found = RULES[rule.rule]
        self._combine(_known(found.command, rule.rule), keys, out, *found.options(rule), *options)

    def update(self, state: StateKeys, gradient: str, *, out: StateKeys, update: Update) -> None:
        optimizer_keys(state, out, update)
        optimizer = OPTIMIZERS[update.optimizer]
        command, kind = _known(optimizer.command, update.optimizer), VectorKind(optimizer.kind)
        old = state.optimizer if out.optimizer and not update.first else [_NONE] * optimizer.places
        self._update(
            command,
            [(state.model, VectorKind.MODEL), (gradient, VectorKind.GRADIENT), *((key, kind) for key in old)],
            [out.model, *(out.optimizer or [_NONE])],
            [
                *("LR", update.learning_rate, "WEIGHTDECAY", update.weight_decay, *optimizer.options(update)),
                *("BUFFERS", update.buffers, "STATS", update.statistics_momentum),
            ],
        )

    def finite(self, key: str) -> bool:
        self.traffic.count("finite")
        return bool(self.client.command("TENSOR.FINITE", key, keys=[key]))

    def _combine(self, rule: str, keys: Sequence[str], out: str, *options: Argument) -> None:
        self._run(rule, [len(keys), *keys, *options, "OUT", out], keys)

    def _update(
        self, rule: str, inputs: Sequence[tuple[str, VectorKind]], outputs: Sequence[str], options: Sequence[Argument]
    ) -> None:
        present = [(key, kind) for key, kind in inputs if key != _NONE]
        for key, kind in present:  # a gradient must never be taken for a model; the module knows no such roles
            self._expect(key, kind)
        keys = [key for key, _ in present]
        self._run(rule, [*(key for key, _ in inputs), "OUT", *outputs, *options], keys)

    def _expect(self, key: str, kind: VectorKind) -> None:
        """Check the kind of the vector under `key`. Raises Corrupt if it is another. A key that is gone is fine: the step may have been
        finished before.
        """
        self.traffic.count("info")
        about = self.client.command("TENSOR.INFO", key, keys=[key])
        if about is not None and text(about[2]) != kind:
            raise Corrupt(f"{key}: holds a {text(about[2]) or 'nameless'} vector where a {kind} was expected")

    def _run(self, rule: str, arguments: Sequence[Argument], keys: Sequence[str]) -> None:
        self.traffic.count(rule.lower())
        self.client.command(f"TENSOR.{rule}", *arguments, "NX", "PX", self.time_to_live_ms, keys=keys)


def _known(command: str | None, name: str) -> str:
    """Refused where the database has none; a validated experiment computes elsewhere then."""
    if command is None:
        raise Refused(
            f"{name}: has no command in the tensor database; database.compute: fetch computes it in the function"
        )
    return command


# --- object tensors ---------------------------------------------------------------------------------------------------
# Vectors as objects: LambdaML's S3 channel. The payload stands behind the header of data/encoding.py.


class ObjectTensorStore:
    """A TensorStore over any ObjectStore, counted into that store's traffic. Keys live until the bucket's lifecycle rule ends them.

    `prefix`: stands before every key in the object store.
    """

    def __init__(self, objects: ObjectStore, *, prefix: str = "") -> None:
        self._objects, self._prefix = objects, prefix

    def put(self, key: str, vector: Vector) -> None:
        self._objects.put(self._prefix + key, [header(vector), vector.data])

    def create(self, key: str, vector: Vector) -> bool:
        return self._objects.put_new(self._prefix + key, [header(vector), vector.data])

    def create_together(self, vectors: Sequence[tuple[str, Vector]]) -> bool:
        # Whoever finds the first key finds the others: it comes last. Another attempt writes the same bits.
        for key, vector in vectors[:0:-1]:
            self.create(key, vector)
        return self.create(*vectors[0])

    def get(self, key: str, *, kind: VectorKind | None = None, out: memoryview | None = None) -> Vector:
        try:
            body = self._objects.get(self._prefix + key)
        except Missing:
            raise Missing(key) from None  # by the name that the caller knows
        return deliver(decode(body, key=key, kind=kind), key=key, kind=kind, out=out)

    def exists(self, key: str) -> bool:
        return self._objects.exists(self._prefix + key)

    def delete(self, *keys: str) -> None:
        self._objects.delete(*(self._prefix + key for key in keys))

"""Tensors in a Redis server or in an object store, and the commands that compute on them where they are."""

from collections.abc import Sequence
from typing import Any, Self

from crossover import runtime
from crossover.algorithms.optimizers import OPTIMIZERS, Update
from crossover.algorithms.rules import RULES, Agree, select_participants
from crossover.errors import Corrupt, Missing, Refused
from crossover.experiment import Aggregation
from crossover.stores.documents import check_length, finish_read
from crossover.stores.encoding import DType, Vector, VectorKind, build_header, check_kind, decode
from crossover.stores.protocols import ObjectStore, StateKeys, Traffic, check_optimizer_keys
from crossover.stores.redis_client import Argument, RedisClient, allocate_memory

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
    """TensorStore on a Redis server with this project's tensor module. Every key that it writes expires after `time_to_live_s` seconds."""

    def __init__(self, client: RedisClient, traffic: Traffic, *, time_to_live_s: float) -> None:
        """Use the connections of `client` and count requests in `traffic`. `time_to_live_s`: seconds after which written keys expire."""
        self.client = client
        self.time_to_live_ms = round(time_to_live_s * 1000)
        self.traffic = traffic

    def with_traffic(self, traffic: Traffic) -> Self:
        """Return a store of the same class, on the same connections, whose requests are counted in `traffic`."""
        return type(self)(self.client, traffic, time_to_live_s=self.time_to_live_ms / 1000)

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self.client.close()

    def put(self, key: str, vector: Vector) -> None:
        """Store `vector` under `key`, replacing an older one."""
        self._store(key, vector, operation="put")

    def create(self, key: str, vector: Vector) -> bool:
        """Store `vector` under `key` unless the key exists. Return True if this call stored it, otherwise False; after a broken
        connection, on which the command is sent again, also False if its first attempt had stored it.
        """
        return bool(self._store(key, vector, "NX", operation="create"))

    def create_together(self, vectors: Sequence[tuple[str, Vector]]) -> bool:
        """Store all `vectors`, pairs (key, vector), at least one, at once, unless the first key exists: they are sent under temporary
        keys, then renamed together; other keys that exist are replaced. Return whether this call stored them; if not, it leaves nothing.
        """
        keys = [key for key, _ in vectors]
        if self.exists(keys[0]):
            return False
        mark = runtime.identifier()
        temporary = [f"{key}:{mark}" for key in keys]
        for key, (_, vector) in zip(temporary, vectors, strict=True):
            self._store(key, vector, operation="put")
        self.traffic.count("rename")
        names = [*temporary, *keys]
        return bool(self.client.command("EVAL", APPEAR_TOGETHER, len(names), *names, self.time_to_live_ms, keys=keys))

    def get(self, key: str, *, kind: VectorKind | None = None, out: memoryview | None = None) -> Vector:
        """Return the vector under `key`, received into `out` if given, otherwise into new memory. `kind`: required kind, None for
        any. Raises Missing, or Corrupt if the kind is another, `out` has another length, or the tensor is no vector of this project.
        """

        def place(bytes_: int) -> memoryview:
            """Return the memory that receives a payload of `bytes_` bytes: `out`, or new memory. Raises Corrupt if `out` has another
            length.
            """
            return allocate_memory(bytes_) if out is None else check_length(out, bytes_, key=key)

        try:
            reply = self.client.command("TENSOR.GET", key, keys=[key], place=place)
        except Missing:
            reply = None
        self.traffic.count("get", bytes_in=reply[-1].nbytes if reply else 0)
        if reply is None:
            raise Missing(key)
        return check_kind(_parse_vector(key, reply), key=key, kind=kind)

    def exists(self, key: str) -> bool:
        """Return whether the key exists."""
        self.traffic.count("exists")
        return bool(self.client.command("EXISTS", key, keys=[key]))

    def delete(self, *keys: str) -> None:
        """Delete the vectors under `keys`; missing keys are fine."""
        self.traffic.count("delete")
        if keys:
            self.client.command("UNLINK", *keys, keys=keys)

    def _store(self, key: str, vector: Vector, *options: str, operation: str) -> Any:
        """Send the vector with AI.TENSORSET and return the reply, which is None if an option forbade storing it. `options`: of the
        command, such as NX (only if the key is new). `operation`: name under which the request is counted.
        """
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


def _parse_vector(key: str, reply: Sequence[Any]) -> Vector:
    """Return the vector in `reply`, TENSOR.GET's list of dtype, shape, kind, samples and bytes. Raises Corrupt, naming `key`, if
    dtype or kind is unknown.
    """
    dtype, _, kind, samples, data = reply
    if decode_text(dtype) not in DTYPES:
        raise Corrupt(f"{key}: holds a tensor of {decode_text(dtype)}; vectors are FLOAT or UINT8")
    if decode_text(kind) not in VectorKind.__members__.values():
        raise Corrupt(f"{key}: holds a tensor of kind {decode_text(kind)!r}; one of {', '.join(VectorKind)}")
    return Vector(VectorKind(decode_text(kind)), data, int(samples or 0), DTYPES[decode_text(dtype)])


def decode_text(word: Any) -> str:
    """Return a word of a Redis reply (str, bytes or None) as a str; "" for None."""
    return word.decode() if isinstance(word, bytes) else str(word or "")


# --- redis compute ----------------------------------------------------------------------------------------------------
# TensorCompute inside the database: SPIRT's averaging and update by the tensor module's own kernels. No vector leaves Redis.

_NO_VECTOR = "-"  # the module's word for a vector that does not exist (yet)


class RedisCompute(RedisTensorStore):
    """RedisTensorStore that also averages and updates vectors inside the database, by the tensor module's commands TENSOR.*. A
    result is stored only if its key is new, and expires like other keys.
    """

    def mean(self, keys: Sequence[str], *, out: str) -> None:
        """Store the mean of the vectors under `keys`, weighted by their samples (0 counts as 1), under the key `out`, unless that
        exists. Raises Missing or Refused.
        """
        self._combine("MEAN", keys, out)

    def combine(self, keys: Sequence[str], *, rule: Aggregation, out: str, agree: Agree = list) -> None:
        """Store the aggregate of the vectors under `keys` by `rule` under the key `out`, unless that exists. Vectors that are not
        finite raise Refused, or are dropped if `rule.non_finite` is "drop". `agree`: takes the indices (in `keys`) of vectors that
        this process would drop, returns those that all workers drop; by default the same. Raises Missing if a vector does not
        exist, Refused if the database has no command for the rule.
        """
        options: list[Argument] = ["FINITE"]
        if rule.non_finite == "drop":
            if self.exists(out):
                return
            kept, rule = select_participants([self.is_finite(key) for key in keys], rule, names=keys, agree=agree)
            keys, options = [keys[index] for index in kept], []
        found = RULES[rule.rule]
        self._combine(_require_command(found.command, rule.rule), keys, out, *found.options(rule), *options)

    def update(self, state: StateKeys, gradient: str, *, out: StateKeys, update: Update) -> None:
        """Take one optimizer step in the database, with the settings `update`: from the vectors under the keys in `state` and the key
        `gradient` to new ones under the keys in `out`, unless these exist. At the first step (`update.is_first`) the optimizer's vectors
        are not read. Raises Missing if a vector does not exist, Corrupt if one has the wrong kind, Refused if the database has no command
        for the optimizer.
        """
        check_optimizer_keys(state, out, update)
        optimizer = OPTIMIZERS[update.optimizer]
        command, kind = _require_command(optimizer.command, update.optimizer), VectorKind(optimizer.kind)
        old = state.optimizer if out.optimizer and not update.is_first else [_NO_VECTOR] * optimizer.places
        self._update(
            command,
            [(state.model, VectorKind.MODEL), (gradient, VectorKind.GRADIENT), *((key, kind) for key in old)],
            [out.model, *(out.optimizer or [_NO_VECTOR])],
            [
                *("LR", update.learning_rate, "WEIGHTDECAY", update.weight_decay, *optimizer.options(update)),
                *("BUFFERS", update.buffers, "STATS", update.statistics_momentum),
            ],
        )

    def is_finite(self, key: str) -> bool:
        """Return whether no element of the vector under `key` is NaN or infinite. Raises Missing if there is no such vector."""
        self.traffic.count("finite")
        return bool(self.client.command("TENSOR.FINITE", key, keys=[key]))

    def _combine(self, rule: str, keys: Sequence[str], out: str, *options: Argument) -> None:
        """Run the module's aggregation command TENSOR.`rule` on the vectors under `keys`, with its `options`; the result is stored
        under the key `out`.
        """
        self._run_command(rule, [len(keys), *keys, *options, "OUT", out], keys)

    def _update(
        self, rule: str, inputs: Sequence[tuple[str, VectorKind]], outputs: Sequence[str], options: Sequence[Argument]
    ) -> None:
        """Check that the vectors of `inputs`, pairs (key, kind), have these kinds, then run the module's optimizer command
        TENSOR.`rule` with its `options`, which stores the results under the keys `outputs`.
        """
        present = [(key, kind) for key, kind in inputs if key != _NO_VECTOR]
        for key, kind in present:  # a gradient must never be taken for a model; the module knows no such roles
            self._check_kind(key, kind)
        keys = [key for key, _ in present]
        self._run_command(rule, [*(key for key, _ in inputs), "OUT", *outputs, *options], keys)

    def _check_kind(self, key: str, kind: VectorKind) -> None:
        """Raise Corrupt if the vector under `key` is of another kind. A missing key is not an error: an earlier attempt may have
        finished the step.
        """
        self.traffic.count("info")
        about = self.client.command("TENSOR.INFO", key, keys=[key])
        if about is not None and decode_text(about[2]) != kind:
            raise Corrupt(f"{key}: holds a {decode_text(about[2]) or 'nameless'} vector where a {kind} was expected")

    def _run_command(self, rule: str, arguments: Sequence[Argument], keys: Sequence[str]) -> None:
        """Run the module's command TENSOR.`rule` with `arguments`, such that outputs are stored only under new keys. `keys`: its input
        keys, for errors. Raises Missing, Refused or Unavailable.
        """
        self.traffic.count(rule.lower())
        self.client.command(f"TENSOR.{rule}", *arguments, "NX", "PX", self.time_to_live_ms, keys=keys)


def _require_command(command: str | None, name: str) -> str:
    """Return `command`. Raises Refused if it is None, that is, if the database has no command for the rule or optimizer `name`."""
    if command is None:
        raise Refused(
            f"{name}: has no command in the tensor database; database.compute: fetch computes it in the function"
        )
    return command


# --- object tensors ---------------------------------------------------------------------------------------------------
# Vectors as objects: LambdaML's S3 channel. The payload follows the header of stores/encoding.py.


class ObjectTensorStore:
    """TensorStore in an object store: each vector is an object of header and payload. Keys do not expire; requests are counted as
    those of the object store are.

    `prefix`: put before every key.
    """

    def __init__(self, objects: ObjectStore, *, prefix: str = "") -> None:
        """Keep vectors in `objects`, under keys that begin with `prefix`."""
        self._objects, self._prefix = objects, prefix

    def put(self, key: str, vector: Vector) -> None:
        """Store `vector` under `key`, replacing an older one."""
        self._objects.put(self._prefix + key, [build_header(vector), vector.data])

    def create(self, key: str, vector: Vector) -> bool:
        """Store `vector` under `key` unless the key exists. Returns whether this call stored it."""
        return self._objects.put_new(self._prefix + key, [build_header(vector), vector.data])

    def create_together(self, vectors: Sequence[tuple[str, Vector]]) -> bool:
        """Store all `vectors`, pairs (key, vector), the first one last, so that a reader who finds it finds all. Existing keys are
        left as they are. Returns whether this call stored the first.
        """
        # Whoever finds the first key finds the others: it comes last. Another attempt writes the same bits.
        for key, vector in vectors[:0:-1]:
            self.create(key, vector)
        return self.create(*vectors[0])

    def get(self, key: str, *, kind: VectorKind | None = None, out: memoryview | None = None) -> Vector:
        """Return the vector under `key`, copied into `out` if given, otherwise read-only. `kind`: required kind, None for any. Raises
        Missing, or Corrupt if kind, length or checksum is wrong.
        """
        try:
            body = self._objects.get(self._prefix + key)
        except Missing:
            raise Missing(key) from None  # by the name that the caller knows
        return finish_read(decode(body, key=key, kind=kind), key=key, kind=kind, out=out)

    def exists(self, key: str) -> bool:
        """Return whether the key exists."""
        return self._objects.exists(self._prefix + key)

    def delete(self, *keys: str) -> None:
        """Delete the vectors under `keys`; missing keys are fine."""
        self._objects.delete(*(self._prefix + key for key in keys))

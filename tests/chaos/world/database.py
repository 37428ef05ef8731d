"""A Redis with the tensor module in the virtual world: connections for our client, vectors in this process, arithmetic by
crossover.algorithms.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from crossover.algorithms.optimizers import OPTIMIZERS, Update
from crossover.algorithms.rules import RULES, Agree, select_participants
from crossover.errors import CrossoverError, Missing
from crossover.experiment import Aggregation
from crossover.stores.encoding import Vector, VectorKind
from crossover.stores.fetch_compute import FetchCompute
from crossover.stores.memory import MemoryTensorStore
from crossover.stores.protocols import StateKeys, Traffic
from crossover.stores.redis_client import Allocate, Argument, ErrorReply, RedisAddress, RedisClient
from crossover.stores.redis_tensors import DTYPES, MODULE_NAMES, RedisTensorStore
from tests.chaos.world.requests import Carry, LostReply, Request, ServerRefusal


class VirtualDatabase(MemoryTensorStore):
    """The vectors of one virtual Redis server. A stored vector expires as its command says, measured by `now_s`; computed results do not
    expire.
    """

    def __init__(self, number: int, now_s: Callable[[], float]) -> None:
        """Start an empty database. `number`: among those of the world; `now_s`: returns the server's time in seconds."""
        super().__init__(Traffic())
        self.number, self._now_s = number, now_s
        self._until_s: dict[str, float] = {}
        self.up = True
        self.life = 1  # connections of an earlier one are dead

    def stop(self) -> None:
        """Stop the server and lose all vectors: connections break, and new ones are refused until `start`."""
        self.up = False
        self.life += 1
        self._vectors.clear()
        self._until_s.clear()

    def start(self) -> None:
        """Accept connections again."""
        self.up = True

    def delete(self, *keys: str) -> None:
        """Delete keys and their expiry."""
        super().delete(*keys)
        for key in keys:
            self._until_s.pop(key, None)

    def held(self) -> list[str]:
        """Return the keys that the server holds, sorted."""
        return sorted(self._vectors)

    def value(self, key: str) -> bytes | None:
        """Return bytes that describe the vector under `key` completely; None if there is none."""
        vector = self._vectors.get(key)
        return None if vector is None else f"{vector.kind} {vector.samples} {vector.dtype} ".encode() + vector.data

    def _expire(self) -> None:
        """Delete all vectors whose time has passed."""
        now_s = self._now_s()
        for key in [key for key, until_s in self._until_s.items() if until_s <= now_s]:
            del self._until_s[key]
            self._vectors.pop(key, None)

    def execute(self, name: str, arguments: Sequence[Any]) -> Any:
        """Execute a command as RedisTensorStore sends it, and return its reply: a vector for TENSOR.GET. A computation is passed as a
        function.
        """
        self._expire()
        match name:
            case "PING":
                return "PONG"
            case "AI.TENSORSET":
                key, dtype, _, _, kind, *options = arguments
                samples = options[1] if options[0] == "SAMPLES" else 0
                vector = Vector(VectorKind(kind), options[-1], samples, DTYPES[dtype])
                if "NX" in options and not self.create(key, vector):
                    return False
                if "NX" not in options:
                    self.put(key, vector)
                self._until_s[key] = self._now_s() + options[options.index("PX") + 1] / 1_000
                return True
            case "TENSOR.GET":
                return self._vectors.get(arguments[0])
            case "EXISTS":
                return self.exists(arguments[0])
            case "UNLINK":
                return self.delete(*arguments)
            case "EVAL":
                return self._appear_together(arguments[2:-1], live_s=arguments[-1] / 1_000)
        return arguments[-1]()

    def _appear_together(self, names: Sequence[str], *, live_s: float) -> bool:
        """Rename temporary keys to their final names together, as the script of redis_tensors.py does. Return whether that was done."""
        half = len(names) // 2
        vectors = [(key, self.get(temporary)) for temporary, key in zip(names[:half], names[half:], strict=True)]
        self.delete(*names[:half])
        if not self.create_together(vectors):
            return False
        self._until_s |= {key: self._now_s() + live_s for key, _ in vectors}
        return True


class Connection:
    """A connection to a virtual database, with the interface of RedisConnection."""

    def __init__(self, database: VirtualDatabase, carry: Carry, address: RedisAddress, *, timeout_s: float) -> None:
        """Connect by a request of its own. Raises an OSError if the server is down or the reply is lost."""
        self._database, self._carry, self._timeout_s = database, carry, timeout_s

        def accepted() -> tuple[None, int]:
            """Accept the connection. Raises LostReply if the server is down."""
            if not database.up:
                raise LostReply
            return None, 0

        try:
            carry(self._request("connect", ()), accepted)
        except LostReply as lost:
            raise (TimeoutError if lost.silent else ConnectionRefusedError)("no connection") from None
        self._life = database.life

    def set_timeout(self, timeout_s: float) -> None:
        """Set how many seconds a command waits for its reply."""
        self._timeout_s = timeout_s

    def close(self) -> None:
        """Do nothing, because nothing is held."""

    def command(self, arguments: Sequence[Argument], place: Allocate | None = None) -> Any:
        """Send one command and return its reply; a vector is copied into the memory that `place` allocates. Raises ErrorReply for an error
        of the server, ConnectionResetError or TimeoutError if the reply is lost.
        """
        name, *rest = cast(Sequence[Any], arguments)
        if self._life != self._database.life:
            raise ConnectionResetError("the server closed the connection")
        try:
            reply = self._carry(self._request(name, rest), lambda: self._served(name, rest))
        except ServerRefusal as refusal:
            raise ErrorReply(f"{refusal.code} refused by the virtual world") from None
        except LostReply as lost:
            raise (TimeoutError if lost.silent else ConnectionResetError)("no answer") from None
        if isinstance(reply, ErrorReply):
            raise reply
        if not isinstance(reply, Vector):
            return reply
        assert place is not None, "vectors are asked for by RedisTensorStore"
        memory = place(reply.data.nbytes)
        memory[:] = reply.data
        return [MODULE_NAMES[reply.dtype], [reply.elements], reply.kind, reply.samples, memory]

    def _request(self, name: str, arguments: Sequence[Any]) -> Request:
        """Return the command as a request of the virtual world, with its keys and payload size."""
        bytes_out, keys = 0, arguments[:-1]  # the computation follows its keys
        match name:
            case "AI.TENSORSET":
                bytes_out, keys = arguments[-1].nbytes, arguments[:1]
            case "TENSOR.GET" | "EXISTS" | "UNLINK":
                keys = arguments
            case "EVAL":
                keys = arguments[2:-1]
        return Request("redis", name, tuple(keys), bytes_out, self._database.number, self._timeout_s)

    def _served(self, name: str, arguments: Sequence[Any]) -> tuple[Any, int]:
        """Run the command on the server, and return (reply, bytes of payload). Raises LostReply if the server has restarted since the
        connection was made.
        """
        if self._life != self._database.life:
            raise LostReply
        try:
            reply = self._database.execute(name, arguments)
        except Missing as missing:
            reply = ErrorReply(f"NOKEY '{missing.key}'")
        except CrossoverError as error:
            reply = ErrorReply(f"ERR {error}")
        return reply, reply.data.nbytes if isinstance(reply, Vector) else 0


class DatabaseClient(RedisClient):
    """The project's Redis client, connected to a virtual database."""

    def __init__(self, database: VirtualDatabase, carry: Carry) -> None:
        """Prepare a client of `database` without connecting. `carry`: carries its requests."""
        super().__init__(RedisAddress(f"database-{database.number}"), connect=partial(Connection, database, carry))


class DatabaseCompute:
    """A TensorCompute that sends the same requests as RedisCompute, one for each computation, to a virtual database."""

    def __init__(self, store: RedisTensorStore, database: VirtualDatabase) -> None:
        """Compute on the vectors of `database`; `store` is the client whose traffic is counted."""
        self._store, self._computing = store, FetchCompute(database)

    def mean(self, keys: Sequence[str], *, out: str) -> None:
        """Store the mean of the vectors of `keys` under `out`."""
        self._do("MEAN", [*keys, out], lambda: self._computing.mean(keys, out=out))

    def combine(self, keys: Sequence[str], *, rule: Aggregation, out: str, agree: Agree = list) -> None:
        """Store the vectors of `keys`, combined by `rule`, under `out`. If the rule drops workers with non-finite values, do nothing if
        `out` exists.
        """
        if rule.non_finite == "drop":
            if self._store.exists(out):
                return
            kept, rule = select_participants([self.is_finite(key) for key in keys], rule, names=keys, agree=agree)
            keys = [keys[index] for index in kept]
        command = RULES[rule.rule].command or ""
        self._do(command, [*keys, out], lambda: self._computing.combine(keys, rule=rule, out=out))

    def update(self, state: StateKeys, gradient: str, *, out: StateKeys, update: Update) -> None:
        """Take one optimizer step and store the new state under the keys of `out`."""
        old = state.optimizer if out.optimizer and not update.is_first else ()
        inputs = [state.model, gradient, *old]
        for key in inputs:
            self._do("INFO", [key], lambda: None)
        command = OPTIMIZERS[update.optimizer].command or ""
        outputs = [out.model, *out.optimizer]
        self._do(command, [*inputs, *outputs], lambda: self._computing.update(state, gradient, out=out, update=update))

    def is_finite(self, key: str) -> bool:
        """Return whether all values of a vector are finite."""
        return bool(self._do("FINITE", [key], lambda: self._computing.is_finite(key)))

    def _do(self, name: str, keys: Sequence[str], work: Callable[[], Any]) -> Any:
        """Run `work` on the server as one command named TENSOR.`name`, counted in the traffic, and return its result."""
        self._store.traffic.count(name.lower())
        return self._store.client.command(f"TENSOR.{name}", *keys, cast(Argument, work), keys=keys)

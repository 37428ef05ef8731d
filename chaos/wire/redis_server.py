"""A Redis without time: keys that expire by a given clock, and the tensor module's commands as the data plane sends them."""

from collections.abc import Callable, Sequence
from typing import Any

from chaos.wire.tensors import COMMANDS, Held
from crossover.dataplane.redis_tensors import APPEAR_TOGETHER
from crossover.dataplane.redis_wire import ErrorReply

_LONGEST_PX = 2**50  # milliseconds


class RedisServer:
    """One server's keys. `clock`: unix seconds. `execute` answers as the server's reply reads: str for a status, bytes, int, None, list; it
    raises ErrorReply. A command that the data plane has no use for is a mistake of whoever sends it, and raises AssertionError.
    """

    def __init__(self, clock: Callable[[], float], *, number: int = 0) -> None:
        self.number = number
        self.up = True
        self.life = 1  # connections of an earlier one are dead
        self.connections = 0
        self._clock = clock
        self._keys: dict[str, tuple[Held, float]] = {}  # and the second at which it expires

    def stop(self, *, memory_lost: bool = True) -> None:
        """The process ends: connections break, new ones are refused until `start`. Without `memory_lost` it has come back by its file."""
        self.up = False
        self.life += 1
        if memory_lost:
            self._keys.clear()

    def start(self) -> None:
        """It listens again."""
        self.up = True

    def held(self) -> list[str]:
        """What it holds, sorted: for whoever looks for what was left behind."""
        return sorted(key for key in list(self._keys) if self.get(key))

    def execute(self, arguments: Sequence[bytes]) -> Any:
        """The reply to one command."""
        name = arguments[0].decode().upper()
        if name in COMMANDS:
            return COMMANDS[name](self, name, arguments)
        plain = _PLAIN.get(name)
        assert plain is not None, f"the virtual Redis has no command {name}; chaos/wire gives it one"
        return plain(self, [argument.decode() for argument in arguments[1:]])

    # --- keys ---------------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Held | None:
        """What lies under `key`, if it has not expired."""
        found = self._keys.get(key)
        if found is None:
            return None
        if found[1] <= self._clock():
            del self._keys[key]
            return None
        return found[0]

    def set(self, key: str, held: Held, milliseconds: int | None) -> None:
        """Replaces value and time to live."""
        if milliseconds is not None and not 1 <= milliseconds <= _LONGEST_PX:
            raise ErrorReply(f"ERR PX: {milliseconds}; expected an integer from 1 to {_LONGEST_PX}")
        self._keys[key] = held, self._clock() + milliseconds / 1000 if milliseconds else float("inf")

    def remove(self, key: str) -> bool:
        """Whether it was there."""
        there = self.get(key) is not None
        self._keys.pop(key, None)
        return there

    def rename(self, old: str, new: str) -> None:
        """With its time to live."""
        if self.get(old) is None:
            raise ErrorReply("ERR no such key")
        self._keys[new] = self._keys.pop(old)

    def expire(self, key: str, milliseconds: int) -> int:
        """1 if there is such a key."""
        held = self.get(key)
        if held is not None:
            self.set(key, held, milliseconds)
        return int(held is not None)

    def remaining_ms(self, key: str) -> int:
        """-2 without such a key, -1 for one that stays."""
        if self.get(key) is None:
            return -2
        at_s = self._keys[key][1]
        return -1 if at_s == float("inf") else round((at_s - self._clock()) * 1000)


def _appear_together(server: RedisServer, arguments: Sequence[str]) -> int:
    """redis_tensors.py's script, said in Python."""
    script, count, *rest = arguments
    assert script == APPEAR_TOGETHER, "the virtual Redis runs one script only: redis_tensors.APPEAR_TOGETHER"
    keys, half = rest[: int(count)], int(count) // 2
    if server.get(keys[half]) is not None:
        for key in keys[:half]:
            server.remove(key)
        return 0
    for temporary, key in zip(keys[:half], keys[half:], strict=True):
        server.rename(temporary, key)
        server.expire(key, int(rest[int(count)]))
    return 1


_Plain = Callable[[RedisServer, Sequence[str]], Any]
_PLAIN: dict[str, _Plain] = {
    "PING": lambda server, arguments: "PONG",
    "EXISTS": lambda server, keys: sum(server.get(key) is not None for key in keys),
    "UNLINK": lambda server, keys: sum(server.remove(key) for key in keys),
    "PEXPIRE": lambda server, arguments: server.expire(arguments[0], int(arguments[1])),
    "PTTL": lambda server, arguments: server.remaining_ms(arguments[0]),
    "EVAL": _appear_together,
}

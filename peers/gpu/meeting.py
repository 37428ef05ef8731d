"""Where the members of a collective come together, each time their group has broken: at the store of whoever holds rank 0.

The library's constructors wait for a member as long as they are told, gloo's five times as long, whether it lives or not. So nobody builds
a group before all members are there, and whoever waits for them looks after them. A meeting has a token of its own, and a member comes to
it once: rank 0, busy with a round, may not have noticed that the group broke, and the place of a meeting that is over still answers.
"""

import json
import socket
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from crossover import runtime
from crossover.context import Context
from crossover.dataplane import plain
from crossover.errors import Missing, WaitTimeout
from crossover.training import attempts
from crossover.training.fleet import Membership
from crossover.training.peer.exchange import Concluded

ADDRESS = "CROSSOVER_ADDRESS"
_c10d: Any = dist  # stores by themselves are there, and not declared as exported
PLACE = {"host": str, "port": int, "token": str}
_LOOK_S = 0.1
_CONNECT_S = 5.0  # to somebody who is there
_MARGIN_S = 120.0  # beyond the time that shows who is gone: all say that they live, and yet they do not meet
_ALL, _AGAIN = "all", "again"  # rank 0's word that all are there; anybody's that this meeting is none any more


class Meeting:
    """What rank 0 holds and the others visit. `WaitTimeout`, `RunFailed`: there is no point in waiting for one of them."""

    def __init__(self, ctx: Context, member: Membership) -> None:
        self._ctx, self._member = ctx, member
        self._limit_s = member.settings.absence_s + _MARGIN_S
        self._end_s, self._ask_s = runtime.monotonic() + self._limit_s, 0.0

    def join(self) -> Any:
        """A store that all members of the next group have come to, and nobody else. Raises Concluded besides."""
        if self._member.rank == 0:
            return self._host()
        while True:
            if (store := self._visit()) is not None:
                return store
            self._look_after([0])
            runtime.sleep(_LOOK_S)

    def _host(self) -> Any:
        host = own_address()
        listening = socket.create_server((host, 0))  # the library's own would listen on every network
        server = _c10d.TCPStore(
            host,
            listening.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=_CONNECT_S),
            master_listen_fd=listening.detach(),
        )
        while True:
            place = {"host": host, "port": server.port, "token": runtime.identifier()}
            store = _c10d.PrefixStore(place["token"], server)
            if self._await_all(store, json.dumps(place).encode()):
                return store

    def _await_all(self, store: Any, place: bytes) -> bool:
        """False once a member that had come here is back: another program holds its rank, and nobody the old connection."""
        self._ask_s = 0.0  # nobody knows of this place yet
        while not store.check([_AGAIN]):
            missing = [rank for rank in range(1, self._member.members) if not store.check([_came(rank)])]
            if self._look_after(missing):
                self._show(place)
            if not missing:
                self._member.confirm()
                store.set(_ALL, "")
                return True
            runtime.sleep(_LOOK_S)
        return False

    def _show(self, place: bytes) -> None:
        """Again, where a former holder of this rank wrote over it between being asked and putting its own."""
        with suppress(Missing):
            if self._ctx.objects.get(self._ctx.keys.rendezvous) == place:
                return
        self._ctx.objects.put(self._ctx.keys.rendezvous, place)
        attempts.settle(self._ctx, lambda: self._ctx.objects.delete(self._ctx.keys.rendezvous))

    def _visit(self) -> Any:
        """None: there is no meeting, or rank 0 holds another one by now, or is gone.

        The library tries a refused connection again for all of its time limit. So one looks first, and gives it little time: between
        looking and connecting a former rank 0 can still go.
        """
        with suppress(Missing, OSError, RuntimeError):  # RuntimeError: the library's, for a store that does not answer
            said = self._ctx.objects.get(self._ctx.keys.rendezvous)
            place = plain.read(said, PLACE, key=self._ctx.keys.rendezvous)
            address, limit = (place["host"], place["port"]), timedelta(seconds=_CONNECT_S)
            with socket.create_connection(address, timeout=_CONNECT_S):
                pass
            store = _c10d.PrefixStore(place["token"], _c10d.TCPStore(*address, is_master=False, timeout=limit))
            self._member.confirm()
            if store.add(_came(self._member.rank), 1) > 1:
                store.set(_AGAIN, "")
                return None
            while not store.check([_AGAIN]):
                if store.check([_ALL]):
                    return store
                if self._look_after([0]) and self._ctx.objects.get(self._ctx.keys.rendezvous) != said:
                    return None
                runtime.sleep(_LOOK_S)
        return None

    def _look_after(self, missing: Iterable[int]) -> bool:
        """Whether it was time to: is there a point in waiting for `missing`, and anything left to meet for?"""
        now_s, settings = runtime.monotonic(), self._member.settings
        if now_s < self._ask_s:
            return False
        if self._ctx.objects.exists(self._ctx.keys.outcome):
            raise Concluded(f"peer {self._member.rank}: the others need no further round")
        self._member.question(missing, what="waited to meet all, for word")
        if now_s > self._end_s:
            whom = ", ".join(map(str, missing)) or "the others"
            raise WaitTimeout(f"peer {self._member.rank}: has not met peer {whom} within {self._limit_s:.0f} s")
        self._ask_s = now_s + 5 * settings.look_s
        return True


def _came(rank: int) -> str:
    return f"came/{rank}"


def own_address() -> str:
    """The address by which the other members reach this one: what the environment says, as where all are on one machine, or else that on
    the network. Connecting a datagram socket sends nothing.
    """
    if told := runtime.environment().get(ADDRESS):
        return told
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("169.254.169.254", 80))  # what every instance has a route to
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"

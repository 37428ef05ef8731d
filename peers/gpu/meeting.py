"""The meeting of a collective's members after their group has broken: at a store that the holder of rank 0 opens.

The library's constructors wait for a member as long as they are told, gloo's five times as long, whether it is alive or not. So nobody
builds a group before all members are there, and whoever waits for the others checks that they are alive. A meeting has a token of its own,
and a member comes to it once: rank 0, busy with a round, may not have noticed that the group broke, and the address of a finished meeting
still answers.
"""

import json
import socket
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from crossover import runtime
from crossover.errors import Missing, WaitTimeout
from crossover.stores import encoding
from crossover.training import progress
from crossover.training.fleet import Membership
from crossover.training.peer import RunEnded
from crossover.workflow.context import Context

ADDRESS = "CROSSOVER_ADDRESS"
_c10d: Any = dist  # stores by themselves are there, and not declared as exported
PLACE = {"host": str, "port": int, "token": str}
_LOOK_S = 0.1
_CONNECT_S = 5.0  # to a program that is running
_MARGIN_S = 120.0  # after the time that shows who is gone: all are alive, and yet they do not meet
_ALL, _AGAIN = "all", "again"  # set by rank 0: all have come; set by anybody: this meeting is over


class Meeting:
    """One meeting of all members of a run, at which they begin a process group: the member of rank 0 opens a TCP store of
    torch.distributed and publishes its address in the object store, and the others connect to it. Each member makes one per meeting and
    calls `join`.
    """

    def __init__(self, ctx: Context, member: Membership) -> None:
        """Start the time limit of the meeting now; nothing is opened yet."""
        self._ctx, self._member = ctx, member
        self._limit_s = member.settings.absence_s + _MARGIN_S
        self._end_s, self._ask_s = runtime.monotonic() + self._limit_s, 0.0

    def join(self) -> Any:
        """Wait until all members have come, and return the connected store (torch's PrefixStore) for their next process group. In the
        program of rank 0 this opens the store and publishes its address; in the others it connects to it, and tries again until it can.

        Raises RunEnded if the run has an outcome, so that no round is left; RunFailed if a missing member has failed; WaitTimeout if one is
        gone, or `absence_s` seconds and two minutes after this object was made; StaleAttempt if this rank was taken over or the run is
        over.
        """
        if self._member.rank == 0:
            return self._host()
        while True:
            if (store := self._visit()) is not None:
                return store
            self._check_waiting([0])
            runtime.sleep(_LOOK_S)

    def _host(self) -> Any:
        """Open a store in this program, wait for all members, and return it. If a member comes twice, the meeting starts again under a new
        token.
        """
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
        """Publish the address `place` and wait until all members have come to `store`; return True.

        Returns False if a member comes a second time: another program then holds its rank, and the first connection belongs to a dead one.
        Raises what `_check_waiting` raises.
        """
        self._ask_s = 0.0  # the address is not published yet
        while not store.check([_AGAIN]):
            missing = [rank for rank in range(1, self._member.members) if not store.check([_arrival_key(rank)])]
            if self._check_waiting(missing):
                self._publish_address(place)
            if not missing:
                self._member.confirm()
                store.set(_ALL, "")
                return True
            runtime.sleep(_LOOK_S)
        return False

    def _publish_address(self, place: bytes) -> None:
        """Publish the address `place` in the object store unless it is published already. Raises StaleAttempt if the run is over.

        Called again and again, because a program that held rank 0 before may still overwrite the address.
        """
        with suppress(Missing):
            if self._ctx.objects.get(self._ctx.keys.rendezvous) == place:
                return
        self._ctx.objects.put(self._ctx.keys.rendezvous, place)
        progress.roll_back_if_over(self._ctx, lambda: self._ctx.objects.delete(self._ctx.keys.rendezvous))

    def _visit(self) -> Any:
        """Come to the meeting that rank 0 has published, wait until all members are there, and return its store. Return None if there is no
        meeting, if it cannot be reached, or if it is over.

        The library would retry a refused connection for its whole time limit, so this first tests the connection, and gives the library
        little time. Raises what `_check_waiting` raises.
        """
        with suppress(Missing, OSError, RuntimeError):  # RuntimeError: the library's, for a store that does not answer
            said = self._ctx.objects.get(self._ctx.keys.rendezvous)
            place = encoding.read_plain(said, PLACE, key=self._ctx.keys.rendezvous)
            address, limit = (place["host"], place["port"]), timedelta(seconds=_CONNECT_S)
            with socket.create_connection(address, timeout=_CONNECT_S):
                pass
            store = _c10d.PrefixStore(place["token"], _c10d.TCPStore(*address, is_master=False, timeout=limit))
            self._member.confirm()
            if store.add(_arrival_key(self._member.rank), 1) > 1:
                store.set(_AGAIN, "")
                return None
            while not store.check([_AGAIN]):
                if store.check([_ALL]):
                    return store
                if self._check_waiting([0]) and self._ctx.objects.get(self._ctx.keys.rendezvous) != said:
                    return None
                runtime.sleep(_LOOK_S)
        return None

    def _check_waiting(self, missing: Iterable[int]) -> bool:
        """Check that it still makes sense to wait for the ranks `missing`; return True. Return False without checking if the last check was
        a short time ago.

        Raises RunEnded if the run has an outcome, RunFailed if a missing member has failed, WaitTimeout if one is gone or after the
        meeting's time limit, StaleAttempt if this rank was taken over.
        """
        now_s, settings = runtime.monotonic(), self._member.settings
        if now_s < self._ask_s:
            return False
        if self._ctx.objects.exists(self._ctx.keys.outcome):
            raise RunEnded(f"peer {self._member.rank}: the others need no further round")
        self._member.raise_if_pointless(missing, what="waited to meet all, for word")
        if now_s > self._end_s:
            whom = ", ".join(map(str, missing)) or "the others"
            raise WaitTimeout(f"peer {self._member.rank}: has not met peer {whom} within {self._limit_s:.0f} s")
        self._ask_s = now_s + 5 * settings.look_s
        return True


def _arrival_key(rank: int) -> str:
    """Return the key, in the meeting's store, of the counter of how often `rank` has come."""
    return f"came/{rank}"


def own_address() -> str:
    """Return the IP address at which other members reach this program: CROSSOVER_ADDRESS of the environment, or else this machine's address
    on its network.

    The environment sets it if all members are on one machine. No packet is sent to find the address. Returns 127.0.0.1 if the machine has
    no network.
    """
    if told := runtime.environment().get(ADDRESS):
        return told
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("169.254.169.254", 80))  # what every instance has a route to
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"

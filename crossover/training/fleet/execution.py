"""The runner's side: tell a fleet's programs which run to join, and see from the object store how they fare."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from crossover import runtime
from crossover.dataplane import plain
from crossover.dataplane.protocols import ObjectStore
from crossover.errors import CrossoverError, RunFailed, ended_with
from crossover.keys import Keys, current_run
from crossover.training.fleet.lease import FAILURE, NOBODY, Hearts

ECHOES = ("RunFailed", "WaitTimeout", "StaleAttempt")  # what a failure elsewhere looks like to the others


def announce(objects: ObjectStore, *, fleet: str, run: str, members: int) -> None:
    """Point the fleet to the run. Of a resumed run every rank is taken from the program that held it, which may live on for a while: what
    it says from now on is not this attempt's. Then the failures go that were told before.
    """
    keys = Keys(run)
    for rank, attempt in Hearts(objects, keys).newest().items():
        objects.put_new(keys.lease(rank, attempt + 1), NOBODY)
    objects.delete_prefix(keys.failures)
    objects.put(current_run(fleet), json.dumps({"run": run, "members": members}).encode())


@dataclass
class ProgramsExecution:
    """A run of programs under way. `tolerant`: the others go on without one that fails. `release` ends the programs; `why` says what keeps
    them from starting, `alive` whether any can still come.
    """

    objects: ObjectStore
    keys: Keys
    members: int
    tolerant: bool
    release: Callable[[], None]
    alive: Callable[[], bool] = lambda: True
    why: Callable[[], str] = lambda: ""
    boot_s: float = 900.0  # until the first of them must have joined
    _started_s: float = field(default_factory=runtime.monotonic)
    _joined: bool = False

    def ended(self) -> bool:
        alive = self.alive()  # first: whoever ends afterwards has left its word before
        if self.objects.exists(self.keys.finished):
            return True
        failures = [
            plain.read(self.objects.get(key), FAILURE, key=key) for key in self.objects.list(self.keys.failures)
        ]
        if failures and (not self.tolerant or len(failures) >= self.members or not alive):
            raise _failure(failures, [key.rpartition("/")[2] for key in self.objects.list(self.keys.failures)])
        if not alive:
            raise RunFailed("all programs of the run have ended, and none has finished it or said why")
        self._joined = self._joined or bool(self.objects.list(self.keys.leases))
        if not self._joined and runtime.monotonic() - self._started_s > self.boot_s:
            raise RunFailed(f"no program has joined the run in {self.boot_s:.0f} s. {self.why()}".strip())
        return False

    def stop(self) -> None:
        self.release()


def _failure(failures: list[dict[str, Any]], ranks: list[str]) -> CrossoverError:
    """The failure that the others only echo, where there is one."""
    told = sorted(zip(failures, ranks, strict=False), key=lambda pair: pair[0]["error"] in ECHOES)
    failure, rank = told[0]
    return ended_with(failure["error"], f"peer {rank} gave up: {failure['error']}: {failure['cause']}")

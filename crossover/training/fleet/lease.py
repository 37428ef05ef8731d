"""A rank of a run: claimed once, kept by a heartbeat, taken over when that stops."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from crossover import runtime
from crossover.dataplane import plain
from crossover.dataplane.protocols import ObjectStore
from crossover.errors import CrossoverError, RunFailed, StaleAttempt, WaitTimeout
from crossover.keys import Keys

POINTER, BEAT, FAILURE = {"run": str, "members": int}, {"attempt": int, "over": bool}, {"error": str, "cause": str}
NOBODY = b""  # what the lease of a rank says that was taken from its program, and is free


@dataclass(frozen=True, kw_only=True)
class ServingSettings:
    """How long a program waits for what. `fleet`: whose pointer it follows to its run."""

    fleet: str
    lease_s: float = 20.0  # without a heartbeat for so long a rank may be taken over
    absence_s: float = (
        600.0  # without a heartbeat for so long nobody waits for a peer: a new instance has booted by then
    )
    idle_s: float = 900.0  # without a rank for so long a program leaves
    look_s: float = 1.0  # between two looks at what others do
    # Its name, the same when its service starts it again: then it need not wait until its own lease is over.
    program: str = ""
    progress: Path | None = None  # where it says that it has saved a checkpoint since it was started

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "ServingSettings":
        """From the variables CROSSOVER_FLEET, CROSSOVER_LEASE_S, CROSSOVER_ABSENCE_S, CROSSOVER_IDLE_S; CROSSOVER_INSTANCE with the number
        of the process on it, and CROSSOVER_PROGRESS.
        """
        given = {
            name: float(environment[f"CROSSOVER_{name.upper()}"])
            for name in ("lease_s", "absence_s", "idle_s", "look_s")
            if f"CROSSOVER_{name.upper()}" in environment
        }
        instance, progress = environment.get("CROSSOVER_INSTANCE", ""), environment.get("CROSSOVER_PROGRESS")
        return cls(
            fleet=environment.get("CROSSOVER_FLEET", ""),
            program=f"{instance}.{environment.get('CROSSOVER_PROCESS', '0')}" if instance else "",
            progress=Path(progress) if progress else None,
            **given,
        )


@dataclass
class Hearts:
    """Since when each rank's newest lease and heartbeat look as they do, by this program's own clock.

    `me`: what this program's leases say.
    """

    objects: ObjectStore
    keys: Keys
    me: bytes = field(default_factory=lambda: runtime.entropy(16))
    seen: dict[int, tuple[Any, float]] = field(default_factory=dict)

    def newest(self) -> dict[int, int]:
        """The newest attempt by rank. Lists: for joining, never in a round."""
        found: dict[int, int] = {}
        for key in self.objects.list(self.keys.leases):
            rank, attempt = map(int, key.removeprefix(self.keys.leases).split("/"))
            found[rank] = max(attempt, found.get(rank, 0))
        return found

    def silent_s(self, rank: int, attempt: int | None = None) -> float:
        """For how long nothing new has been heard of `rank`, as far as this program has looked; a new `attempt` is news."""
        now_s, look = runtime.monotonic(), (attempt, self._beat(rank))
        if rank not in self.seen or self.seen[rank][0] != look:
            self.seen[rank] = (look, now_s)
        return now_s - self.seen[rank][1]

    def given_back(self, rank: int, attempt: int) -> bool:
        """Whether the attempt's program has said that it gives the rank back."""
        beat, key = self._beat(rank), self.keys.heartbeat(rank)
        return bool(beat) and (said := plain.read(beat, BEAT, key=key))["over"] and said["attempt"] == attempt

    def free(self, rank: int, attempt: int) -> bool:
        """Whether nobody holds that lease, or this program created it, though the answer may have been lost."""
        return self.objects.get(self.keys.lease(rank, attempt)) in (NOBODY, self.me)

    def joined(self, rank: int) -> bool:
        return self.objects.exists(self.keys.lease(rank, 0))

    def _beat(self, rank: int) -> bytes:
        key = self.keys.heartbeat(rank)
        return self.objects.get(key) if self.objects.exists(key) else b""


class Membership:
    """A rank held by this program; a context manager with the heart in a thread of its own."""

    def __init__(
        self, objects: ObjectStore, *, run: str, members: int, rank: int, attempt: int, settings: ServingSettings
    ) -> None:
        self.run, self.members, self.rank, self.attempt, self.settings = run, members, rank, attempt, settings
        self._objects, self._keys = objects, Keys(run)
        self._hearts = Hearts(objects, self._keys)
        self._over = runtime.event()
        self._thread = runtime.thread(self._beat, name=f"heart-{rank}.{attempt}")
        self.progressed = False  # whether this attempt has saved a checkpoint

    @classmethod
    def claim(cls, hearts: Hearts, *, run: str, members: int, settings: ServingSettings) -> "Membership | None":
        """A rank that is free, or whose program has been silent for too long; None while there is none.

        Nobody holds a rank whose newest lease is this program's own: it would not ask for another.
        """
        objects, keys, newest = hearts.objects, hearts.keys, hearts.newest()
        left = [rank for rank in newest if objects.exists(keys.left(rank))]
        # One that has left comes last: all that it can do is to send again what the others still wait for, and to clear away.
        for rank in sorted(range(members), key=left.__contains__):
            held = newest.get(rank)
            if held is not None:
                silent = hearts.silent_s(rank, held) >= settings.lease_s  # looked at each time: it needs two looks
                if objects.exists(keys.failure(rank)) or not (
                    silent or hearts.given_back(rank, held) or hearts.free(rank, held)
                ):
                    continue
            attempt = 0 if held is None else held + 1
            if objects.create(keys.lease(rank, attempt), hearts.me) == hearts.me:
                return cls(objects, run=run, members=members, rank=rank, attempt=attempt, settings=settings)
        return None

    def __enter__(self) -> "Membership":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if error is not None and not isinstance(error, Exception):
            return  # it is being killed: whoever comes next waits until the heart has stopped
        try:
            self._put(beat=0, over=True)
        except CrossoverError:
            return  # the heart has stopped all the same

    def progress(self) -> None:
        """A checkpoint was saved: what goes wrong from now on is tried again as often as if nothing ever had."""
        if not self.progressed and self.settings.progress:
            self.settings.progress.touch()
        self.progressed = True

    def overtaken(self) -> bool:
        return self._objects.exists(self._keys.lease(self.rank, self.attempt + 1))

    def confirm(self) -> None:
        """Before anything is published: raises StaleAttempt where another program has taken this rank over."""
        if self.overtaken():
            raise StaleAttempt(f"peer {self.rank}: attempt {self.attempt} was overtaken by attempt {self.attempt + 1}")

    def question(self, missing: Iterable[int], *, what: str) -> None:
        """Is there a point in waiting for `missing`? Raises RunFailed where one of them failed, WaitTimeout where one is gone."""
        self.confirm()
        for rank in missing:
            if self._objects.exists(self._keys.failure(rank)):
                cause = plain.read(self._objects.get(key := self._keys.failure(rank)), FAILURE, key=key)["cause"]
                raise RunFailed(f"peer {self.rank}: {what} of peer {rank}, which gave up: {cause}")
            limit_s = self.settings.absence_s
            if self._hearts.silent_s(rank) > limit_s:
                gone = "has not been heard of" if self._hearts.joined(rank) else "never joined the run; waited"
                if self._objects.exists(self._keys.left(rank)):  # all that it said was there before it left
                    gone = "has done its part, but what it said is gone; waited"
                raise WaitTimeout(f"peer {self.rank}: {what} of peer {rank}, which {gone} for {limit_s:.0f} s")

    def absent(self, rank: int) -> bool:
        """Whether `rank` can be counted on no longer: failed, or silent for too long."""
        if self._objects.exists(self._keys.failure(rank)):
            return True
        return self._hearts.silent_s(rank) > self.settings.absence_s

    def _beat(self) -> None:
        # The claim itself counts as the first beat.
        beat = 0
        while not self._over.wait(self.settings.lease_s / 4):
            beat += 1
            try:
                self._put(beat=beat, over=False)
            except CrossoverError:
                continue  # a store that does not answer now may do so in time

    def _put(self, *, beat: int, over: bool) -> None:
        said = {"attempt": self.attempt, "beat": beat, "over": over}
        self._objects.put(self._keys.heartbeat(self.rank), json.dumps(said).encode())

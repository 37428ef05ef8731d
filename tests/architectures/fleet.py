"""Programs as threads of this process, as an Auto Scaling group would run them: one that is killed is replaced."""

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from crossover.runtime import PROGRAM
from crossover.stores.keys import Keys
from crossover.training.fleet import Heartbeats, Membership, ServingSettings, announce
from crossover.workflow import execute
from crossover.workflow.architecture import architecture_of
from crossover.workflow.context import Context, Resources
from tests.architectures.harness import FailAt, Hook, Job, Killed, WatchedClients, silent

PATIENCE_S = 120.0


@dataclass
class Fleet:
    """The programs of one run, each in a thread of its own; a killed program is replaced. `hooks(number)`: returns the hook that is called
    at every call of program `number` (members first, then replacements). `members`: number of programs, 0 for one per worker; `errors`: the
    errors that ended programs; `threads`: the membership that each program's thread holds.
    """

    job: Job
    hooks: Callable[[int], Hook] = lambda number: silent
    lease_s: float = 20.0  # nobody is silent for so long here: what is killed gives its rank back (see `at_once`)
    at_once: bool = True
    replaces: bool = True  # what is killed; False: its instance never comes back
    absence_s: float = 60.0
    members: int = 0
    errors: list[BaseException] = field(default_factory=list)
    threads: dict[threading.Thread, Membership | None] = field(default_factory=dict)
    leases: dict[threading.Thread, bytes] = field(default_factory=dict)  # what each program's say
    started: int = 0

    def run(self, monkeypatch: pytest.MonkeyPatch) -> bytes:
        """Run the fleet until the run is finished and every program has ended, and return the bytes of the trained model."""
        self.begin(monkeypatch)
        self.attempt()
        self.await_end()
        self.join()
        return self.job.model()

    def join(self) -> None:
        """Wait until every program of the fleet has ended, at most 30 s for each."""
        for thread in list(self.threads):
            thread.join(timeout=30)

    def attempt(self) -> None:
        """Announce the run to the fleet, and start its programs."""
        announce(
            self.job.clients.object_store, fleet="test", run=self.job.prepared.run, members=self.job.experiment.workers
        )
        for _ in range(self.members):
            self._start()

    def await_end(self) -> None:
        """Wait until the run has its finished marker. Raises AssertionError after PATIENCE_S, or the last program's error if all programs
        have ended without it.
        """
        store, end_s = self.job.clients.object_store, time.monotonic() + PATIENCE_S
        while not store.exists(self.job.prepared.keys.finished_marker):
            assert time.monotonic() < end_s, f"the run did not end; errors so far: {self.errors}"
            if not any(thread.is_alive() for thread in list(self.threads)):  # replacements come in meanwhile
                if store.exists(self.job.prepared.keys.finished_marker):
                    break  # since the last look
                raise self.errors[-1]
            time.sleep(0.005)

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Patch the membership of programs, so that this fleet knows which thread holds which lease, and let state machines run as trees in
        this process. Call once, before `attempt`.
        """
        experiment, fleet = self.job.experiment, self
        self.members = self.members or experiment.workers
        claim, enter = Membership.claim, Membership.__enter__

        def remember(membership: Membership) -> Membership:
            """Record the membership of the current thread, then enter it."""
            fleet.threads[threading.current_thread()] = membership
            return enter(membership)

        def remember_claim(hearts: Heartbeats, **named: Any) -> Membership | None:
            """Record whose lease the current thread claims, then claim it."""
            fleet.leases[threading.current_thread()] = hearts.me
            return claim(hearts, **named)

        monkeypatch.setattr(Membership, "__enter__", remember)
        monkeypatch.setattr(Membership, "claim", remember_claim)
        monkeypatch.setattr("crossover.training.fleet.PROGRAM", replace(PROGRAM, first_s=0.0))
        machines = architecture_of(experiment).machines
        functions = Resources(self.job.clients)
        self.job.clients.run_machine = lambda name, event: execute(
            machines[name], Context(functions, run=event["run"]), event
        )

    def _start(self) -> None:
        """Start one more program in a thread of its own."""
        clients = WatchedClients(self.job.clients)
        clients.hook = self.hooks(self.started)
        clients.run_machine = self.job.clients.run_machine
        thread = threading.Thread(target=self._program, args=(clients,), name=f"program-{self.started}", daemon=True)
        self.started += 1
        self.threads[thread] = None
        thread.start()

    def _program(self, clients: WatchedClients) -> None:
        """Serve the run as one program, and collect its error in `errors`; if the program is killed, expire its lease and start a
        replacement, unless `replaces` is False.
        """
        program = architecture_of(self.job.experiment).program
        assert program is not None
        settings = ServingSettings(
            fleet="test", lease_s=self.lease_s, absence_s=self.absence_s, idle_s=PATIENCE_S, look_s=0.02
        )
        try:
            program.main(Resources(clients), settings)
        except Killed as killed:
            # A process that dies takes its connections along; here the frames would keep them open.
            self.errors.append(killed.with_traceback(None))
            gc.collect()
            if not self.replaces:
                return
            self._expire()
            self._start()
        except Exception as error:
            self.errors.append(error)

    def _expire(self) -> None:
        """Let the lease of this thread's program expire immediately, also if the program died while it claimed the lease. Does nothing
        unless `at_once`.
        """
        me = self.leases.get(threading.current_thread())
        if me is None or not self.at_once:
            return
        store, run = self.job.clients.object_store, self.job.prepared.run
        hearts = Heartbeats(store, Keys(run), me)
        for rank, attempt in hearts.newest().items():
            if hearts.is_free(rank, attempt):
                held = Membership(
                    store,
                    run=run,
                    members=self.members,
                    rank=rank,
                    attempt=attempt,
                    settings=ServingSettings(fleet="test"),
                )
                held._store_heartbeat(beat=0, over=True)

    def left_behind(self) -> list[str]:
        """Return the keys of objects that the run should have deleted."""
        keys, store = self.job.prepared.keys, self.job.clients.object_store
        return [key for prefix in (keys.bodies, keys.peer_work, keys.checkpoints) for key in store.list(prefix)]


def member(job: Job, rank: int = 0, *, attempt: int = 0, look_s: float | None = None) -> Membership:
    """Return a membership that holds a rank of the job's run. `look_s`: seconds between two polls of the lease, by default the settings'
    own.
    """
    settings = ServingSettings(fleet="test", **({} if look_s is None else {"look_s": look_s}))
    members, store = job.experiment.workers, job.clients.object_store
    return Membership(store, run=job.prepared.run, members=members, rank=rank, attempt=attempt, settings=settings)


def only(program: int, hook: Hook) -> Callable[[int], Hook]:
    """Return the `hooks` of a fleet in which one program has the given hook and the others have none."""
    return lambda number: hook if number == program else silent


class Counted(list[FailAt]):
    """Hooks for a fleet that record the operations of each program."""

    def __call__(self, number: int) -> Hook:
        """Return a new recording hook for program `number`."""
        self.append(FailAt())
        return self[-1]

    def longest(self) -> list[str]:
        """Return the operations of the program that made the most calls."""
        return max((counter.operations for counter in self), key=len)

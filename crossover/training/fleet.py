"""Programs on EC2: how a program joins a run, holds its rank, is replaced, and leaves.

Instances do not know their rank: each claims one by creating `runs/<id>/lease/<rank>/<n>` and renews a heartbeat. If the heartbeat stops,
another program takes the lease over as n + 1, and the older attempt, if it still runs, stops before it publishes anything more. The object
store decides all of this; clocks of different machines are never compared.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from crossover import runtime
from crossover.errors import CrossoverError, RunFailed, StaleAttempt, Unavailable, WaitTimeout, rebuild_error
from crossover.runtime import PROGRAM, Pauses
from crossover.stores import encoding
from crossover.stores.keys import Keys, current_run
from crossover.stores.protocols import ObjectStore, Traffic
from crossover.training.interruption import NOTICE_S, has_notice
from crossover.workflow.context import Context, Meter, Resources, gather_stages

# --- records ----------------------------------------------------------------------------------------------------------


@contextmanager
def record_step(ctx: Context, step: str, event: Mapping[str, Any], *, instance_type: str) -> Iterator[None]:
    """Return a context manager that measures its block and at the end writes one record (JSON, in the bucket) of its time, stages, traffic
    and outcome, under the name `step` and the position (round, minibatch ...) in `event`. An error in the block is recorded and raised.

    Stages, notes and traffic that `ctx` has collected before are discarded. `instance_type`: noted, so that the record is priced by the
    instance's hour.
    """
    ctx.stages.clear()
    ctx.notes.clear()
    ctx.slot_wait_s, ctx.request_id = 0.0, runtime.identifier()
    for counter in ctx.traffic.values():
        counter.reset()
    ctx.note(instance_type=instance_type)
    with Meter(step, ctx, dict(event)):
        try:
            yield
        finally:
            gather_stages(ctx)


@contextmanager
def stage(ctx: Context, name: str) -> Iterator[None]:
    """Return a context manager that adds its block as the stage `name` to those of `ctx`: wall time in seconds, the processor time in
    seconds (`cpu_s`) and the peak memory in MB (`max_rss_mb`) of the whole process.

    If several peers share one process, the processor time is that of this thread, and the peak memory that since the process started.
    """
    cpu_s = runtime.process_s()
    alone = cpu_s is not None
    _reset_peak(alone)
    try:
        with ctx.stage(name):
            yield
    finally:
        figures = ctx.stages[-1]
        figures["max_rss_mb"] = _peak_mb(alone)
        if cpu_s is not None and (until_s := runtime.process_s()) is not None:
            figures["cpu_s"] = round(until_s - cpu_s, 6)


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _reset_peak(alone: bool) -> None:
    """Reset Linux's figure of the process's peak memory, so that it covers only what follows. `alone`: whether this process runs a single
    peer; otherwise nothing is reset, nor if the kernel does not permit it.
    """
    if alone:
        try:
            _CLEAR.write_text("5", encoding="utf-8")
        except OSError:
            return  # the peak since the process began will do


def _peak_mb(alone: bool) -> float:
    """Return the process's peak memory in MB: if `alone`, since the last `_reset_peak`, otherwise (also if the system does not report the
    former) since the process started.
    """
    if alone:
        try:
            line = next(each for each in _STATUS.read_text(encoding="utf-8").splitlines() if each.startswith("VmHWM"))
            return round(int(line.split()[1]) / 1024, 1)
        except (OSError, StopIteration):
            pass
    return round(runtime.peak_memory_mb(), 1)


# --- lease ------------------------------------------------------------------------------------------------------------
# A rank of a run: claimed once, kept by a heartbeat, taken over when that stops.

POINTER, BEAT, FAILURE = {"run": str, "members": int}, {"attempt": int, "over": bool}, {"error": str, "cause": str}
NOBODY = b""  # content of the lease of a free rank, which was taken from its program


@dataclass(frozen=True, kw_only=True)
class ServingSettings:
    """Settings of a program that serves a fleet's runs. Times (`*_s`) are in seconds.

    `fleet`: the fleet's name, under which the object store holds a pointer to the run that its programs join. `lease_s`: without a
    heartbeat for this long, a rank may be taken over; `absence_s`: without one for this long, other members give a peer up; `idle_s`:
    without a rank for this long, the program ends; `look_s`: between two polls of other programs' state.

    `program`: the program's name, the same if its service starts it again, so that it need not wait until its own lease has expired; ""
    for a random one. `progress`: file that is touched when the first checkpoint is saved. `metadata`: URL of the instance metadata
    service, "" unless the program runs on a spot instance.
    """

    fleet: str
    lease_s: float = 20.0
    absence_s: float = 600.0  # a new instance has booted by then
    idle_s: float = 900.0
    look_s: float = 1.0
    program: str = ""
    progress: Path | None = None
    metadata: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "ServingSettings":
        """Return the settings from environment variables, with the defaults for those that are missing; `fleet` is then "". Raises
        ValueError if a time is not a number.

        These are CROSSOVER_FLEET, CROSSOVER_LEASE_S, CROSSOVER_ABSENCE_S, CROSSOVER_IDLE_S, CROSSOVER_LOOK_S, CROSSOVER_INSTANCE and
        CROSSOVER_PROCESS (the number of the process on it), of which `program` is made if the former is set, CROSSOVER_PROGRESS, and on a
        spot instance CROSSOVER_METADATA.
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
            metadata=environment.get("CROSSOVER_METADATA", ""),
            **given,
        )


@dataclass
class Heartbeats:
    """Observation of all ranks' heartbeats by this program: when it last saw each rank's lease or heartbeat change, by its own clock.

    `objects`: store of leases and heartbeats; `keys`: of the run; `me`: content of the leases that this program creates, by default 16
    random bytes; `seen`: by rank, (last observed state, seconds on the monotonic clock at which it was first seen).
    """

    objects: ObjectStore
    keys: Keys
    me: bytes = field(default_factory=lambda: runtime.entropy(16))
    seen: dict[int, tuple[Any, float]] = field(default_factory=dict)

    def newest(self) -> dict[int, int]:
        """Return {rank: number of its newest attempt}, for all ranks that have had a lease. Lists the bucket, so it is for joining, never
        for a round.
        """
        found: dict[int, int] = {}
        for key in self.objects.list(self.keys.leases):
            rank, attempt = map(int, key.removeprefix(self.keys.leases).split("/"))
            found[rank] = max(attempt, found.get(rank, 0))
        return found

    def silent_s(self, rank: int, attempt: int | None = None) -> float:
        """Return for how many seconds this program has seen no new heartbeat of `rank`: 0 at the first call, and at a call that finds a new
        one.

        That is from the end of the read that first found it to the start of this one: a read may take a minute, and its program is not
        silent meanwhile. `attempt`: the rank's newest attempt, if known; a change of it counts as a new heartbeat.
        """
        asked_s, look = runtime.monotonic(), (attempt, self._beat(rank))
        if rank not in self.seen or self.seen[rank][0] != look:
            self.seen[rank] = (look, runtime.monotonic())
        return max(0.0, asked_s - self.seen[rank][1])

    def has_given_back(self, rank: int, attempt: int) -> bool:
        """Return whether the program of `attempt` has reported in its last heartbeat that it gives `rank` back. False if there is no
        heartbeat. Raises Corrupt if the heartbeat is damaged.
        """
        beat, key = self._beat(rank), self.keys.heartbeat(rank)
        return bool(beat) and (said := encoding.read_plain(beat, BEAT, key=key))["over"] and said["attempt"] == attempt

    def is_free(self, rank: int, attempt: int) -> bool:
        """Return whether the lease of `rank` and `attempt` belongs to no program, or to this one.

        It belongs to this one if this program created it, but the reply was lost. Raises Missing if there is no such lease.
        """
        return self.objects.get(self.keys.lease(rank, attempt)) in (NOBODY, self.me)

    def has_joined(self, rank: int) -> bool:
        """Return whether any program has ever claimed `rank`."""
        return self.objects.exists(self.keys.lease(rank, 0))

    def _beat(self, rank: int) -> bytes:
        """Return the content of the last heartbeat of `rank`; empty if there is none."""
        key = self.keys.heartbeat(rank)
        return self.objects.get(key) if self.objects.exists(key) else b""


def encode_heartbeat(attempt: int, *, beat: int, over: bool) -> bytes:
    """Return the content of a heartbeat of the program that holds `attempt` of a rank.

    `beat`: the heartbeat's number; `over`: whether the program gives the rank back.
    """
    return json.dumps({"attempt": attempt, "beat": beat, "over": over}).encode()


class Membership:
    """One rank of a run, held by this program: `claim` makes it. Used as a context manager, it sends heartbeats from a thread, and at the
    end gives the rank back.

    `rank`, of `members` ranks; `attempt`: number of the lease that this program holds; `progressed`: whether this attempt has saved a
    checkpoint; `interrupted`: whether EC2 has announced that it takes this spot instance away.
    """

    def __init__(
        self, objects: ObjectStore, *, run: str, members: int, rank: int, attempt: int, settings: ServingSettings
    ) -> None:
        """Describe the rank; nothing is claimed or sent yet. `objects`: store of leases and heartbeats; `members`: number of ranks of the
        run; `attempt`: number of the lease that this program holds; `settings`: how often it sends heartbeats, and after how long a silence
        a worker counts as absent.
        """
        self.run, self.members, self.rank, self.attempt, self.settings = run, members, rank, attempt, settings
        self._objects, self._keys = objects, Keys(run)
        self._hearts = Heartbeats(objects, self._keys)
        self._over = runtime.event()
        self._thread = runtime.thread(self._send_heartbeats, name=f"heart-{rank}.{attempt}")
        self.progressed = False
        self.interrupted = False

    @classmethod
    def claim(cls, hearts: Heartbeats, *, run: str, members: int, settings: ServingSettings) -> "Membership | None":
        """Claim one of the `members` ranks of `run` that is free, or whose program has been silent for too long, by creating its next
        lease. Return None if there is no such rank at the moment.

        `hearts`: the heartbeats that this program has observed, and its identity; silence is noticed only by a later call with the same
        `hearts`. `settings`: gives the time after which a silent program loses its rank. A lease that this program itself created counts as
        free, because the program would not ask again if it held a rank. Ranks that reported a failure are left out; ranks that have
        finished their training come last.
        """
        objects, keys, newest = hearts.objects, hearts.keys, hearts.newest()
        left = [rank for rank in newest if objects.exists(keys.leaving_marker(rank))]
        # One that has left comes last: all that it can do is to send again what the others still wait for, and to clear away.
        for rank in sorted(range(members), key=left.__contains__):
            held = newest.get(rank)
            if held is not None:
                silent = hearts.silent_s(rank, held) >= settings.lease_s  # polled each time: it needs two polls
                if objects.exists(keys.failure(rank)) or not (
                    silent or hearts.has_given_back(rank, held) or hearts.is_free(rank, held)
                ):
                    continue
            attempt = 0 if held is None else held + 1
            if objects.create(keys.lease(rank, attempt), hearts.me) == hearts.me:
                return cls(objects, run=run, members=members, rank=rank, attempt=attempt, settings=settings)
        return None

    def __enter__(self) -> "Membership":
        """Start sending heartbeats and return the membership. A membership can be entered only once."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the heartbeats and report that the rank is free, unless this program is being killed, that is, unless `error` is an
        exception such as SystemExit that is no Exception. If the store does not accept the report, that error is ignored.
        """
        self._over.set()
        if error is not None and not isinstance(error, Exception):
            return  # it is being killed: the next program waits until the heartbeat has stopped
        try:
            self._store_heartbeat(beat=0, over=True)
        except CrossoverError:
            return  # the heartbeat has stopped anyway

    def report_progress(self) -> None:
        """Note that a checkpoint was saved, and touch the progress file the first time. `serve` then counts retries after failures from one
        again.
        """
        if not self.progressed and self.settings.progress:
            self.settings.progress.touch()
        self.progressed = True

    def is_superseded(self) -> bool:
        """Return whether another program has taken this rank over from this one."""
        return self._objects.exists(self._keys.lease(self.rank, self.attempt + 1))

    def confirm(self) -> None:
        """Raise StaleAttempt if another program has taken this rank over. Called before anything is published."""
        if self.is_superseded():
            raise StaleAttempt(f"peer {self.rank}: attempt {self.attempt} was superseded by attempt {self.attempt + 1}")

    def raise_if_pointless(self, missing: Iterable[int], *, what: str) -> None:
        """Raise an error if it is pointless to wait for the ranks `missing`: RunFailed if one has reported a failure, WaitTimeout if one
        has been silent for more than `absence_s` seconds, StaleAttempt if this program's own rank was taken over. The silence of a rank
        counts from the first call that asks about it.

        `what`: what is awaited, for the error, such as "waited in round 3 for the gradient".
        """
        self.confirm()
        for rank in missing:
            if self._objects.exists(self._keys.failure(rank)):
                cause = encoding.read_plain(self._objects.get(key := self._keys.failure(rank)), FAILURE, key=key)[
                    "cause"
                ]
                raise RunFailed(f"peer {self.rank}: {what} of peer {rank}, which gave up: {cause}")
            limit_s = self.settings.absence_s
            if self._hearts.silent_s(rank) > limit_s:
                gone = "has not been heard of" if self._hearts.has_joined(rank) else "never joined the run; waited"
                if self._objects.exists(self._keys.leaving_marker(rank)):  # its messages were stored before it left
                    gone = "has finished, but its last message is lost; waited"
                raise WaitTimeout(f"peer {self.rank}: {what} of peer {rank}, which {gone} for {limit_s:.0f} s")

    def is_absent(self, rank: int) -> bool:
        """Return whether `rank` has reported a failure, or has sent no heartbeat for `absence_s` seconds. The silence counts from the first
        call that asks about the rank.
        """
        if self._objects.exists(self._keys.failure(rank)):
            return True
        return self._hearts.silent_s(rank) > self.settings.absence_s

    def _send_heartbeats(self) -> None:
        """Send a heartbeat four times per lease until the membership ends, and check for a spot interruption before each. A heartbeat that
        the store does not accept is skipped.
        """
        # The claim itself counts as the first beat.
        beat = 0
        while not self._over.wait(self.settings.lease_s / 4):
            beat += 1
            self.check_for_notice()
            try:
                self._store_heartbeat(beat=beat, over=False)
            except CrossoverError:
                continue  # a store that does not answer now may do so in time

    def check_for_notice(self) -> None:
        """Set `interrupted` if the metadata service announces an interruption. Sends a request only on a spot instance."""
        if self.settings.metadata and not self.interrupted:
            self.interrupted = has_notice(self.settings.metadata)

    def _store_heartbeat(self, *, beat: int, over: bool) -> None:
        """Store a heartbeat. `beat`: its number; `over`: whether the program gives the rank back."""
        self._objects.put(self._keys.heartbeat(self.rank), encode_heartbeat(self.attempt, beat=beat, over=over))


# --- execution --------------------------------------------------------------------------------------------------------
# The runner's side: tell a fleet's programs which run to join, and see from the object store how they fare.

CONSEQUENTIAL_ERRORS = ("RunFailed", "WaitTimeout", "StaleAttempt")  # errors that follow from another's failure


def announce(objects: ObjectStore, *, fleet: str, run: str, members: int) -> None:
    """Point the programs of `fleet` to `run`, which has `members` ranks, by an object in `objects`.

    If the run is resumed, every rank is first taken from the program that held it, because that program may continue for a while: what it
    still writes does not count. Failures that were reported before are deleted.
    """
    keys = Keys(run)
    for rank, attempt in Heartbeats(objects, keys).newest().items():
        objects.put_new(keys.lease(rank, attempt + 1), NOBODY)
    objects.delete_prefix(keys.failures)
    objects.put(current_run(fleet), json.dumps({"run": run, "members": members}).encode())


@dataclass
class ProgramsExecution:
    """A run's execution by the programs of a fleet, as the runner sees it in the object store.

    `objects`, `keys`: the run's store and the names in it; `members`: number of ranks; `tolerant`: whether the other programs continue if
    one fails; `release`: ends the programs; `can_finish`: returns whether any program runs or may still start; `explain_absence`: returns a
    sentence about what keeps programs from starting, or ""; `boot_s`: seconds within which the first program must have joined.
    """

    objects: ObjectStore
    keys: Keys
    members: int
    tolerant: bool
    release: Callable[[], None]
    can_finish: Callable[[], bool] = lambda: True
    explain_absence: Callable[[], str] = lambda: ""
    boot_s: float = 900.0
    _started_s: float = field(default_factory=runtime.monotonic)
    _joined: bool = False

    def has_ended(self) -> bool:
        """Return True if the run is marked as finished, False while its programs still work.

        Raises the error that a program reported (in a tolerant run only if all have failed, or none can finish any more), RunFailed if all
        programs are gone without finishing, or if none joined within `boot_s`, and what `can_finish` raises.
        """
        alive = self.can_finish()  # first: a program that ends afterwards has stored its outcome before
        if self.objects.exists(self.keys.finished_marker):
            return True
        failures = [
            encoding.read_plain(self.objects.get(key), FAILURE, key=key)
            for key in self.objects.list(self.keys.failures)
        ]
        if failures and (not self.tolerant or len(failures) >= self.members or not alive):
            raise _failure(failures, [key.rpartition("/")[2] for key in self.objects.list(self.keys.failures)])
        if not alive:
            raise RunFailed("all programs of the run have ended, and none has finished it or reported an error")
        self._joined = self._joined or bool(self.objects.list(self.keys.leases))
        if not self._joined and runtime.monotonic() - self._started_s > self.boot_s:
            raise RunFailed(f"no program has joined the run in {self.boot_s:.0f} s. {self.explain_absence()}".strip())
        return False

    def stop(self) -> None:
        """End the programs by calling `release`."""
        self.release()


def _failure(failures: list[dict[str, Any]], ranks: list[str]) -> CrossoverError:
    """Return the error to raise for the run, rebuilt from the first of the reported failures that is not only a consequence of another
    program's failure; from the first of all if each is. Its message names the rank. `failures` must not be empty.

    `failures`: the reported failures, with `error` and `cause`; `ranks`: their ranks, in the same order.
    """
    told = sorted(zip(failures, ranks, strict=False), key=lambda pair: pair[0]["error"] in CONSEQUENTIAL_ERRORS)
    failure, rank = told[0]
    return rebuild_error(failure["error"], f"peer {rank} gave up: {failure['error']}: {failure['cause']}")


# --- serving ----------------------------------------------------------------------------------------------------------
# From start to end of a program: find the run, claim a rank, do the work, report why it failed.

ProgramBody = Callable[[Context, Membership], None]


class InstanceReclaimed(CrossoverError):
    """Error of a program whose spot instance EC2 takes away. The rank's newest checkpoint is saved, and another program resumes from it.
    `serve` catches it.
    """


def serve(resources: Resources, settings: ServingSettings, body: ProgramBody) -> None:
    """Work for the fleet's run: join it, claim a rank, and call `body`; return after `body` has returned once. Also returns if there is no
    run, or no free rank, for `idle_s` seconds, or if the run is over; if the spot instance is taken away, only after four minutes.

    If another program takes the rank over, or a store does not answer, the program joins again and resumes from the newest checkpoint of
    the rank that it gets; for a store at most five times in a row without a new checkpoint. Any other error, and a sixth failure of a
    store, is stored for the runner as the failure of the rank, then raised. Other errors than a store's are ignored if the run is finished
    by then (`serve` returns) or another program holds the rank (it joins again).

    `resources`: of this process; `settings`: the fleet's name and the intervals of leases and polls; `body`: the program's work, called
    with the context and the membership each time that the program holds a rank.
    """
    objects = resources.clients.objects(Traffic())
    troubles, me = 0, settings.program.encode() or runtime.entropy(16)
    while (membership := join(objects, settings, me=me)) is not None:
        try:
            with membership, Context(resources, run=membership.run) as ctx:
                body(ctx, membership)
            return
        except StaleAttempt:
            continue  # another holds the rank; this program is a spare now
        except InstanceReclaimed:
            # Ending now would remove the instance and its slot from the fleet, so nothing would replace it. EC2 ends it.
            runtime.sleep(2 * NOTICE_S)
            return
        except Unavailable as error:
            troubles = 1 if membership.progressed else troubles + 1
            if troubles > PROGRAM.again:
                store_failure(objects, membership, error)
                raise
        except Exception as error:
            if objects.exists(Keys(membership.run).finished_marker):
                return  # the others ended the run meanwhile, and deleted what this one waited for
            if membership.is_superseded():
                continue  # likewise another attempt
            store_failure(objects, membership, error)
            raise
        # Here the error is released, and with it the frames that hold connections and vectors.
        runtime.sleep(min(PROGRAM.first_s * 2**troubles, settings.lease_s))


def join(objects: ObjectStore, settings: ServingSettings, *, me: bytes = b"") -> Membership | None:
    """Wait for a run and a free rank of the fleet, claim the rank and return the membership. Return None if the run is finished or all its
    ranks have failed, or after `idle_s` seconds without a run or a free rank. A store that does not answer is asked again until then. The
    fleet's run is looked up only until there is one: a later one is not noticed.

    `me`: the content of this program's earlier leases, if it has joined before: they count as free.
    """
    pause, me = Pauses(min(settings.look_s, settings.lease_s / 4), within_s=settings.idle_s), me or runtime.entropy(16)
    hearts: Heartbeats | None = None
    while True:
        try:
            if hearts is None and objects.exists(current_run(settings.fleet)):
                pointer = encoding.read_plain(objects.get(key := current_run(settings.fleet)), POINTER, key=key)
                hearts = Heartbeats(objects, Keys(pointer["run"]), me)
            if hearts is not None:
                keys, members = hearts.keys, pointer["members"]
                if objects.exists(keys.finished_marker):
                    return None
                found = Membership.claim(hearts, run=keys.run, members=members, settings=settings)
                if found is not None:
                    return found
                if all(objects.exists(keys.failure(rank)) for rank in range(members)):
                    return None
        except Unavailable:
            pass
        if not pause():
            return None


def store_failure(objects: ObjectStore, membership: Membership, error: Exception) -> None:
    """Store `error` in `objects` as the failure of this program's rank, for the runner to report. A failure that is stored already stays.

    Nothing remains stored if another program has taken the rank over: that one has not failed. Errors of the store are ignored, because the
    caller raises `error` itself.
    """
    said = {"error": type(error).__name__, "cause": str(error), "attempt": membership.attempt}
    key = Keys(membership.run).failure(membership.rank)
    try:
        if objects.put_new(key, json.dumps(said).encode()) and membership.is_superseded():
            objects.delete(key)
    except CrossoverError:
        return  # the error itself is raised by the caller

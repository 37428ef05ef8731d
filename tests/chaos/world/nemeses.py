"""The faults of a schedule as a world meets them, and the history of what they met."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from crossover.errors import Corrupt
from crossover.stores.protocols import read_arrival
from crossover.training.checkpoints import Checkpoint, read
from functions.mlless.words import StepReport, Word, read_report, read_word
from tests.chaos.world.functions import Delivery
from tests.chaos.world.history import HistoryEntry, RequestHistory, digest
from tests.chaos.world.judged import Models
from tests.chaos.world.kernel import Process
from tests.chaos.world.machines import Failed
from tests.chaos.world.process_runtime import BEGAN_S
from tests.chaos.world.requests import LostReply, Request, ServerRefusal
from tests.chaos.world.schedule import CONFLICT, IF_NONE, Fault, FaultKind, Side, limits_of, refusal_of

if TYPE_CHECKING:
    from tests.chaos.world.world import VirtualCall, VirtualWorld

HEARTBEAT_S = 60.0  # stores/rabbitmq.py's: after so long without one the broker takes a connection for broken
RESTART_S = 5.0  # of a database or a broker that begins anew
RESUME_S = 30.0  # after a run that failed
OVERDUE_S = 130.0  # a clock may be wrong by as much


_READS = frozenset({"GetObject", "HeadObject", "TENSOR.GET", "AI.TENSORGET", "EXISTS"})  # leave what they find
_CHECKPOINT = re.compile(r"runs/[^/]+/checkpoint/(\d{12})/(\d+)/(\d{8})\.(\d{5})")
_OF_STEP = re.compile(r"[^/]+/attempt-(\d+)/(\d+)/(?:(\d+)/report|expected)")  # MLLess's reports and words


@dataclass(frozen=True)
class Moved:
    """A message that was sent to an exchange or queue (`sent`), or that its reader has acknowledged."""

    sent: bool
    name: str
    body: bytes

    @property
    def said(self) -> str:
        """ROUND/MEMBER of an arrival at a barrier; of any other message a digest of its body."""
        try:
            return "{}/{}".format(*read_arrival(self.body, queue=self.name))
        except Corrupt:
            return digest(self.body)


def _sort(request: Request) -> str:
    """Return the sort of a request: its operation and first key, with all numbers and identifiers replaced by #. A conditional write ends
    with IF_NONE.
    """
    keys = map(_without_numbers, request.keys[:1])
    return " ".join((request.operation, *keys)) + IF_NONE * request.conditional


@lru_cache(maxsize=16_384)
def _without_numbers(key: str) -> str:
    """Return the key with `#` in place of each number and digest."""
    return _NUMBER.sub("#", key)


_NUMBER = re.compile(r"[0-9a-f]{6,}|\d+")


class Disturbed:
    """A nemesis that applies a schedule's faults to one world, and records the history. `struck`: the faults that have taken effect; a
    fault whose moment never came is not among them.
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        """Prepare for the schedule `faults`; none has struck yet."""
        self.faults = tuple(faults)
        self._by_kind: dict[str, list[Fault]] = defaultdict(list)
        for fault in self.faults:
            self._by_kind[fault.kind].append(fault)
        self.limits = limits_of(self.faults)
        self.history, self.struck = RequestHistory(), list[Fault]()
        self.requests, self.messages, self.deliveries = Counter[str](), Counter[str](), Counter[str]()
        self.asked: dict[str, list[tuple[float, str]]] = defaultdict(list)  # by role: when, and for what sort of thing
        self._strikes: dict[tuple[str, int, Side], list[Fault]] = defaultdict(list)
        self._at_sorts: dict[tuple[str, str, int], list[Fault]] = defaultdict(list)  # by role, sort and its number
        for fault in self.faults:
            if fault.sort:
                self._at_sorts[fault.role, fault.sort, fault.request].append(fault)
            elif fault.kind in ("kill", "freeze", "slow", "lose", "gone"):
                self._strikes[fault.role, fault.request, fault.side].append(fault)
        self._sorts = Counter[tuple[str, str]]()  # requests, by role and sort
        self._slow_s: dict[str, float] = {}
        self._found: dict[int, list[str]] = {}
        self._resumed_s: list[float] = []
        self._moved: list[Moved] = []  # by the request that takes effect now
        # By role and place: messages that come again after later ones, and how many of these have come.
        self._to_come: dict[tuple[str, str], list[tuple[Fault, Sequence[Moved], Counter[str]]]] = defaultdict(list)
        self.killed = set[str]()
        self._gone: dict[str, int] = {}  # by role: under which client
        self.removed = False  # whether MLLess's supervisor has sent anybody away, or given anybody up
        self.models: Models = defaultdict(dict)
        self.saved: dict[int, dict[int, set[bytes]]] = defaultdict(
            lambda: defaultdict(set)
        )  # models, by round and worker
        self.seen: dict[int, dict[int, dict[str, int]]] = defaultdict(dict)  # of a peer, by round: what it has averaged
        self.states: dict[int, dict[int, Checkpoint]] = defaultdict(dict)  # of an asynchronous peer, by round
        self.reports: dict[tuple[int, int], dict[int, StepReport]] = defaultdict(dict)  # by attempt and step: by worker
        self.words: dict[tuple[int, int], tuple[Word, dict[int, StepReport]]] = {}  # each with the reports before it
        self.dropped: dict[tuple[int, int], frozenset[int]] = {}  # by attempt and round: in the supervisor's checkpoint

        self.overdue = Counter[tuple[str, str]]()  # by role and beginning of a wait: polls long after its timeout

    def _of(self, kind: FaultKind) -> Sequence[Fault]:
        """Return the schedule's faults of this kind. Most of the requests ask for three kinds."""
        return self._by_kind.get(kind, ())

    def _strike(self, fault: Fault) -> None:
        """Record that a fault has taken effect."""
        if fault not in self.struck:
            self.struck.append(fault)
            self.history.faults.append((len(self.history.entries), str(fault)))

    # --- at a request -----------------------------------------------------------------------------------------------------

    def before(self, call: "VirtualCall") -> None:
        """Apply the faults that come before a request takes effect, and note the values of its keys. May delay it, kill its process, or
        raise LostReply or ServerRefusal.
        """
        role = call.process.role
        self.requests[role] += 1
        nth = self.requests[role]  # others of its tasks ask meanwhile
        self.asked[role].append((call.at_s, sort := _sort(call.request)))
        self._sorts[role, sort] += 1
        if self._gone.get(role) == self._world.client.attempts:
            self._kill(call.process)
        if self._slow_s.get(role):
            call.process.kernel.sleep(self._slow_s[role])
        self._refuse(call)
        self._hit(call, nth, "before")
        self._apply(call.process, self._at_sorts.get((role, sort, self._sorts[role, sort]), ()))
        message = 0
        if call.request.operation == "basic.publish":
            self.messages[role] += 1
            message = self.messages[role]
            self._hold_up(role, message)
        self._found[call.number] = self._values(call)
        self._nth, self._message, self._moved = nth, message, []

    def failed(self, call: "VirtualCall") -> None:
        """Record in the history a request that had no effect."""
        self._found.pop(call.number, None)
        values = self._values(call)
        self._note(call, zip(call.request.keys, values, values, strict=True), call.outcome)

    def after(self, call: "VirtualCall") -> None:
        """Record in the history a request that has taken effect, then apply the faults that come after its effect."""
        nth, moved = self._nth, tuple(self._moved)
        changed: Iterable[tuple[str, str, str]] = [
            (each.name, "", each.said) if each.sent else (each.name, each.said, "") for each in moved
        ]
        found = self._found.pop(call.number)
        if not changed:
            left = found if call.request.operation in _READS else self._values(call)
            changed = zip(call.request.keys, found, left, strict=True)
        unheard = any(
            each.kind in ("kill", "gone", "lose") for each in self._strikes.get((call.process.role, nth, "after"), ())
        )
        self._note(call, changed, "no reply" if unheard else "")
        self._look_at_model(call)
        self._look_at_word(call)
        if self._message:
            self._repeat(call.process.role, self._message, moved)
        self._hit(call, nth, "after")
        self._answer_busy(call, "after")

    def _note(self, call: "VirtualCall", changed: Iterable[tuple[str, str, str]], outcome: str) -> None:
        """Add a request's changes, as (key, value before, value after), to the history."""
        role, server = call.process.role, f"{call.request.service} {call.request.server}"
        who = (role, call.process.name, server, call.request.operation)
        self.history.entries += [HistoryEntry(call.at_s, *who, *change, outcome) for change in changed]

    def _look_at_model(self, call: "VirtualCall") -> None:
        """Record the model of a checkpoint that was just stored, for later comparison between workers."""
        key = call.request.keys[0] if call.request.operation == "PutObject" else ""
        if not (of := _CHECKPOINT.fullmatch(key)):
            return
        saved = read(self._world.servers.bucket.objects[key], key=key)
        attempt, worker, round, minibatch = map(int, of.groups())
        word = saved.facts.get("word", {})
        self.removed = self.removed or bool(word.get("dropped") or word.get("leaves"))
        self.seen[worker].setdefault(round, saved.facts.get("seen", {}))
        if "seen" in saved.facts:
            self.states[worker].setdefault(round, saved)
        if worker == self.experiment.workers and not minibatch:
            self.dropped.setdefault((attempt, round), frozenset(word.get("dropped", ())))
        if (model := saved.vectors.get("model")) and not minibatch:  # MLLess's supervisor has none
            self.models[attempt, round, word.get("step")][worker] = digest(bytes(model.data))
            self.saved[round][worker].add(bytes(model.data))

    def _look_at_word(self, call: "VirtualCall") -> None:
        """Record a report, or a word with the reports before it, that MLLess's worker or supervisor has just stored."""
        key = call.request.keys[0] if call.request.operation == "AI.TENSORSET" else ""
        if not (of := _OF_STEP.fullmatch(key)):
            return
        vector, place = self._world.servers.databases[call.request.server].get(key), (int(of[1]), int(of[2]))
        if of[3]:
            self.reports[place].setdefault(int(of[3]), read_report(vector, key=key))
        else:
            self.words.setdefault(place, (read_word(vector, key=key), dict(self.reports[place])))

    def _kill(self, process: Process) -> None:
        """Kill the process; ends the calling task if it belongs to it."""
        self.killed.add(process.name)
        process.kill()
        process.check()

    def _hit(self, call: "VirtualCall", nth: int, side: Side) -> None:
        """Apply the faults at the process's `nth` request, on one side of its effect."""
        self._apply(call.process, self._strikes.get((call.process.role, nth, side), ()))

    def _apply(self, process: Process, faults: Iterable[Fault]) -> None:
        """Apply faults to the process at a request of it: kill or freeze it, make it slow, or raise LostReply."""
        for fault in faults:
            self._strike(fault)
            if fault.kind == "gone":
                self._gone[process.role] = self._world.client.attempts
            if fault.kind in ("kill", "gone"):
                self._kill(process)
            elif fault.kind == "freeze":
                self._freeze(process, fault.seconds)
            elif fault.kind == "slow":
                self._slow_s[process.role] = fault.seconds
            else:
                raise LostReply(silent=fault.silent)

    def _freeze(self, process: Process, seconds: float) -> None:
        """Freeze the process for `seconds`. If that is longer than a heartbeat, others may take it for dead."""
        kernel = process.kernel
        process.freeze(kernel.now_s + seconds)
        if seconds > HEARTBEAT_S:
            kernel.spawn(self._unheard, process, process=Process(kernel, "nature"), name="heartbeats")
        kernel.sleep(0.0)

    def _unheard(self, process: Process) -> None:
        """Wait for one heartbeat interval, then break the connections of a process that is frozen, as the broker does without heartbeats,
        so that others get what it had not acknowledged.
        """
        process.kernel.sleep(HEARTBEAT_S)
        if process.alive:
            process.at_end()

    def _refuse(self, call: "VirtualCall") -> None:
        """Raise LostReply if the request's server has an outage now, or ServerRefusal if it refuses requests now."""
        now_s = call.process.kernel.now_s
        for fault in self._of("outage"):
            here = (fault.service, fault.server) == (call.request.service, call.request.server)
            if here and fault.at_s <= now_s < fault.at_s + fault.seconds:
                self._strike(fault)
                raise LostReply
        self._answer_busy(call, "before")

    def _answer_busy(self, call: "VirtualCall", side: Side) -> None:
        """Raise ServerRefusal if a fault lets the request's server refuse it now, on one side of its effect."""
        now_s, asked = call.process.kernel.now_s, call.request
        for fault in self._of("refusal"):
            here = (fault.service, fault.server, fault.side) == (asked.service, asked.server, side)
            here = here and (fault.service != "rabbitmq" or asked.operation == "basic.publish")
            here = here and asked.operation != "connect" and (asked.conditional or fault.code != CONFLICT)
            if here and fault.at_s <= now_s < fault.at_s + fault.seconds:
                self._strike(fault)
                raise ServerRefusal(refusal_of(fault))

    # --- of messages ------------------------------------------------------------------------------------------------------

    def _of_message(self, role: str, nth: int, side: Side) -> list[Fault]:
        """Return the faults at the role's `nth` message, on one side of its effect."""
        here = (role, nth, side)
        return [each for each in self._of("message") if (each.role, each.request, each.side) == here]

    def _hold_up(self, role: str, nth: int) -> None:
        """Delay the role's `nth` message if a fault says so, so that others overtake it."""
        for fault in self._of_message(role, nth, "before"):
            self._strike(fault)
            self._world.kernel.sleep(fault.seconds)

    def _repeat(self, role: str, number: int, moved: Sequence["Moved"]) -> None:
        """Schedule messages that come again: the `number`-th message of `role`, just sent, and earlier ones that are to come after it."""
        come = [(fault, moved) for fault in self._of_message(role, number, "after") if not fault.behind]
        for name in {each.name for each in moved}:
            for fault, earlier, passed in self._to_come[role, name]:
                passed[name] += 1
                come += [(fault, earlier)] * (passed[name] == fault.behind)
            behind = [fault for fault in self._of_message(role, number, "after") if fault.behind]
            self._to_come[role, name] += [(fault, moved, Counter[str]()) for fault in behind]
        for fault, again in come:
            self._strike(fault)
            nature = Process(self._world.kernel, "nature")
            self._world.kernel.spawn(self._send_again, fault.seconds, again, process=nature, name="message")

    def _send_again(self, seconds: float, moved: Sequence["Moved"]) -> None:
        """Publish messages a second time after `seconds`, and add that to the history."""
        self._world.kernel.sleep(seconds)
        broker = self._world.servers.broker
        for each in moved:
            if broker.up and (each.name in broker.exchanges or each.name in broker.queues):
                broker.publish(*((each.name, "") if each.name in broker.exchanges else ("", each.name)), each.body)
                who = (self._world.kernel.now_s, "nature", "nature", "rabbitmq 0", "basic.publish")
                self.history.entries.append(HistoryEntry(*who, each.name, "", each.said))

    def _values(self, call: "VirtualCall") -> list[str]:
        """Return the digests of the values under the request's keys now; "" for each key of RabbitMQ."""
        request = call.request
        if request.service == "s3":
            return [digest(self._world.servers.bucket.objects.get(key)) for key in request.keys]
        if request.service == "redis":
            return [digest(self._world.servers.databases[request.server].value(key)) for key in request.keys]
        return [""] * len(request.keys)

    # --- at an invocation -------------------------------------------------------------------------------------------------

    def delivered(self, function: str, event: Mapping[str, Any]) -> Delivery:
        """Return how an invocation is delivered, perhaps late or twice. Raises Failed if it is throttled."""
        role, now_s = f"{function} {event['worker']}", self._world.kernel.now_s
        for fault in self._of("throttle"):
            if fault.at_s <= now_s < fault.at_s + fault.seconds:
                self._strike(fault)
                raise Failed("Lambda.TooManyRequestsException", '{"errorMessage": "Rate Exceeded."}')
        self.deliveries[role] += 1
        if (since := str(event["since"])) and BEGAN_S + now_s - datetime.fromisoformat(since).timestamp() > event[
            "timeout_s"
        ] + OVERDUE_S:
            self.overdue[role, since] += 1
        for fault in self._of("duplicate"):
            if (fault.role, fault.request) == (role, self.deliveries[role]):
                self._strike(fault)
                return Delivery(fault.seconds, (0.0,)) if fault.side == "before" else Delivery(0.0, (fault.seconds,))
        return Delivery()

    def starting(self, machine: str, name: str) -> None:
        """Raise Failed if the start of executions is throttled now."""
        now_s = self._world.kernel.now_s
        for fault in self._of("starts"):
            if fault.at_s <= now_s < fault.at_s + fault.seconds:
                self._strike(fault)
                raise Failed("StepFunctions.ThrottlingException", "Rate exceeded")

    # --- at a process's clock ---------------------------------------------------------------------------------------------

    def _clock_of(self, process: Process) -> list[Fault]:
        """Return the last clock fault of the process, in a list; empty if it has none. Each client has a clock of its own."""
        number = int(process.name.rpartition(" ")[2]) if process.role == "client" else 0
        return [each for each in self._of("clock") if (each.role, each.request) == (process.role, number)][-1:]

    def skew_s(self, process: Process) -> float:
        """Return by how many seconds the process's wall clock is ahead, and record the fault as struck."""
        for fault in self._clock_of(process):
            self._strike(fault)
            return fault.seconds
        return 0.0

    # --- at a moment ------------------------------------------------------------------------------------------------------

    def began(self, world: "VirtualWorld") -> None:
        """Prepare the world for the schedule: clocks, limits, and tasks for faults at a given time."""
        self._world, self.experiment, self.minibatches = world, world.resolved, world.minibatches
        world.kernel.skew_s = self.skew_s
        for fault in self._of("limit"):
            self._strike(fault)
        world.servers.broker.moved = lambda *what: self._moved.append(Moved(*what))
        for fault in self.faults:
            if fault.kind not in ("memory_lost", "queues_lost", "client_dies", "taken"):
                continue
            nature = Process(world.kernel, "nature")
            world.kernel.spawn(self._at_its_moment, fault, process=nature, name=fault.kind)

    def _at_its_moment(self, fault: Fault) -> None:
        """Wait for a fault's time, then apply it."""
        world = self._world
        world.kernel.sleep(fault.at_s)
        if fault.kind == "client_dies":
            client = world.client.process
            if client is not None and client.alive and client.tasks:
                self._strike(fault)
                self._resumed_s.append(fault.seconds)
                client.kill()
            return
        if fault.kind == "taken":
            number = int(fault.role.rpartition(" ")[2])
            if world.fleet is not None and number in world.fleet.instances:
                self._strike(fault)
                world.fleet.take(number)
            return
        if fault.kind == "memory_lost":
            database = world.servers.databases[fault.server]
            if database.held():
                self._strike(fault)
            database.stop()
            world.kernel.sleep(RESTART_S)
            database.start()
            return
        if world.servers.broker.queues:
            self._strike(fault)
        world.servers.broker.stop()
        world.kernel.sleep(RESTART_S)
        world.servers.broker.start()

    def boot_s(self, number: int) -> float:
        """Return by how many seconds an instance starts late, as the faults say."""
        late = [each for each in self._of("late") if each.role == f"program {number}" and each not in self.struck]
        for fault in late:
            self._strike(fault)
        return sum(fault.seconds for fault in late)

    def resumes_after_s(self) -> float:
        """Return after how many seconds another client resumes the run: the seconds of the fault that killed the client, or RESUME_S."""
        return self._resumed_s.pop() if self._resumed_s else RESUME_S

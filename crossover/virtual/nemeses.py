"""The faults of a schedule as a world meets them, and the history of what they met."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from crossover.virtual.functions import Delivery
from crossover.virtual.history import Entry, History, digest
from crossover.virtual.kernel import Process
from crossover.virtual.machines import Failed
from crossover.virtual.schedule import Fault, Side
from crossover.virtual.wire import Lost

if TYPE_CHECKING:
    from crossover.virtual.world import Call, World

HEARTBEAT_S = 60.0  # dataplane/rabbitmq.py's: after so long without one the broker takes a connection for broken
RESTART_S = 5.0  # of a database or a broker that begins anew
RESUME_S = 30.0  # after a run that failed


class Disturbed:
    """The nemesis of one world. `struck`: the faults that took effect; one whose moment never came is none."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.faults = tuple(faults)
        self.history, self.struck = History(), list[Fault]()
        self.requests, self.deliveries = Counter[str](), Counter[str]()
        self._strikes: dict[tuple[str, int, Side], list[Fault]] = defaultdict(list)
        for fault in self.faults:
            if fault.kind in ("kill", "freeze", "slow", "lose"):
                self._strikes[fault.role, fault.request, fault.side].append(fault)
        self._slow_s: dict[str, float] = {}
        self._found: dict[int, list[str]] = {}
        self._resumed_s: list[float] = []
        self.killed = set[str]()

    def _of(self, *kinds: str) -> list[Fault]:
        return [fault for fault in self.faults if fault.kind in kinds]

    def _strike(self, fault: Fault) -> None:
        if fault not in self.struck:
            self.struck.append(fault)
            self.history.faults.append((len(self.history.entries), str(fault)))

    # --- at a request -----------------------------------------------------------------------------------------------------

    def before(self, call: "Call") -> None:
        role = call.process.role
        self.requests[role] += 1
        nth = self.requests[role]  # others of its tasks ask meanwhile
        for fault in [each for each in self._of("clock") if each.role == role][-1:]:
            call.process.clock_skew_s = fault.seconds
            self._strike(fault)
        if self._slow_s.get(role):
            call.process.kernel.sleep(self._slow_s[role])
        self._refuse(call)
        self._hit(call, nth, "before")
        self._found[call.number] = self._values(call)
        self._nth = nth

    def after(self, call: "Call") -> None:
        role, server = call.process.role, f"{call.request.service} {call.request.server}"
        for key, found, left in zip(call.request.keys, self._found.pop(call.number), self._values(call), strict=True):
            who = (role, call.process.name, server, call.request.operation)
            self.history.entries.append(Entry(call.number, call.at_s, *who, key, found, left, "ok"))
        self._hit(call, self._nth, "after")

    def _hit(self, call: "Call", nth: int, side: Side) -> None:
        process = call.process
        for fault in self._strikes.get((process.role, nth, side), ()):
            self._strike(fault)
            if fault.kind == "kill":
                self.killed.add(process.name)
                process.kill()
                process.check()
            elif fault.kind == "freeze":
                self._freeze(process, fault.seconds)
            elif fault.kind == "slow":
                self._slow_s[process.role] = fault.seconds
            else:
                raise Lost(silent=fault.silent)

    def _freeze(self, process: Process, seconds: float) -> None:
        kernel = process.kernel
        process.freeze(kernel.now_s + seconds)
        if seconds > HEARTBEAT_S:
            kernel.spawn(self._unheard, process, process=Process(kernel, "nature"), name="heartbeats")
        kernel.sleep(0.0)

    def _unheard(self, process: Process) -> None:
        """What stands still sends no heartbeats: the broker ends its connections, and others get what it had not acknowledged."""
        process.kernel.sleep(HEARTBEAT_S)
        if process.alive:
            process.at_end()

    def _refuse(self, call: "Call") -> None:
        now_s = call.process.kernel.now_s
        for fault in self._of("outage"):
            here = (fault.service, fault.server) == (call.request.service, call.request.server)
            if here and fault.at_s <= now_s < fault.at_s + fault.seconds:
                self._strike(fault)
                raise Lost

    def _values(self, call: "Call") -> list[str]:
        """Digests of what lies under the request's keys now."""
        request = call.request
        if request.service == "s3":
            return [digest(self._world.servers.bucket.objects.get(key)) for key in request.keys]
        if request.service == "redis":
            return [digest(self._world.servers.databases[request.server].get(key)) for key in request.keys]
        return [""] * len(request.keys)

    # --- at an invocation -------------------------------------------------------------------------------------------------

    def delivered(self, function: str, event: Mapping[str, Any]) -> Delivery:
        role, now_s = f"{function} {event['worker']}", self._world.kernel.now_s
        for fault in self._of("throttle"):
            if fault.at_s <= now_s < fault.at_s + fault.seconds:
                self._strike(fault)
                raise Failed("Lambda.TooManyRequestsException", '{"errorMessage": "Rate Exceeded."}')
        self.deliveries[role] += 1
        for fault in self._of("duplicate"):
            if (fault.role, fault.request) == (role, self.deliveries[role]):
                self._strike(fault)
                return Delivery(fault.seconds, (0.0,)) if fault.side == "before" else Delivery(0.0, (fault.seconds,))
        return Delivery()

    def starting(self, machine: str, name: str) -> None:
        """Executions start as they are asked for."""

    # --- at a moment ------------------------------------------------------------------------------------------------------

    def began(self, world: "World") -> None:
        self._world = world
        for fault in self._of("memory_lost", "queues_lost", "client_dies", "taken"):
            nature = Process(world.kernel, "nature")
            world.kernel.spawn(self._at_its_moment, fault, process=nature, name=fault.kind)

    def _at_its_moment(self, fault: Fault) -> None:
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
        world.servers.broker.stop(queues_lost=True)
        world.kernel.sleep(RESTART_S)
        world.servers.broker.start()

    def boot_s(self, number: int) -> float:
        late = [fault for fault in self._of("late") if fault.role == f"program {number}"]
        for fault in late:
            self._strike(fault)
        return sum(fault.seconds for fault in late)

    def resumes_after_s(self) -> float:
        return self._resumed_s.pop() if self._resumed_s else RESUME_S

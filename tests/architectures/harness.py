"""Runs of whole architectures in this process, with faults put in at chosen calls of the data plane."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from crossover.errors import Refused, StaleAttempt, Unavailable
from crossover.experiment import Data, Exchange, Experiment, Functions, Training
from crossover.running.preparing import PreparedRun, prepare
from crossover.stores.clients import MemoryClients
from crossover.stores.encoding import VectorKind, decode
from crossover.stores.fetch_compute import FetchCompute
from crossover.stores.protocols import Traffic
from crossover.workflow import Event, Step, execute, first_event
from crossover.workflow.architecture import CLAIMS, architecture_of, architectures, load
from crossover.workflow.context import Context, Resources

if TYPE_CHECKING:
    from crossover.local.cloud import LocalCloud

Hook = Callable[[str, str], None]  # (moment: before | after, operation)
READS = ("get", "exists", "list", "peek", "arrived")  # how often one looks is a matter of the others' pace


class Killed(BaseException):
    """The simulated kill of a step's process, raised in it. No `except Exception` catches it."""


def silent(moment: str, operation: str) -> None:
    """Do nothing: the hook of a client that is not disturbed."""


def claiming(claim: str) -> list[str]:
    """Return the names of the architectures that make a claim, such as "equals_reference"."""
    assert claim in CLAIMS
    return [name for name in architectures() if claim in load(name).claims]


def tree_architectures(claim: str | None = None) -> list[str]:
    """Return the names of the architectures that are trees of steps, and that make the claim if one is given. Programs on EC2 have tests of
    their own.
    """
    return [name for name in (claiming(claim) if claim else architectures()) if load(name).run is not None]


def small(
    architecture: str,
    *,
    workers: int = 2,
    epochs: int = 2,
    batch_size: int = 12,
    every: int | Literal["epoch"] | None = None,
    **training: Any,
) -> Experiment:
    """Return an experiment on a few real digits that takes milliseconds a step, and still has ragged minibatches, BatchNorm and momentum.
    An architecture with a single worker gets all of the data.
    """
    settings: dict[str, Any] = {"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 1e-4} | training
    return Experiment(
        name="small",
        architecture=architecture,
        workers=1 if load(architecture).alone else workers,
        training=Training(**{"model": "small_cnn", "epochs": epochs, "batch_size": batch_size} | settings),
        data=Data(dataset="digits", limit=20 * workers, validation=0.02),
        exchange=Exchange(every=every),
        functions=Functions(checkpoint_every=2),  # long workers: old checkpoints and results go within the few rounds
    )


def most_to_lose(architecture: str) -> Exchange | None:
    """Return exchange settings with local steps that keep as much state as the architecture has: each worker's velocity, the outer one, and
    what top-k left out. None if it takes no local steps.
    """
    compressions = load(architecture).exchanges.get("delta")
    if compressions is None:
        return None
    return Exchange(what="delta", every="epoch", compression="top_k" if "top_k" in compressions else "none", share=0.1)


class Proxy:
    """A client that calls a hook before and after each call of its methods, with "before" or "after" and the method's name."""

    def __init__(self, client: Any, hook: Hook) -> None:
        """Remember the client and the hook."""
        self._client, self._hook = client, hook

    def __getattr__(self, name: str) -> Any:
        """Return the client's attribute; a method is wrapped so that the hook is called before and after each call, except `with_traffic`
        and `close`.
        """
        method = getattr(self._client, name)
        if not callable(method) or name in ("with_traffic", "close"):
            return method

        def call(*arguments: Any, **named: Any) -> Any:
            """Call the method, and the hook before and after it."""
            self._hook("before", name)
            result = method(*arguments, **named)
            self._hook("after", name)
            return result

        return call


@dataclass
class WatchedClients(MemoryClients):
    """In-memory clients that report every call to `hook`, as (before or after, name of the operation). Their `stores` do not report, so
    that a test may read them afterwards.
    """

    hook: Hook = silent

    def __init__(self, plain: MemoryClients) -> None:
        """Take over the stores of `plain`, the clients to watch. The first hook does nothing."""
        self.__dict__.update(plain.__dict__)
        self.hook = silent

    def objects(self, traffic: Traffic) -> Any:
        """Return the object store, with all calls reported."""
        return Proxy(super().objects(traffic), self._call)

    def data(self, worker: int, traffic: Traffic) -> Any:
        """Return the store of training data, with all calls reported."""
        return Proxy(super().data(worker, traffic), self._call)

    def tensors(self, experiment: Experiment, worker: int, traffic: Traffic) -> Any:
        """Return the tensor store, with all calls reported."""
        return Proxy(super().tensors(experiment, worker, traffic), self._call)

    def compute(self, experiment: Experiment, worker: int, traffic: Traffic) -> Any:
        """Return computing that fetches from the tensor store, with all calls to the store reported."""
        return FetchCompute(self.tensors(experiment, worker, traffic))

    def bus(self, traffic: Traffic) -> Any:
        """Return the message bus, with all calls reported."""
        return Proxy(super().bus(traffic), self._call)

    def _call(self, moment: str, operation: str) -> None:
        """Call the present hook."""
        self.hook(moment, operation)


@dataclass
class Job:
    """An experiment whose data is stored in memory, ready to be run once. `clients`: watched clients of its stores; `prepared`: the
    prepared run.
    """

    experiment: Experiment
    clients: WatchedClients = field(init=False)
    prepared: PreparedRun = field(init=False)

    def __post_init__(self) -> None:
        """Create in-memory stores for the experiment, and prepare its run in them."""
        architecture = architecture_of(self.experiment)
        plain = MemoryClients(workers=self.experiment.workers, shared_tensors=architecture.tensor_hosts != "per_worker")
        objects = plain.objects(Traffic())
        self.prepared = prepare(self.experiment, objects=objects, data=[objects])
        self.clients = WatchedClients(plain)

    def run(self) -> bytes:
        """Run the whole tree as attempt 0, and return the bytes of the trained model."""
        self.execute()
        return self.model()

    def execute(self, *, attempt: int = 0, **options: Any) -> None:
        """Run the tree as attempt number `attempt`. `options`: further arguments of its context."""
        tree = architecture_of(self.experiment).run
        assert tree is not None
        ctx = Context(Resources(self.clients), run=self.prepared.run, **options)
        execute(tree, ctx, first_event(self.prepared.run, workers=self.experiment.workers, attempt=attempt))

    def model(self) -> bytes:
        """Return the bytes of the trained model of the finished run."""
        store, keys = self.clients.object_store, self.prepared.keys
        key = keys.final_model(json.loads(store.get(keys.outcome))["parameters_sha256"])
        return bytes(decode(store.get(key), key=key, kind=VectorKind.MODEL).data)

    def decisions(self) -> list[dict[str, Any]]:
        """Return the decisions of the run, one per epoch that was decided."""
        store = self.clients.object_store
        return [json.loads(store.get(key)) for key in store.list(self.prepared.keys.decisions)]

    def object_keys(self, *parts: str) -> list[str]:
        """Return the keys of the run that are left in the object store, below the given parts."""
        return [key for part in parts for key in self.clients.object_store.list(f"{self.prepared.keys.prefix}{part}/")]

    def queues(self) -> dict[str, Any]:
        """Return the mailboxes and barriers that are left on the bus."""
        state = self.clients.message_bus.with_traffic(Traffic())._state
        return {**state.mailboxes, **state.barriers}

    def tensor_keys(self) -> list[str]:
        """Return the keys that are left in the tensor stores."""
        return [key for store in self.clients.tensor_stores for key in store._vectors]


@contextmanager
def standing(cloud: "LocalCloud", experiment: Experiment, folder: Path) -> Iterator[None]:
    """Deploy the experiment's stacks on this machine's local cloud for the time of the block. Shared stacks stay afterwards."""
    from stacks.synthesis import synthesize

    cloud.deploy(synthesize(experiment, folder))
    try:
        yield
    finally:
        cloud.destroy(f"crossover-{experiment.name}")


@contextmanager
def every_step(monkeypatch: pytest.MonkeyPatch, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Replace Step.run by `wrap(Step.run)` for the time of the block."""
    with monkeypatch.context() as patch:
        patch.setattr(Step, "run", wrap(Step.run))
        yield


QUESTIONS = {
    "get",
    "exists",
    "list",
    "list_arrived",
    "peek",
}  # a waiting worker asks them as often as the machine's speed allows


def count_changes(calls: Sequence[str]) -> int:
    """Return the number of calls that change a store or a bus, which does not depend on the machine's speed."""
    return sum(each not in QUESTIONS for each in calls)


class FailAt:
    """A hook that raises `error` once, at the k-th call (0: never), before or after the call takes effect. `operations`: the calls counted
    so far; `failed`: the operation that failed, or "". Calls for heartbeats do not count. `changes`: count only calls that change a store
    or a bus.
    """

    def __init__(
        self, k: int = 0, moment: str = "before", error: type[BaseException] = Unavailable, *, changes: bool = False
    ) -> None:
        """Count from 0. `k`: number of the call that fails, from 1; 0 for none; `moment`: "before" or "after" the call takes effect;
        `error`: type of the error to raise; `changes`: count only calls that change a store or a bus.
        """
        self.k, self.moment, self.error, self.changes = k, moment, error, changes
        self.operations, self.lock = list[str](), threading.Lock()  # a program may fetch in a thread of its own
        self.failed = ""

    def __call__(self, moment: str, operation: str) -> None:
        """Count the call, and raise the error if it is the k-th."""
        if threading.current_thread().name.startswith("heart") or moment != self.moment:
            return
        if self.changes and operation in QUESTIONS:
            return
        with self.lock:
            self.operations.append(operation)
            hit = len(self.operations) == self.k
        if hit:
            self.failed = operation
            raise self.error(f"call {self.k} ({operation}): the connection broke {moment} it")


class Beside:
    """The base of classes that run additional attempts of `step` in threads of their own, whose results are not used. `k`: call at which a
    subclass stops an attempt; `outcomes`: of each ended attempt, its error or None. Sets the hook of `clients`.
    """

    def __init__(self, step: str, k: int, clients: WatchedClients) -> None:
        """Set the hook of `clients` so that it counts the calls of the attempts that this object starts. `step`: name of the step; `k`:
        call at which a subclass stops an attempt.
        """
        self.step, self.k = step, k
        self.local = threading.local()
        self.threads: list[threading.Thread] = []
        self.outcomes: list[BaseException | None] = []
        clients.hook = self._hook

    def _hook(self, moment: str, operation: str) -> None:
        """Count a call of an attempt that this object started, and pass it to `called`."""
        mine = getattr(self.local, "mine", None)
        if mine is not None and moment == "before":
            mine["calls"] += 1
            self.called(mine)

    def called(self, mine: dict[str, Any]) -> None:
        """React to a call of such an attempt. `mine`: state of the attempt, with its number of calls."""
        raise NotImplementedError

    def start(self, run: Callable[[Context], Event], ctx: Context, mine: dict[str, Any], *, then: str) -> None:
        """Start an attempt in a thread and a context of its own. `then`: key of the event in `mine` that is set when the
        attempt has ended.
        """

        def attempt() -> None:
            """Run the step in a context of its own, and record the error that ends it, or None."""
            self.local.mine = mine
            try:
                with ctx.child() as own:
                    run(own)
                self.outcomes.append(None)
            except BaseException as error:
                self.outcomes.append(error)
            finally:
                mine[then].set()

        self.threads.append(threading.Thread(target=attempt, daemon=True))
        self.threads[-1].start()

    def finish(self) -> None:
        """Wait until all attempts have ended, at most 60 s for each. Raises AssertionError if one of them still runs, or ended with an
        error other than StaleAttempt or Refused.
        """
        for thread in self.threads:
            thread.join(timeout=60)
        assert not any(thread.is_alive() for thread in self.threads)
        # Refused: the run ended and took its barrier back before the late attempt asked for it.
        unexpected = [e for e in self.outcomes if e is not None and not isinstance(e, StaleAttempt | Refused)]
        assert not unexpected, unexpected


class Zombies(Beside):
    """Superseded attempts: the first attempt of every `step` stops at its k-th call until the second attempt has ended (with `until_end`:
    until the whole run has), then continues.
    """

    def __init__(self, step: str, k: int, clients: WatchedClients, *, until_end: bool) -> None:
        """Watch the calls of `clients`. `step`: name of the step; `k`: call at which its first attempts stop; `until_end`: whether they
        stop until the whole run has ended.
        """
        super().__init__(step, k, clients)
        self.until_end, self.late = until_end, list[threading.Event]()

    def called(self, mine: dict[str, Any]) -> None:
        """Stop the attempt at its k-th call until it may resume."""
        if mine["calls"] == self.k:
            mine["paused"].set()
            mine["resume"].wait(timeout=60)

    def wrap(self, run: Callable[[Step, Context, Event], Event]) -> Callable[[Step, Context, Event], Event]:
        """Return Step.run with a zombie attempt before each attempt of the step."""

        def attempt(step: Step, ctx: Context, event: Event) -> Event:
            """Start an attempt of the step that stops at its k-th call, run a second one, and return the second one's result."""
            if step.name != self.step:
                return run(step, ctx, event)
            zombie = {"calls": 0, "paused": threading.Event(), "resume": threading.Event()}
            self.start(lambda own: run(step, own, event), ctx, zombie, then="paused")
            zombie["paused"].wait(timeout=60)
            result = run(step, ctx, event)
            self.late.append(zombie["resume"])
            if not self.until_end:
                zombie["resume"].set()
            return result

        return attempt

    def finish(self) -> None:
        """Resume all attempts that still stop, and wait until they have ended."""
        for resume in self.late:
            resume.set()
        super().finish()

"""The GPU baseline's all-reduce on CPUs while members are killed: whoever is left and whoever comes back meet again."""

import json
import socket
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from crossover import runtime
from crossover.errors import ConfigError, StaleAttempt
from crossover.training import peer
from crossover.training.fleet import Membership
from crossover.workflow.context import Context, Resources
from peers.gpu import meeting
from peers.gpu.collective import Collective
from peers.gpu.meeting import Meeting
from tests.architectures.fleet import Fleet, member, only
from tests.architectures.harness import FailAt, Hook, Job, Killed
from tests.architectures.test_gpu import gpu
from tests.sampling import chosen

SHORT_S = 30.0  # ten times what a disturbed run takes, and far below the library's time limits


def fleet(**settings: Any) -> Fleet:
    """Return a fleet for the GPU architecture with a distributed exchange, two workers and three epochs. `settings`: further arguments of
    `gpu`.
    """
    return Fleet(Job(gpu(**{"workers": 2, "exchange": "distributed", "epochs": 3} | settings)))


@pytest.fixture(scope="module")
def undisturbed() -> bytes:
    """Return the bytes of the model of an undisturbed run."""
    with pytest.MonkeyPatch.context() as patch:
        return fleet().run(patch)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fleets of this test wait for SHORT_S at most."""
    monkeypatch.setattr("tests.architectures.fleet.PATIENCE_S", SHORT_S)


@pytest.mark.slow
@pytest.mark.parametrize("k", [6, 14, 22])
def test_members_meet_again_when_one_is_lost(k: int, undisturbed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill one of the members at a certain call, and check that the run still ends with the bits of an undisturbed one."""
    disturbed = fleet()
    disturbed.hooks = only(1, FailAt(k, "before", Killed))
    assert disturbed.run(monkeypatch) == undisturbed
    assert any(isinstance(error, Killed) for error in disturbed.errors), f"call {k} was never made"


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_member_killed_at_any_call_is_replaced(rank: int, moment: str, undisturbed: bytes) -> None:
    """Kill at each of the member's calls from the claim of its rank to the end. The number of its polls differs from run to run."""
    calls = FailAt()
    with pytest.MonkeyPatch.context() as patch:
        counted = fleet()
        counted.hooks = lambda number: of_rank(counted, rank, calls)
        counted.run(patch)
    for k in chosen(calls.operations):
        with pytest.MonkeyPatch.context() as patch:
            disturbed = fleet()
            disturbed.hooks = killing(disturbed, rank, k, moment)
            assert disturbed.run(patch) == undisturbed, f"call {k}, {moment}"
            assert disturbed.left_behind() == [], f"call {k}, {moment}"
            assert all(isinstance(error, Killed) for error in disturbed.errors), f"call {k}, {moment}"


def killing(fleet: Fleet, rank: int, k: int, moment: str) -> Any:
    """Return the `hooks` of a fleet by which the first program that holds this rank is killed at its k-th call, before or after it takes
    effect.
    """
    hook = FailAt(k, moment, Killed)
    return lambda number: of_rank(fleet, rank, hook)


def of_rank(fleet: Fleet, rank: int, hook: Hook) -> Hook:
    """Return a hook that passes on to `hook` the calls of the first program that holds this rank, in that program's thread. Which program
    gets which rank is chance.
    """

    def told(moment: str, operation: str) -> None:
        """Call `hook` if this thread's program is the rank's first holder."""
        member = fleet.threads.get(threading.current_thread())
        if member is not None and (member.rank, member.attempt) == (rank, 0):
            hook(moment, operation)

    return told


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_a_replacement_waits_until_rank_0_has_noticed_the_loss(
    undisturbed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a killed member's replacement builds no group before rank 0 has noticed the loss.

    Rank 0 reaches its all-reduce only when the replacement has connected twice, or has begun to build a group.
    """
    killed, noticed, again, early = (threading.Event() for _ in range(4))
    connected: list[int] = []
    receive, broken = Collective.receive, Collective._drop_broken_group

    def receive_late(self: Collective, own: Any, round: int, out: Any, *, exchange: int = 0) -> None:
        """Receive a round; in round 2 kill rank 1, and let rank 0 wait until the replacement is there."""
        if round == 2 and not noticed.is_set():
            if self._member.rank == 1:
                killed.set()
                raise Killed("round 2")
            assert killed.wait(SHORT_S) and again.wait(SHORT_S)
        receive(self, own, round, out)

    def notice(self: Collective, error: RuntimeError) -> Any:
        """Record that rank 0 has noticed the loss, then return the error as usual."""
        noticed.set()
        return broken(self, error)

    class Store(dist.TCPStore):
        """A TCP store that reports when two connections were made after the kill."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            """Connect, and report the second connection after the kill."""
            super().__init__(*arguments, **named)
            if killed.is_set():
                connected.append(1)
            if len(connected) == 2:
                again.set()

    class Group(dist.ProcessGroupGloo):  # type: ignore[name-defined,misc]
        """A process group that reports if it is made after the kill and before rank 0 has noticed it."""

        def __init__(self, *arguments: Any) -> None:
            """Report a group made too early, then make it."""
            if killed.is_set() and not noticed.is_set():
                early.set()
                again.set()
            super().__init__(*arguments)

    monkeypatch.setattr(Collective, "receive", receive_late)
    monkeypatch.setattr(Collective, "_drop_broken_group", notice)
    monkeypatch.setattr(dist, "TCPStore", Store)
    monkeypatch.setattr(dist, "ProcessGroupGloo", Group)
    disturbed = fleet()
    with suppress(AssertionError):  # what matters is said below
        assert disturbed.run(monkeypatch) == undisturbed
    assert not early.is_set(), "the replacement has joined the group that its predecessor was in"
    assert disturbed.job.model() == undisturbed
    assert [type(error) for error in disturbed.errors] == [Killed]


@pytest.mark.slow
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_member_lost_after_the_last_round_is_replaced_by_one_that_meets_nobody(
    rank: int, undisturbed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the run ends well if a member is killed after the last round: its replacement finds nobody to meet.

    The other member leaves, waits at the end of the run, and never looks for a meeting.
    """
    left, leave = threading.Event(), peer.leave
    victims = [rank]

    def leave_or_die(ctx: Context, member: Membership, exchange: Any) -> None:
        """Leave the fleet; the victim is killed instead, once another member has left."""
        if member.rank in victims:
            victims.clear()
            assert left.wait(SHORT_S)
            raise Killed("the end")
        threading.Thread(target=await_left, args=(ctx, member), daemon=True).start()
        leave(ctx, member, exchange)

    def await_left(ctx: Context, member: Membership) -> None:
        """Wait for the marker that the member leaves, then set `left`."""
        while not disturbed.job.clients.object_store.exists(ctx.keys.leaving_marker(member.rank)):
            threading.Event().wait(0.005)
        left.set()

    monkeypatch.setattr(peer, "leave", leave_or_die)
    disturbed = fleet()
    assert disturbed.run(monkeypatch) == undisturbed
    assert disturbed.left_behind() == []
    assert [type(error) for error in disturbed.errors] == [Killed]


@pytest.mark.slow
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_member_lost_while_the_last_round_is_evaluated_learns_of_the_end_while_it_waits(
    rank: int, undisturbed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the run ends well if a member is killed before the last evaluation: its replacement learns of the end while it waits.

    The other member concludes only when the replacement is looking for a meeting.
    """
    detect, check_waiting = peer._Peer.detect_convergence, Meeting._check_waiting
    looking, victims = threading.Event(), [rank]

    def detect_or_die(self: peer._Peer) -> bool:
        """Detect convergence; after the last round the victim is killed instead, and others wait until its replacement looks around."""
        if self._replica.round == self._replica.days.rounds:
            if self._member.rank in victims:
                victims.clear()
                raise Killed("the last evaluation")
            assert looking.wait(SHORT_S)
        return detect(self)

    def looked_after(self: Meeting, missing: Any) -> bool:
        """Check the waiting members, and report it if the victim has been killed."""
        looked = check_waiting(self, missing)
        if not victims:
            looking.set()
        return looked

    monkeypatch.setattr(peer._Peer, "detect_convergence", detect_or_die)
    monkeypatch.setattr(Meeting, "_check_waiting", looked_after)
    disturbed = fleet()
    assert disturbed.run(monkeypatch) == undisturbed
    assert disturbed.left_behind() == []
    assert [type(error) for error in disturbed.errors] == [Killed]


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_a_former_rank_0_that_goes_while_one_connects_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a run ends well if a former rank 0 accepts a connection and is gone before its store answers."""
    disturbed = fleet(epochs=1)
    former, gone = socket.create_server(("127.0.0.1", 0)), threading.Event()
    place = {"host": "127.0.0.1", "port": former.getsockname()[1], "token": "former"}
    disturbed.job.clients.object_store.put(disturbed.job.prepared.keys.rendezvous, json.dumps(place).encode())

    def go() -> None:
        """Accept one connection, close it and the socket, and report that."""
        former.accept()[0].close()
        former.close()
        gone.set()

    host = Meeting._host

    def host_after_it(self: Meeting) -> Any:
        """Host the meeting once the former rank 0 is gone."""
        assert gone.wait(SHORT_S)
        return host(self)

    monkeypatch.setattr(Meeting, "_host", host_after_it)
    monkeypatch.setattr(meeting, "_CONNECT_S", 0.5)
    threading.Thread(target=go, daemon=True).start()
    disturbed.run(monkeypatch)
    assert gone.is_set()
    assert disturbed.errors == []


@pytest.mark.usefixtures("short")
def test_a_former_rank_0_that_writes_over_the_place_does_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that rank 0 stores its address again if a former rank 0 has replaced it by one at which nobody answers."""
    disturbed = fleet(epochs=1)
    keys, store = disturbed.job.prepared.keys, disturbed.job.clients.object_store
    put, places = type(store).put, list[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as former:
        late = json.dumps({"host": "127.0.0.1", "port": former.getsockname()[1], "token": "former"}).encode()

    def put_then_late(self: Any, key: str, data: Any) -> None:
        """Store the object; the first rendezvous is replaced by a former rank 0's."""
        if key == keys.rendezvous:
            places.append(data)
            data = late if len(places) == 1 else data
        put(self, key, data)

    monkeypatch.setattr(type(store), "put", put_then_late)
    disturbed.run(monkeypatch)
    assert disturbed.errors == []
    assert places[0] == places[1] != late


def test_a_member_that_was_overtaken_ends_where_the_next_checkpoint_is_due() -> None:
    """Check that a member whose rank was taken over raises StaleAttempt when the next checkpoint is due, not before.

    Otherwise it would train on with the others, while its successor waits for them to meet.
    """
    job = Job(gpu(exchange="distributed"))
    objects, keys = job.clients.object_store, job.prepared.keys
    with Context(Resources(job.clients), run=job.prepared.run) as ctx:
        exchange = Collective(ctx, member(job))
        objects.put(keys.lease(0, 1), b"successor")
        exchange.send(torch.empty(0), exchange.every + 1)
        with pytest.raises(StaleAttempt):
            exchange.send(torch.empty(0), 2 * exchange.every)


def test_a_meeting_to_which_a_member_comes_back_begins_anew() -> None:
    """Check that a meeting begins anew if a member that came dies and comes back while another one is still awaited.

    The others must not connect to what the dead member has left.
    """
    job = Job(gpu(workers=3, exchange="distributed"))
    stores: dict[int, Any] = {}

    def join(rank: int, attempt: int = 0) -> threading.Thread:
        """Start a thread in which a member joins the meeting, and return the thread. The result goes to `stores` under its rank."""
        mine = member(job, rank, attempt=attempt, look_s=0.02)
        thread = threading.Thread(target=lambda: stores.update({rank: Meeting(ctx, mine).join()}), daemon=True)
        thread.start()
        return thread

    class Dying(Meeting):
        """A meeting whose member dies after it has announced itself."""

        def _check_waiting(self, missing: Any) -> bool:
            """Raise Killed instead of waiting."""
            raise Killed("having come")

    def place() -> dict[str, Any]:
        """Wait until the rendezvous exists, and return its content."""
        while not job.clients.object_store.exists(ctx.keys.rendezvous):
            threading.Event().wait(0.005)
        found: dict[str, Any] = json.loads(job.clients.object_store.get(ctx.keys.rendezvous))
        return found

    with Context(Resources(job.clients), run=job.prepared.run) as ctx:
        threads = [join(0)]
        first = place()
        with pytest.raises(Killed):
            Dying(ctx, member(job, 1, look_s=0.02)).join()
        threads.append(join(1, attempt=1))
        for _ in range(int(SHORT_S / 0.005)):
            if place() != first:
                break
            threading.Event().wait(0.005)
        assert place()["token"] != first["token"]
        threads.append(join(2))
        for thread in threads:
            thread.join(SHORT_S)
        stores[0].set("word", "here")
        assert [stores[rank].get("word") for rank in range(3)] == [b"here"] * 3


def test_the_collective_exchange_refuses_to_be_simulated() -> None:
    """Check that the collective raises ConfigError in a simulation, which would hang: its library waits in sockets of its own."""
    ctx: Any = SimpleNamespace(experiment=gpu(exchange="distributed"))
    elsewhere: Any = SimpleNamespace(simulated=True)
    with runtime.use(elsewhere), pytest.raises(ConfigError, match=r"gpu.exchange: distributed .*; expected s3"):
        Collective(ctx, ctx)

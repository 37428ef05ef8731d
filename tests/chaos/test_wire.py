"""What our clients make of a wire that loses requests and replies, and of servers that fail: their own retries, in no time."""

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest

from chaos import schedule
from chaos.trials import Trials, reduced
from chaos.wire import Effect, Lost, Refusal, Request
from chaos.wire.clients import Servers, VirtualClients
from chaos.wire.rabbitmq import VirtualConnection
from crossover import runtime
from crossover.clients.protocol import Event
from crossover.dataplane.traffic import Traffic
from crossover.dataplane.vector import Kind, Vector
from crossover.errors import Missing, Refused, Unavailable
from crossover.experiment import Experiment
from tests.architectures.harness import small

SPIRT = Experiment(name="x", architecture="spirt", workers=2)
VECTOR = Vector(Kind.GRADIENT, memoryview(bytes(8)), 3)


class Hurried(runtime.ThisProcess):
    """A process whose clock moves only by its pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Way:
    """Carries at once; `fails(operation, ...)` says what befalls the next requests of that operation, one after another."""

    def __init__(self) -> None:
        self.carried: list[Request] = []
        self._failures: list[tuple[str, str]] = []

    def fails(self, operation: str, *how: str) -> None:
        self._failures += [(operation, each) for each in how]

    def __call__(self, request: Request, effect: Effect) -> Any:
        self.carried.append(request)
        befalls = next((each for each in self._failures if each[0] == request.operation), None)
        if befalls is None:
            return effect()[0]
        self._failures.remove(befalls)
        match befalls[1]:
            case "lost":
                raise Lost
            case "silent":
                raise Lost(silent=True)
            case "reply lost":
                effect()
                raise Lost
            case code:
                raise Refusal(code)

    def count(self, operation: str) -> int:
        return sum(each.operation == operation for each in self.carried)


@pytest.fixture
def clock() -> Iterator[Hurried]:
    process = Hurried()
    with runtime.use(process):
        yield process


@pytest.fixture
def way() -> Way:
    return Way()


@pytest.fixture
def servers(way: Way, clock: Hurried) -> Servers:
    return Servers(way, clock=clock.monotonic, databases=2)


@pytest.fixture
def process(servers: Servers) -> Callable[[], VirtualClients]:
    def nobody(name: str, event: Event) -> Event:
        raise AssertionError(name)

    return lambda: VirtualClients(servers, nobody)


Begin = Callable[[], VirtualClients]


# --- S3 ---------------------------------------------------------------------------------------------------------------


def test_a_put_whose_reply_was_lost_finds_itself(way: Way, process: Begin) -> None:
    objects = process().objects(Traffic())
    way.fails("PutObject", "reply lost")
    assert objects.put_new("k", b"mine") is False
    assert objects.get("k") == b"mine"
    way.fails("PutObject", "lost")
    assert objects.put_new("l", b"mine") is True
    assert way.count("PutObject") == 4


@pytest.mark.parametrize("how", ["lost", "silent", "SlowDown", "InternalError"])
def test_a_bucket_that_is_out_for_long_is_unavailable(way: Way, process: Begin, clock: Hurried, how: str) -> None:
    way.fails("HeadObject", *[how] * 1000)
    with pytest.raises(Unavailable):
        process().objects(Traffic()).exists("k")
    assert way.count("HeadObject") > 1
    assert clock.now_s > 0  # between them it paused, by the clock that it was given


def test_writers_that_meet_try_again(way: Way, process: Begin) -> None:
    way.fails("PutObject", "ConditionalRequestConflict", "ConditionalRequestConflict")
    assert process().objects(Traffic()).put_new("k", b"") is True


@pytest.mark.parametrize("kind", ["refusal", "outage"])
@pytest.mark.parametrize("seed", range(3))
def test_a_bucket_that_is_away_for_two_seconds_ends_no_run(kind: schedule.Kind, seed: int) -> None:
    """Not even while its data is staged, which no retry of a step stands around. botocore's own retries had given up by then."""
    away = schedule.Fault(kind=kind, service="s3", at_s=0.1, seconds=2.0)
    trial = Trials(reduced(small("all_reduce", workers=2))).under([away], seed)
    assert trial.struck and trial.findings == ()


# --- Redis ------------------------------------------------------------------------------------------------------------


def test_a_create_whose_reply_was_lost_is_sent_again_and_finds_itself(way: Way, process: Begin) -> None:
    tensors = process().tensors(SPIRT, 0, Traffic())
    tensors.put("warm", VECTOR)
    way.fails("AI.TENSORSET", "reply lost")
    assert tensors.create("k", VECTOR) is False
    assert tensors.get("k") == VECTOR
    way.fails("EXISTS", "reply lost", "lost")
    assert tensors.exists("k")


def test_a_new_connection_that_breaks_is_unavailable(way: Way, process: Begin) -> None:
    way.fails("AI.TENSORSET", "reply lost")
    with pytest.raises(Unavailable, match=r"AI\.TENSORSET k"):
        process().tensors(SPIRT, 0, Traffic()).put("k", VECTOR)


@pytest.mark.parametrize(("how", "words"), [("silent", "no answer within 120"), ("LOADING", "LOADING")])
def test_a_server_that_does_not_serve_is_unavailable(way: Way, process: Begin, how: str, words: str) -> None:
    way.fails("TENSOR.GET", how)
    with pytest.raises(Unavailable, match=words):
        process().tensors(SPIRT, 0, Traffic()).get("k")
    assert [each.within_s for each in way.carried if each.operation == "TENSOR.GET"] == [120.0]


def test_a_silent_server_is_waited_for_once_whatever_is_asked(way: Way, process: Begin) -> None:
    way.fails("EXISTS", *["silent"] * 8)
    with pytest.raises(Unavailable):
        process().tensors(SPIRT, 0, Traffic()).exists("k")
    assert way.count("EXISTS") == 1


def test_a_server_that_loses_its_memory(servers: Servers, process: Begin) -> None:
    clients = process()
    tensors, other = (clients.tensors(SPIRT, worker, Traffic()) for worker in (0, 1))
    for store in (tensors, other):
        store.put("k", VECTOR)
    servers.databases[0].stop()
    with pytest.raises(Unavailable, match="no connection"):
        tensors.get("k")
    with pytest.raises(Unavailable):
        tensors.exists("k")
    servers.databases[0].start()
    with pytest.raises(Missing):
        tensors.get("k")
    assert not tensors.exists("k")
    assert other.get("k") == VECTOR


def test_keys_live_as_long_as_the_clock_says(servers: Servers, process: Begin, clock: Hurried) -> None:
    tensors = process().tensors(SPIRT, 0, Traffic())
    tensors.put("k", VECTOR)
    clock.sleep(SPIRT.database.time_to_live_s - 1)
    assert tensors.exists("k")
    clock.sleep(2)
    assert not tensors.exists("k")
    assert servers.databases[0].held() == []


# --- RabbitMQ ---------------------------------------------------------------------------------------------------------


def test_a_message_whose_confirm_was_lost_comes_twice(way: Way, process: Begin) -> None:
    bus = process().bus(Traffic())
    bus.declare(queues=["q"])
    way.fails("basic.publish", "reply lost", "lost")
    bus.publish("q", b"1")
    assert [bus.receive("q", timeout_s=0) for _ in range(3)] == [b"1", b"1", None]


def test_an_acknowledgement_that_is_lost_brings_the_message_again(way: Way, process: Begin) -> None:
    bus = process().bus(Traffic())
    bus.declare(queues=["q"])
    for body in (b"1", b"2"):
        bus.publish("q", body)
    way.fails("basic.ack", "lost", "reply lost")
    assert [bus.receive("q", timeout_s=0) for _ in range(4)] == [b"1", b"1", b"2", None]


def test_what_a_process_held_that_died_goes_back(way: Way, process: Begin) -> None:
    clients, other = process(), process().bus(Traffic())
    bus = clients.bus(Traffic())
    bus.declare(queues=["q"])
    bus.publish("q", b"1")
    way.fails("basic.ack", "basic.nack")
    with pytest.raises(Refusal):  # stands for the death of the process: nothing catches it
        bus.receive("q", timeout_s=0)
    clients.cut()
    assert other.receive("q", timeout_s=0) == b"1"


def test_a_broker_that_is_out_is_waited_for(way: Way, servers: Servers, process: Begin, clock: Hurried) -> None:
    bus = process().bus(Traffic())
    bus.declare(queues=["q"], mailboxes=["m"])
    bus.publish("q", b"1")
    servers.broker.stop()
    began_s = clock.now_s
    with pytest.raises(Unavailable):
        bus.publish("q", b"2")
    assert clock.now_s > began_s
    servers.broker.start()
    assert [bus.receive("q", timeout_s=0) for _ in range(2)] == [b"1", None]
    servers.broker.stop(queues_lost=True)
    servers.broker.start()
    with pytest.raises(Refused, match="not declared"):
        bus.publish("q", b"3")


def test_a_publish_that_the_broker_cannot_take_is_unavailable(way: Way, process: Begin) -> None:
    bus = process().bus(Traffic())
    bus.declare(queues=["q"])
    way.fails("basic.publish", "basic.nack")
    with pytest.raises(Unavailable, match="could not take"):
        bus.publish("q", b"1")


def test_a_message_that_came_too_late_for_its_consumer_goes_back(servers: Servers, way: Way, process: Begin) -> None:
    channel = VirtualConnection(servers.broker, way, pika.ConnectionParameters()).channel()
    channel.queue_declare("q", durable=True, arguments={})
    assert next(channel.consume("q", inactivity_timeout=0.0)) == (None, None, None)
    bus = process().bus(Traffic())
    for body in (b"1", b"2"):
        bus.publish("q", body)
    assert bus.receive("q", timeout_s=0) == b"2"  # the first is on its way to the consumer, who holds one at a time
    channel.cancel()
    assert bus.receive("q", timeout_s=0) == b"1"


def test_a_consumer_is_told_that_its_broker_stops(servers: Servers, way: Way) -> None:
    channel = VirtualConnection(servers.broker, way, pika.ConnectionParameters()).channel()
    channel.queue_declare("q", durable=True, arguments={})
    messages = channel.consume("q", inactivity_timeout=0.0)
    assert next(messages) == (None, None, None)
    servers.broker.stop()
    with pytest.raises(pika.exceptions.StreamLostError):
        next(messages)

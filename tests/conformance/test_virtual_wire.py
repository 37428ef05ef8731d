"""The virtual world's servers against the real ones: the same commands to both, drawn at random, and the same answers."""

import struct
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pika
import pika.exceptions as amqp
import pytest
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.wire.clients import Servers
from chaos.wire.rabbitmq import VirtualConnection
from chaos.wire.redis_socket import VirtualRedisAddress
from chaos.wire.s3 import BUCKET as VIRTUAL_BUCKET
from crossover.dataplane.redis_address import redis_address
from crossover.dataplane.redis_tensors import APPEAR_TOGETHER
from crossover.dataplane.redis_wire import Argument, ErrorReply, RedisConnection
from crossover.local.rabbitmq_server import RabbitServer
from crossover.local.redis_server import RedisServer
from tests.conformance import servers
from tests.conformance.conftest import BUCKET

# --- Redis ------------------------------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -1.5, 0.25, 3.0, 1e-42, *[7.0] * 9, float("inf"), float("nan")])
KEYS = st.sampled_from("abcdef")
INPUTS = st.lists(KEYS, min_size=1, max_size=5)
ONLY_NEW = st.sampled_from([[], ["NX"]])


@st.composite
def tensor_set(draw: st.DrawFn, key: st.SearchStrategy[str] = KEYS) -> list[Argument]:
    values = draw(st.lists(NUMBERS, min_size=3, max_size=3) | st.lists(NUMBERS, max_size=4))
    options: list[Argument] = ["KIND", draw(st.sampled_from(["gradient", "gradient", "gradient", "model", ""]))]
    options += draw(st.sampled_from([[], ["SAMPLES", 1], ["SAMPLES", 7]]))
    options += [*draw(ONLY_NEW), "PX", 60_000]
    dtype = draw(st.sampled_from(["FLOAT"] * 7 + ["UINT8"]))
    blob = struct.pack(f"<{len(values)}f", *values) if dtype == "FLOAT" else bytes(len(values))
    elements = len(values) + draw(st.sampled_from([0] * 9 + [1]))
    return ["AI.TENSORSET", draw(key), dtype, elements, *options, "BLOB", memoryview(blob)]


RULES: list[tuple[int, list[Argument]]] = [  # and how many inputs each needs at least
    (1, ["MEAN"]),
    (1, ["MEDIAN"]),
    (3, ["TRIMMEDMEAN", "TRIM", 1]),
    (3, ["KRUM", "FAULTY", 0]),
    (5, ["KRUM", "FAULTY", 1, "SELECT", 2]),
]


@st.composite
def combination(draw: st.DrawFn) -> list[Argument]:
    needed, (rule, *settings) = draw(st.sampled_from(RULES))
    inputs = draw(st.lists(KEYS, min_size=needed, max_size=5))
    finite = draw(st.sampled_from([[], ["FINITE"], ["FINITE"]]))
    options = [*settings, *finite, "OUT", draw(KEYS), *draw(ONLY_NEW), "PX", 60_000]
    return [f"TENSOR.{rule}", len(inputs), *inputs, *options]


@st.composite
def optimizer_step(draw: st.DrawFn) -> list[Argument]:
    model, gradient, *out = (draw(KEYS) for _ in range(4))
    buffers = draw(st.integers(0, 2))
    options = ["LR", 0.1, "WEIGHTDECAY", draw(st.sampled_from([0.0, 0.5]))]
    options += ["BUFFERS", buffers, "STATS", draw(st.sampled_from([1.0, 0.1])), *draw(ONLY_NEW), "PX", 60_000]
    momentum, nesterov = draw(st.sampled_from([(0.0, []), (0.9, []), (0.9, ["NESTEROV"])]))
    if not momentum:
        return ["TENSOR.SGD", model, gradient, "-", "OUT", out[0], "-", *options, "MOMENTUM", 0.0]
    velocity = draw(st.sampled_from(["-", "v"]))
    return ["TENSOR.SGD", model, gradient, velocity, "OUT", out[0], "v", *options, "MOMENTUM", momentum, *nesterov]


@st.composite
def keys_command(draw: st.DrawFn) -> list[Argument]:
    match draw(st.sampled_from(["EXISTS", "UNLINK", "PEXPIRE", "EVAL", "PING"])):
        case "EVAL":
            temporary, named = draw(st.permutations("abcdef")), draw(st.integers(1, 3))
            return ["EVAL", APPEAR_TOGETHER, 2 * named, *temporary[: 2 * named], 60_000]
        case "PEXPIRE":
            return ["PEXPIRE", draw(KEYS), 60_000]
        case "PING":
            return ["PING"]
        case name:
            return [name, *draw(INPUTS)]


MEASURES = st.sampled_from(["TENSOR.GET", "TENSOR.INFO", "TENSOR.NORM", "TENSOR.FINITE"])
FILLED = st.tuples(*(tensor_set(st.just(key)) for key in "abcde"))
COMMANDS = st.one_of(
    tensor_set(),
    combination(),
    combination(),
    combination(),
    optimizer_step(),
    optimizer_step(),
    keys_command(),
    st.tuples(MEASURES, KEYS).map(list),
)


@pytest.fixture(scope="module")
def connections(redis: RedisServer, virtual: Servers) -> Iterator[list[RedisConnection]]:
    addresses = [
        redis_address(redis.url, password=servers.PASSWORD),
        VirtualRedisAddress(server=virtual.databases[0], carry=virtual.carry),
    ]
    both = [RedisConnection(address, timeout_s=30) for address in addresses]
    both[0].command(["AUTH", servers.PASSWORD])
    yield both
    for connection in both:
        connection.close()


@settings(max_examples=60)
@given(filled=FILLED, commands=st.lists(COMMANDS, min_size=5, max_size=20))
def test_a_virtual_redis_answers_as_a_real_one(
    connections: list[RedisConnection], filled: tuple[list[Argument], ...], commands: list[list[Argument]]
) -> None:
    everything: list[list[Argument]] = [["TENSOR.GET", key] for key in "abcdefv"]
    for connection in connections:
        connection.command(["UNLINK", *"abcdefv"])
    for command in [*filled, *commands, *everything]:
        real, virtual = (_said(connection, command) for connection in connections)
        assert virtual == real, command


def _said(connection: RedisConnection, command: Sequence[Argument]) -> Any:
    """The reply; of an error its code and the keys that its words name, since those are what the client reads."""
    try:
        reply = connection.command(command)
    except ErrorReply as error:
        named = {key for key in "abcdefv" if f"'{key}'" in error.text}
        return error.code, named, "NaN or infinite" in error.text
    if command[0] == "TENSOR.GET" and reply is not None and reply[0] == b"FLOAT":
        return [*reply[:-1], _numbers(reply[-1])]
    return pytest.approx(float(reply), nan_ok=True) if command[0] == "TENSOR.NORM" else reply


def _numbers(blob: bytes) -> list[str]:
    """float32 as exact text, zeros with their sign; one NaN is as good as another."""
    return [f"{number:.9g}" for (number,) in struct.iter_unpack("<f", blob)]


# --- S3 ---------------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "a/b", "a/b c", "a/ü", "a&<>", "a+b", "b%20", "b"])
OBJECT_COMMANDS = st.one_of(
    st.tuples(st.just("put"), NAMES, st.binary(max_size=5)),
    st.tuples(st.just("put_new"), NAMES, st.binary(max_size=5)),
    st.tuples(st.sampled_from(["get", "head"]), NAMES, st.just(b"")),
    st.tuples(st.just("delete"), st.lists(NAMES, min_size=1, max_size=3), st.just(b"")),
    st.tuples(st.just("list"), st.sampled_from(["", "a", "a/", "a/b", "b%", "z"]), st.just(b"")),
)


@pytest.mark.slow
@settings(max_examples=25)
@given(commands=st.lists(OBJECT_COMMANDS, min_size=5, max_size=15))
def test_a_virtual_bucket_answers_as_moto(
    s3_client: Any, virtual: Servers, commands: list[tuple[str, Any, bytes]]
) -> None:
    s3_client.create_bucket(Bucket=BUCKET)
    run = uuid.uuid4().hex
    for command in commands:
        real = _object_reply(s3_client, BUCKET, run, *command)
        assert _object_reply(virtual.s3_client, VIRTUAL_BUCKET, run, *command) == real, command


def _object_reply(client: Any, bucket: str, run: str, operation: str, what: Any, body: bytes) -> Any:
    """What the data plane reads of a reply: bodies, keys, error codes and statuses."""
    try:
        match operation:
            case "put":
                client.put_object(Bucket=bucket, Key=run + what, Body=body)
            case "put_new":
                client.put_object(Bucket=bucket, Key=run + what, Body=body, IfNoneMatch="*")
            case "get":
                return client.get_object(Bucket=bucket, Key=run + what)["Body"].read()
            case "head":
                client.head_object(Bucket=bucket, Key=run + what)
            case "delete":
                named = [{"Key": run + each} for each in what]
                return client.delete_objects(Bucket=bucket, Delete={"Objects": named, "Quiet": True}).get("Errors")
            case "list":
                found = client.list_objects_v2(Bucket=bucket, Prefix=run + what)
                return [each["Key"] for each in found.get("Contents", ())], found["IsTruncated"], found["KeyCount"]
    except ClientError as error:
        return error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]
    return None


# --- RabbitMQ ---------------------------------------------------------------------------------------------------------

QUEUES, MAILBOX, EXCHANGE = ("q", "r"), "m", "e"
_CLASSIC = {"x-queue-type": "classic"}
ARGUMENTS = {"q": _CLASSIC, "r": _CLASSIC, "m": {**_CLASSIC, "x-max-length": 1, "x-overflow": "drop-head"}}
WHERE = st.sampled_from(["q", "q", "q", MAILBOX, MAILBOX, "r"])
MESSAGES = st.tuples(st.sampled_from(["publish", "publish", "get", "get", "get", "consume"]), WHERE)
ANSWERS = st.tuples(st.sampled_from(["ack", "nack", "nack", "nack all", "cut", "broadcast"]), st.just(""))
BUS_COMMANDS = st.one_of(
    *[MESSAGES] * 4,
    *[ANSWERS] * 3,
    st.tuples(st.sampled_from(["declare", "delete", "bind"]), WHERE)
    | st.tuples(st.sampled_from(["declare as another", "delete exchange"]), st.just(MAILBOX)),
)


class Speaker:
    """One connection to a broker, and the tags of what it holds."""

    def __init__(self, connect: Callable[[], Any], names: Callable[[str], str]) -> None:
        self._connect, self._name = connect, names
        self._begin()

    def _begin(self) -> None:
        self.connection = self._connect()
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.basic_qos(prefetch_count=1)
        self.held: list[int] = []

    def says(self, command: str, where: str) -> Any:
        try:
            return self._said(command, self._name(where))
        except amqp.UnroutableError:
            return "unroutable"
        except amqp.ChannelClosedByBroker as closed:
            self.end()
            self._begin()
            return closed.reply_code

    def end(self) -> None:
        if self.connection.is_open:
            self.connection.close()

    def _said(self, command: str, where: str) -> Any:
        exchange, channel = self._name(EXCHANGE), self.channel
        match command:
            case "publish" | "broadcast":
                to = (exchange, "") if command == "broadcast" else ("", where)
                body = b"%d" % next(NUMBER)
                channel.basic_publish(*to, body, properties=pika.BasicProperties(delivery_mode=2), mandatory=True)
            case "get":
                return self._hold(channel.basic_get(where))
            case "consume":
                got = next(channel.consume(where, inactivity_timeout=0.03), (None, None, None))
                channel.cancel()
                return self._hold(got)
            case "ack" if self.held:
                channel.basic_ack(self.held.pop(0))
            case "nack" if self.held:
                channel.basic_nack(self.held.pop(0), requeue=True)
            case "nack all" if self.held:
                channel.basic_nack(self.held[-1], multiple=True, requeue=True)
                self.held.clear()
            case "cut":
                self.end()
                self._begin()
            case "declare":
                channel.exchange_declare(exchange, exchange_type="fanout", durable=True)
                channel.queue_declare(where, durable=True, arguments=ARGUMENTS[where[-1]])
            case "declare as another":
                channel.queue_declare(where, durable=True, arguments=_CLASSIC)
            case "bind":
                channel.queue_bind(where, exchange)
            case "delete":
                channel.queue_delete(where)
            case "delete exchange":
                channel.exchange_delete(exchange)
        return None

    def _hold(self, got: tuple[Any, Any, Any]) -> bytes | None:
        if got[0] is None:
            return None
        self.held.append(got[0].delivery_tag)
        return bytes(got[2])


NUMBER = iter(range(0))


@pytest.mark.slow
@settings(max_examples=25)
@given(commands=st.lists(st.tuples(st.integers(0, 1), BUS_COMMANDS), min_size=20, max_size=40))
def test_a_virtual_broker_answers_as_rabbitmq(
    rabbit: RabbitServer, virtual: Servers, commands: list[tuple[int, tuple[str, str]]]
) -> None:
    login = pika.PlainCredentials(servers.USERNAME, servers.PASSWORD)
    parameters = pika.ConnectionParameters("127.0.0.1", rabbit.port, credentials=login)
    mark = uuid.uuid4().hex

    def name(where: str) -> str:
        return f"{mark}-{where}"

    def look(real: Speaker) -> dict[str, int]:
        found = {}
        for each in list(virtual.broker.queues):
            if each.startswith(mark):
                found[each] = real.channel.queue_declare(each, passive=True).method.message_count
        return found

    both = [
        [Speaker(lambda: pika.BlockingConnection(parameters), name) for _ in range(2)],
        [Speaker(lambda: VirtualConnection(virtual.broker, virtual.carry, parameters), name) for _ in range(2)],
    ]
    global NUMBER
    try:
        for where in ("q", "m"):
            for speakers in both:
                speakers[0].says("declare", where)
                speakers[0].says("bind", where)
        for number, (who, (command, where)) in enumerate(commands):
            said = []
            for speakers in both:
                NUMBER = iter([number])
                said.append(speakers[who].says(command, where))
            assert said[1] == said[0], (who, command, where)
            expected = {each: len(queue.ready) for each, queue in virtual.broker.queues.items() if mark in each}
            # What a broker is told without being asked, and the end of a connection, take it a moment.
            deadline = time.monotonic() + 5
            while (found := look(both[0][who])) != expected and time.monotonic() < deadline:
                pass
            assert found == expected, (who, command, where)
    finally:
        for speakers in both:
            for where in (*QUEUES, MAILBOX):
                speakers[0].says("delete", where)
            speakers[0].says("delete exchange", "")
            for speaker in speakers:
                speaker.end()

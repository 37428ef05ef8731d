"""Thousands of random and mutated commands against a build with AddressSanitizer: the server lives and nothing leaks."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossover.local import servers
from tests.redis_module.servers import Server, build, starting, statistics

pytestmark = pytest.mark.deep

COMMANDS_PER_EXAMPLE = 30
EXAMPLES = 400

KEYS = ["a", "b", "c", "d", "m", "OUT", "list", "none", "-"]
SIZES = [0, 1, 2, 3, 4, 7, 16, 40, 300]  # below a thousand times the largest, so that no refusal is one of memory
STRANGE = ["", "-1", "0", "1", "2", "nan", "inf", "-inf", "1e308", "0x1p-1074", "9223372036854775807", "9223372036854775808",
           "4611686018427387904", "2147483648", "\x00", "é", "NX", "OUT", "BLOB", "VALUES", "KIND", "x" * 70]  # fmt: skip

keys = st.sampled_from(KEYS)
vectors = st.one_of(st.sampled_from("abcd"), st.sampled_from("abcd"), keys)  # mostly float32 of one length
numbers = st.one_of(st.sampled_from(["0", "0.1", "0.9", "1", "0x1.8p-2", "-1", "nan"]), st.floats().map(repr))
sizes = st.sampled_from(SIZES)
words = st.one_of(st.sampled_from(STRANGE), keys, st.binary(max_size=9), numbers)


def flag(*choices: list[Any]) -> st.SearchStrategy[list[Any]]:
    """Return a strategy for an optional part of a command: nothing, or one of the choices."""
    return st.one_of(st.just([]), *(st.just(choice) for choice in choices))


@st.composite
def tensor_sets(draw: st.DrawFn) -> list[Any]:
    """Draw a command that stores a tensor, mostly a valid one. Most are vectors of a few lengths, so that the kernels find equal shapes."""
    dtype, size = draw(
        st.sampled_from(
            [("FLOAT", 4)] * 6 + [("DOUBLE", 8), ("INT8", 1), ("INT64", 8), ("BOOL", 1), ("UINT16", 2), ("FLOAT", 3)]
        )
    )
    shape = draw(st.sampled_from([[4], [4], [4], [3], [300], [0], []]) | st.lists(sizes, max_size=3))
    count = 1
    for side in shape:
        count *= side
    options = draw(flag(["NX"], ["KIND", "k"], ["SAMPLES", 3], ["PX", 50], ["KIND", "other", "SAMPLES", 0, "NX"]))
    data = draw(
        st.one_of(
            st.just([]),
            st.binary(min_size=4, max_size=4).map(
                lambda pattern: ["BLOB", (pattern * (count * size // 4 + 1))[: count * size]]
            ),
            st.lists(words, max_size=5).map(lambda values: ["VALUES", *values]),
        )
    )
    return ["AI.TENSORSET", draw(keys), dtype, *shape, *options, *data]


@st.composite
def aggregates(draw: st.DrawFn) -> list[Any]:
    """Draw a command that combines 1 to 9 vectors, often a valid one, with its options in any order."""
    name = draw(st.sampled_from(["TENSOR.MEAN", "TENSOR.MEDIAN", "TENSOR.TRIMMEDMEAN", "TENSOR.KRUM"]))
    inputs = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=9))
    options: list[list[Any]] = [["OUT", draw(keys)], draw(flag(["NX"], ["PX", 100])), draw(flag(["KIND", "k"]))]
    if name == "TENSOR.MEAN":
        options.append(draw(flag(["WEIGHTS", *range(len(inputs))])))
    if name == "TENSOR.TRIMMEDMEAN":
        options.append(["TRIM", draw(st.sampled_from([0, 0, 1, 4, -1]))])
    if name == "TENSOR.KRUM":
        options.append(["FAULTY", draw(st.sampled_from([0, 0, 1, 3, -1]))])
        options.append(draw(flag(["SELECT", 2], ["SELECT", 100])))
    return [name, len(inputs), *inputs, *itertools.chain(*draw(st.permutations(options)))]


@st.composite
def updates(draw: st.DrawFn) -> list[Any]:
    """Draw an optimizer's command, SGD or Adam, often a valid one."""
    buffers = flag(
        ["BUFFERS", draw(st.sampled_from([0, 0, 1, 3, -1])), "STATS", draw(st.sampled_from(["0", "0.1", "1", "nan"]))]
    )
    momentum = draw(flag(["MOMENTUM", "0.9"], ["MOMENTUM", "0.9", "NESTEROV"], ["MOMENTUM", "0.5", "DAMPENING", "0.1"]))
    options = [*draw(flag(["WEIGHTDECAY", "0.1"])), *draw(buffers), *draw(flag(["NX"], ["PX", 100]))]
    rates = st.sampled_from(["0.1", "0x1p-3", "0", "1e30", "-1", "nan"])
    p, g = draw(vectors), draw(vectors)
    outs = draw(st.one_of(st.permutations("abcdm"), st.lists(keys, min_size=3, max_size=3)))[:3]
    if draw(st.booleans()):
        state = draw(st.sampled_from(["-", "c"])) if momentum else "-"
        velocity_out = outs[1] if momentum else "-"
        return ["TENSOR.SGD", p, g, state, "OUT", outs[0], velocity_out, "LR", draw(rates), *momentum, *options]
    states = draw(st.sampled_from([["-", "-"], ["c", "d"], ["c", "d"], ["-", "d"]]))
    step = draw(st.sampled_from([1, 1, 2, 1000, 0]))
    return ["TENSOR.ADAM", p, g, *states, "OUT", *outs, "LR", draw(rates), "STEP", step, *options]


others = st.one_of(
    st.tuples(st.just("AI.TENSORGET"), keys, st.sampled_from(["META", "BLOB", "VALUES"])),
    st.tuples(st.just("TENSOR.GET"), keys, st.just("RANGE"), st.integers(-1, 5), st.integers(-1, 5)),
    st.tuples(
        st.sampled_from(["TENSOR.INFO", "TENSOR.NORM", "TENSOR.FINITE", "DEL", "TYPE", "DUMP", "PERSIST"]), vectors
    ),
    st.tuples(st.sampled_from(["TENSOR.COPY", "COPY", "RENAME"]), keys, keys),
    st.tuples(st.just("TENSOR.AXPY"), vectors, vectors, st.just("ALPHA"), numbers, st.just("OUT"), keys),
    st.tuples(st.sampled_from(["MULTI", "EXEC", "TENSOR.STATS", "DISCARD"])),
    st.tuples(st.just("RPUSH"), st.just("list"), st.just("x")),
    st.tuples(
        st.just("COMMAND"),
        st.just("GETKEYS"),
        st.sampled_from(["TENSOR.MEAN", "TENSOR.SGD", "TENSOR.ADAM"]),
        words,
        words,
        words,
    ),
    st.tuples(st.sampled_from(["SELECT"]), st.sampled_from(["0", "1"])),
).map(list)
whole = st.one_of(tensor_sets(), tensor_sets(), aggregates(), updates(), others)


@st.composite
def mutated(draw: st.DrawFn) -> list[Any]:
    """Draw a command with one to three mutations: arguments are dropped, doubled, replaced, inserted or cut."""
    command = list(draw(whole))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(0, len(command) - 1)))
        match draw(st.sampled_from(["drop", "double", "replace", "insert", "cut"])):
            case "drop" if len(command) > 1:
                del command[place]
            case "double":
                command.insert(place, command[place])
            case "replace" if place:
                command[place] = draw(words)
            case "insert":
                command.insert(place + 1, draw(words))
            case "cut" if place:
                del command[place:]
    return command


def harmless(command: list[Any]) -> bool:
    """Return whether the command may be sent: it is one of the module's or of those listed here. A mutation may turn an argument into a
    command.
    """
    name = command[0] if isinstance(command[0], str) else ""
    return name.startswith(("TENSOR.", "AI.")) or name in {
        "DEL", "TYPE", "DUMP", "PERSIST", "COPY", "RENAME", "MULTI", "EXEC", "DISCARD", "RPUSH", "COMMAND", "SELECT",
    }  # fmt: skip


sequences = st.lists(
    st.one_of(whole, whole, mutated()).filter(harmless),
    min_size=COMMANDS_PER_EXAMPLE // 2,
    max_size=COMMANDS_PER_EXAMPLE,
)
# Lengths around the kernels' blocks; any bytes, so NaN and infinity too.
beginnings = st.tuples(
    st.sampled_from([1, 4, 300, 4099]), st.lists(st.binary(min_size=4, max_size=4), min_size=4, max_size=4)
).map(
    lambda drawn: [
        ["AI.TENSORSET", key, "FLOAT", drawn[0], "BLOB", pattern * drawn[0]]
        for key, pattern in zip("abcd", drawn[1], strict=True)
    ]
)


@pytest.fixture(scope="module")
def sanitized() -> Iterator[Server]:
    """Yield a server whose memory, with that of the module, is watched by AddressSanitizer: redis-server takes malloc from the preloaded
    library. Skips the tests for servers later than Redis 7.2, which give Lua memory by jemalloc's own calls.
    """
    version = subprocess.run(
        [servers.require_program(servers.REDIS), "--version"], capture_output=True, text=True, check=True
    ).stdout
    if not re.match(r"Redis server v=7\.[0-2]\.", version):
        pytest.skip(f"AddressSanitizer's allocator serves Redis 7.0 to 7.2, not {version.split(' sha=')[0]}")
    module = build("asan", "tensors-asan.so")
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    library = found.stdout.strip()
    if not library.startswith("/"):
        pytest.skip("g++ has no libasan here")
    environment = {"LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1"}
    with starting(module) as start:
        # no spare buffers: a use after free must not find live memory
        yield start(module_arguments=["threads", "2", "spare-mb", "0"], environment=environment)


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(beginning=beginnings, commands=sequences)
def test_nothing_a_client_sends_harms_the_server(
    sanitized: Server, beginning: list[list[Any]], commands: list[list[Any]]
) -> None:
    """Send random valid and mutated commands to a server under AddressSanitizer, and check that it survives."""
    commands = beginning + commands
    client = sanitized.client(single_connection_client=True)
    try:
        connection: Any = client.connection
        assert connection is not None
        for command in commands:
            connection.send_command(*command)
        for command in commands:
            try:
                connection.read_response()
            except redis.ResponseError as error:
                if len(str(error)) < 10 or "\n" in str(error):
                    pytest.fail(f"{command}: {error!s}")
        connection.send_command("RESET")
        connection.read_response()
        client.flushall()
        after = statistics(client)
        assert (after["tensors"], after["bytes"], after["jobs_queued"], after["jobs_running"]) == (0, 0, 0, 0)
    except redis.ConnectionError:
        pytest.fail(f"the server died:\n{sanitized.log[-4000:]}")
    finally:
        client.close()


def test_the_sanitizer_reports_no_error(sanitized: Server) -> None:
    """Check that the server still answers, that its log has no report of AddressSanitizer, and that SIGTERM ends it with exit status 0."""
    sanitized.client().ping()
    assert "AddressSanitizer" not in sanitized.log
    assert sanitized.stop() == 0

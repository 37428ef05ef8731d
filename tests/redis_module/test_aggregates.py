"""TENSOR.MEAN, MEDIAN, TRIMMEDMEAN and KRUM against straightforward references, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import references
from tests.redis_module.servers import Client, Start, statistics
from tests.redis_module.vectors import Floats, floats, get, put, same_bits

SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)

# Lengths around the kernels' blocks (256, 1024, 4096, 32768) and around a vector register.
lengths = st.one_of(
    st.integers(0, 40), st.sampled_from([255, 256, 257, 1023, 1025, 4095, 4097, 9001, 32767, 32769, 70001])
)


@st.composite
def inputs(draw: st.DrawFn, *, fewest: int = 1, most: int = 13) -> list[Floats]:
    """Draw float32 vectors of one length, with values over many magnitudes, ties and signed zeros. `fewest`, `most`: bounds of their
    number.
    """
    n, length, seed = draw(st.integers(fewest, most)), draw(lengths), draw(st.integers(0, 1 << 32))
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.integers(-20, 20, size=length)
    rows = [(rng.standard_normal(length) * scale).astype(np.float32) for _ in range(n)]
    for row in rows:
        row[rng.random(length) < 0.1] = rng.choice([0.0, -0.0, 1.0])
    return rows


def put_all(client: Client, rows: Sequence[Floats], samples: Sequence[int] | None = None) -> list[str]:
    """Store the rows as gradients under in0, in1 and so on, and return these keys. `samples`: number of samples of each."""
    keys = [f"in{i}" for i in range(len(rows))]
    for i, (key, row) in enumerate(zip(keys, rows, strict=True)):
        put(client, key, row, "KIND", "gradient", *(["SAMPLES", samples[i]] if samples else []))
    return keys


@SHARED
@given(rows=inputs())
def test_mean_of_equal_weights(client: Client, rows: list[Floats]) -> None:
    """Check that TENSOR.MEAN has the reference's bits, and that its result counts one sample per input."""
    keys = put_all(client, rows)
    assert client.execute_command("TENSOR.MEAN", len(keys), *keys, "OUT", "m") == b"OK"
    assert same_bits(get(client, "m"), references.mean(rows))
    assert client.execute_command("TENSOR.INFO", "m")[2:4] == [b"gradient", len(keys)]


@SHARED
@given(rows=inputs(), data=st.data())
def test_mean_weighted_by_samples_or_by_weights(client: Client, rows: list[Floats], data: st.DataObject) -> None:
    """Check that TENSOR.MEAN weighs by the inputs' samples, or by the option WEIGHTS, with the reference's bits."""
    counts = data.draw(st.lists(st.integers(0, 600), min_size=len(rows), max_size=len(rows)).filter(any))
    keys = put_all(client, rows, counts)
    client.execute_command("TENSOR.MEAN", len(keys), *keys, "OUT", "m")
    assert same_bits(get(client, "m"), references.mean(rows, counts))
    assert client.execute_command("TENSOR.INFO", "m")[3] == sum(counts)
    others = [count + 1 for count in counts]
    client.execute_command("TENSOR.MEAN", len(keys), *keys, "WEIGHTS", *others, "OUT", "w")
    assert same_bits(get(client, "w"), references.mean(rows, others))


def test_one_input_is_copied_bitwise(client: Client) -> None:
    """Check that TENSOR.MEAN of a single input keeps its bits, also if it overwrites the input."""
    row = floats([1e-45, -0.0, np.inf, 3])
    put(client, "a", row, "SAMPLES", 7)
    client.execute_command("TENSOR.MEAN", 1, "a", "OUT", "m")
    assert same_bits(get(client, "m"), row)
    client.execute_command("TENSOR.MEAN", 1, "a", "OUT", "a")  # onto itself
    assert same_bits(get(client, "a"), row)


def test_mean_keeps_the_order_of_summation(client: Client) -> None:
    """Check that TENSOR.MEAN sums in the inputs' order in float32, where 1e8 + 1 - 1e8 + 1 depends on it.

    A pairwise or float64 sum would differ.
    """
    rows = [floats([x]) for x in (1e8, 1, -1e8, 1)]
    keys = put_all(client, rows)
    client.execute_command("TENSOR.MEAN", 4, *keys, "OUT", "m")
    client.execute_command("TENSOR.MEAN", 4, *keys[::-1], "OUT", "r")
    assert get(client, "m")[0] == 0.25 and get(client, "r")[0] == 0
    client.execute_command("TENSOR.MEAN", 4, *keys, "OUT", keys[0])  # the output may be an input
    assert get(client, keys[0])[0] == 0.25


@SHARED
@given(rows=inputs(most=9))
def test_median(client: Client, rows: list[Floats]) -> None:
    """Check TENSOR.MEDIAN against the reference."""
    keys = put_all(client, rows)
    client.execute_command("TENSOR.MEDIAN", len(keys), *keys, "OUT", "m")
    np.testing.assert_array_equal(get(client, "m"), references.median(rows))


@SHARED
@given(rows=inputs(), data=st.data())
def test_trimmed_mean(client: Client, rows: list[Floats], data: st.DataObject) -> None:
    """Check TENSOR.TRIMMEDMEAN against the reference, and that samples are added up."""
    trim = data.draw(st.integers(0, (len(rows) - 1) // 2))
    keys = put_all(client, rows, [3] * len(rows))
    client.execute_command("TENSOR.TRIMMEDMEAN", len(keys), *keys, "TRIM", trim, "OUT", "m")
    np.testing.assert_array_equal(get(client, "m"), references.trimmed_mean(rows, trim))
    assert client.execute_command("TENSOR.INFO", "m")[3] == 3 * len(rows)


@pytest.mark.parametrize("n", [2, 3, 24, 31, 64])
def test_sorting_holds_for_many_inputs(client: Client, n: int) -> None:
    """Check that TENSOR.MEDIAN has the reference's bits for various numbers of inputs."""
    rng = np.random.default_rng(n)
    rows = list(rng.standard_normal((n, 300)).astype(np.float32))
    keys = put_all(client, rows)
    client.execute_command("TENSOR.MEDIAN", n, *keys, "OUT", "m")
    assert same_bits(get(client, "m"), references.median(rows))


@SHARED
@given(data=st.data(), seed=st.integers(0, 1 << 32), length=st.sampled_from([1, 3, 17, 1025, 40001]))
def test_krum_and_multi_krum(client: Client, data: st.DataObject, seed: int, length: int) -> None:
    """Check that TENSOR.KRUM selects the same inputs as the reference, one or several."""
    faulty = data.draw(st.integers(0, 4))
    n = data.draw(st.integers(2 * faulty + 3, 2 * faulty + 6))
    rng = np.random.default_rng(seed)
    rows = list(rng.standard_normal((n, length)).astype(np.float32))
    for i in range(faulty):
        rows[rng.integers(n)] = (100 * rng.standard_normal(length)).astype(np.float32) + np.float32(i)
    keys = put_all(client, rows)
    client.execute_command("TENSOR.KRUM", n, *keys, "FAULTY", faulty, "OUT", "one")
    assert same_bits(get(client, "one"), rows[references.krum(rows, faulty=faulty)[0]])
    m = n - faulty - 2
    client.execute_command("TENSOR.KRUM", n, *keys, "FAULTY", faulty, "SELECT", m, "OUT", "many")
    assert same_bits(
        get(client, "many"), references.mean([rows[i] for i in references.krum(rows, faulty=faulty, select=m)])
    )


def test_krum_ties_go_to_the_lowest_index(client: Client) -> None:
    """Check that TENSOR.KRUM selects the inputs with the lowest numbers among equally good ones."""
    rows = [floats([x]) for x in (5, 1, 1, 5, 1, 5)]
    keys = put_all(client, rows)
    client.execute_command("TENSOR.KRUM", 6, *keys, "FAULTY", 1, "SELECT", 2, "OUT", "m")
    assert references.krum(rows, faulty=1, select=2) == [0, 1]
    assert get(client, "m")[0] == 3


def test_krum_survives_infinite_inputs(client: Client) -> None:
    """Check that TENSOR.KRUM selects a finite input if others are infinite."""
    rows = [floats([x, 1]) for x in (1, 2, np.inf, 2, np.inf)]
    client.execute_command("TENSOR.KRUM", 5, *put_all(client, rows), "FAULTY", 1, "OUT", "m")
    assert np.isfinite(get(client, "m")).all()


@pytest.mark.parametrize(
    "command", [("TENSOR.MEDIAN",), ("TENSOR.TRIMMEDMEAN", "TRIM", 1), ("TENSOR.KRUM", "FAULTY", 1)], ids=lambda c: c[0]
)
def test_a_poisoned_input_is_named(client: Client, command: tuple[object, ...]) -> None:
    """Check that a command refuses an input with a NaN, names it, and stores nothing."""
    rows = [np.zeros(5000, np.float32) for _ in range(5)]
    rows[3][4321] = np.nan
    keys = put_all(client, rows)
    with pytest.raises(redis.ResponseError, match=r"input key 'in3' contains NaN"):
        client.execute_command(command[0], 5, *keys, *command[1:], "OUT", "m")
    assert not client.exists("m")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "command",
    [("TENSOR.MEAN",), ("TENSOR.MEDIAN",), ("TENSOR.TRIMMEDMEAN", "TRIM", 1), ("TENSOR.KRUM", "FAULTY", 1)],
    ids=lambda c: c[0],
)
def test_with_finite_every_input_that_is_not_is_named(client: Client, command: tuple[object, ...], bad: float) -> None:
    """Check that a command with the option FINITE refuses an input with a NaN or an infinite value, names it, and stores nothing."""
    rows = [np.zeros(5000, np.float32) for _ in range(5)]
    rows[3][4321] = bad
    keys = put_all(client, rows)
    with pytest.raises(redis.ResponseError, match=r"input key 'in3' contains NaN or infinite values"):
        client.execute_command(command[0], 5, *keys, *command[1:], "OUT", "m", "FINITE")
    assert not client.exists("m")
    put(client, "in3", np.ones(5000, np.float32), "KIND", "gradient")
    assert client.execute_command(command[0], 5, *keys, *command[1:], "FINITE", "OUT", "m") == b"OK"


def test_with_finite_a_single_input_is_looked_at_too(client: Client) -> None:
    """Check that the option FINITE also checks the input of a mean over one."""
    put(client, "a", floats([1, np.inf]))
    with pytest.raises(redis.ResponseError, match=r"input key 'a' contains NaN or infinite values"):
        client.execute_command("TENSOR.MEAN", 1, "a", "OUT", "m", "FINITE")
    assert not client.exists("m")


def test_nx_is_answered_even_when_the_inputs_are_gone(client: Client) -> None:
    """Check that NX answers 0 for an existing output although the inputs were deleted, and that PX sets its time to live."""
    keys = put_all(client, [floats([1]), floats([3])])
    assert client.execute_command("TENSOR.MEAN", 2, *keys, "OUT", "m", "NX", "PX", 90_000) == 1
    assert 80_000 < client.pttl("m") <= 90_000
    client.delete(*keys)
    assert client.execute_command("TENSOR.MEAN", 2, *keys, "OUT", "m", "NX") == 0
    assert get(client, "m")[0] == 2


def test_inputs_of_different_kinds_need_a_kind_for_the_result(client: Client) -> None:
    """Check that inputs of different kinds are refused unless the option KIND names the result's."""
    put(client, "a", floats([1]), "KIND", "gradient")
    put(client, "b", floats([2]), "KIND", "model")
    with pytest.raises(redis.ResponseError, match=r"input key 'b' has kind 'model'; expected 'gradient'"):
        client.execute_command("TENSOR.MEAN", 2, "a", "b", "OUT", "m")
    client.execute_command("TENSOR.MEAN", 2, "a", "b", "OUT", "m", "KIND", "other")
    assert client.execute_command("TENSOR.INFO", "m")[2] == b"other"


REFUSED = [
    (
        ("TENSOR.MEAN",),
        r"wrong number of arguments for 'TENSOR.MEAN' command: 0 given, expected at least 4: TENSOR.MEAN n key",
    ),
    (("TENSOR.MEAN", 0, "a", "OUT", "m"), r"argument 1 \(number of keys\) is '0'; expected an integer from 1 to 4096"),
    (("TENSOR.MEAN", 9, "a", "OUT", "m"), r"3 keys given; expected 9"),
    (
        ("TENSOR.MEAN", 2, "a", "b", "INTO", "m"),
        r"argument 4 is 'INTO'; expected one of WEIGHTS, OUT, FINITE, KIND, NX, PX",
    ),
    (("TENSOR.MEAN", 2, "a", "b", "NX"), r"OUT is missing"),
    (("TENSOR.MEAN", 1, "a", "OUT", "m", "OUT", "k"), r"OUT is given twice, again at argument 5"),
    (("TENSOR.MEAN", 1, "a", "NX", "OUT"), r"OUT at argument 4 has 0 values; expected 1"),
    (("TENSOR.MEAN", 2, "a", "none", "OUT", "m"), r"NOKEY TENSOR.MEAN: input key 'none' does not exist"),
    (("TENSOR.MEAN", 2, "a", "text", "OUT", "m"), r"WRONGTYPE .*TENSOR.MEAN: input key 'text' holds a string"),
    (("TENSOR.MEAN", 1, "a", "OUT", "text"), r"WRONGTYPE .*TENSOR.MEAN: output key 'text' holds a string"),
    (("TENSOR.MEAN", 2, "a", "wide", "OUT", "m"), r"input key 'wide' is DOUBLE; expected FLOAT"),
    (("TENSOR.MEAN", 2, "a", "long", "OUT", "m"), r"input key 'long' has shape \[3\]; expected \[2\] like the first"),
    (("TENSOR.MEAN", 1, "a", "WEIGHTS", "x", "OUT", "m"), r"\(WEIGHTS\) is 'x'; expected an integer"),
    (("TENSOR.MEAN", 2, "a", "b", "WEIGHTS", 0, 0, "OUT", "m"), r"weights' sum is 0"),
    (("TENSOR.MEAN", 2, "a", "b", "WEIGHTS", 2**63 - 1, 1, "OUT", "m"), r"weights' sum passes"),
    (("TENSOR.TRIMMEDMEAN", 2, "a", "b", "TRIM", 1, "OUT", "m"), r"TRIM, below half of the inputs\) is '1'"),
    (("TENSOR.TRIMMEDMEAN", 2, "a", "b", "OUT", "m", "NX"), r"TRIM is missing"),
    (("TENSOR.KRUM", 2, "a", "b", "FAULTY", 0, "OUT", "m"), r"FAULTY 0 needs at least 3 inputs; 2 given"),
    (
        ("TENSOR.KRUM", 4, "a", "b", "a", "b", "FAULTY", 0, "SELECT", 3, "OUT", "m"),
        r"SELECT\) is '3'; expected .* 1 to 2",
    ),
    (("TENSOR.MEDIAN", 1, "a", "OUT", "m", "PX", "soon"), r"PX\) is 'soon'"),
]


@pytest.mark.parametrize(("command", "message"), REFUSED, ids=lambda value: str(value)[:50])
def test_bad_input_is_named_and_stores_nothing(client: Client, command: tuple[object, ...], message: str) -> None:
    """Check the error messages of faulty aggregation commands, and that they change nothing."""
    for key in ("a", "b"):
        put(client, key, floats([1, 2]))
    put(client, "long", floats([1, 2, 3]))
    put(client, "wide", np.array([1, 2], np.float64))
    client.set("text", "x")
    with pytest.raises(redis.ResponseError, match=message):
        client.execute_command(*command)
    assert sorted(client.keys()) == [b"a", b"b", b"long", b"text", b"wide"]
    assert client.get("text") == b"x" and statistics(client)["tensors"] == 4


def test_the_distances_of_krum_are_bounded_and_counted(start: Start) -> None:
    """Check that TENSOR.KRUM takes 1,024 inputs at most, and that the memory of their distances counts towards maxmemory.

    It grows with the square of the number of inputs, however small those are.
    """
    client = start().client()
    put(client, "a", floats([1]))
    for inputs, limit in ((1025, 0), (1000, 20_000_000)):
        client.config_set("maxmemory", limit)
        expected = r"1025 inputs; expected at most 1024" if not limit else r"TENSOR.KRUM: needs 7\d{7} bytes"
        with pytest.raises(redis.ResponseError, match=expected):
            client.execute_command("TENSOR.KRUM", inputs, *["a"] * inputs, "FAULTY", 0, "OUT", "m")
    client.config_set("maxmemory", 0)
    assert client.execute_command("TENSOR.KRUM", 1024, *["a"] * 1024, "FAULTY", 0, "OUT", "m") == b"OK"


def test_results_do_not_depend_on_threads(start: Start) -> None:
    """Check that servers with different numbers of threads compute the same bits."""
    rng = np.random.default_rng(1)
    rows = list(rng.standard_normal((9, 200_003)).astype(np.float32))
    blobs = []
    for arguments in ([], ["threads", "2", "intra-op-threads", "3"]):
        client = start(module_arguments=arguments).client()
        keys = put_all(client, rows, list(range(1, 10)))
        client.execute_command("TENSOR.MEAN", 9, *keys, "OUT", "mean")
        client.execute_command("TENSOR.TRIMMEDMEAN", 9, *keys, "TRIM", 2, "OUT", "trimmed")
        client.execute_command("TENSOR.KRUM", 9, *keys, "FAULTY", 2, "SELECT", 5, "OUT", "krum")
        client.execute_command("TENSOR.SGD", keys[0], keys[1], "-", "OUT", "p", "v", "LR", 0.1, "MOMENTUM", 0.9)
        norm = client.execute_command("TENSOR.NORM", keys[0])
        blobs.append([norm, *(get(client, key).tobytes() for key in ("mean", "trimmed", "krum", "p", "v"))])
    assert blobs[0] == blobs[1]

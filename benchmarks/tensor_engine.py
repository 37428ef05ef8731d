"""In-database computing against fetch-compute-store, and our Redis client against redis-py. Ratios of one run, one thread a side.

    python -m benchmarks.tensor_engine [--quick]      --quick: vectors of 0.4 M elements and fewer rounds, to see that it runs

The database writes nothing to the disk here: computing and moving are compared, not syncing. Each figure is the ratio of two medians that
were taken in turns, so that other load on the machine disturbs both sides alike.
"""

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import redis
import torch
from torch import Tensor

from benchmarks.report import Figure, write
from crossover.algorithms.averaging import mean
from crossover.algorithms.buffers import tensor, view
from crossover.algorithms.optimizers import Update
from crossover.algorithms.updates import step
from crossover.local import servers
from crossover.local.servers import RedisServer
from crossover.stores.encoding import Vector, VectorKind
from crossover.stores.fetch_compute import FetchCompute
from crossover.stores.protocols import StateKeys, TensorCompute, Traffic
from crossover.stores.redis_client import RedisClient, RedisConnection, parse_address
from crossover.stores.redis_tensors import RedisCompute
from tests.conformance.servers import TlsFiles, TlsRedisServer, self_made

ROOT = Path(__file__).parents[1]
VECTORS = 24
RATE, MOMENTUM = 0.1, 0.9
STATE, NEXT = StateKeys("model", ("velocity",)), StateKeys("model1", ("velocity1",))


@dataclass(frozen=True)
class Side:
    """Clients of one server under test, all connected to it. `client`: this project's Redis client; `store`: the project's tensor store
    that uses it; `python`: redis-py's client.
    """

    client: RedisClient
    store: RedisCompute
    python: redis.Redis


def measure_medians(
    work: Mapping[str, Callable[[], object]], *, rounds: int, after: Callable[[], object]
) -> dict[str, float]:
    """Return the median seconds of each function of `work`, by name. All are called in turns, for `rounds` rounds after one to warm up.
    `after`: called after each function, untimed.
    """
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(rounds + 1):
        for name, run in work.items():
            start_s = time.perf_counter()
            run()
            spent_s = time.perf_counter() - start_s
            after()
            if turn:
                times[name].append(spent_s)
    return {name: statistics.median(values) for name, values in times.items()}


def connect_side(server: TlsRedisServer, tls: TlsFiles, *, encrypted: bool) -> Side:
    """Return clients connected to the server, over TLS with the certificate of `tls` if `encrypted`, otherwise over TCP."""
    certificate = tls.certificate.read_text()
    client = RedisClient(parse_address(server.tls_url if encrypted else server.url, certificate=certificate))
    here = {"port": server.tls_port, "ssl": True, "ssl_ca_data": certificate} if encrypted else {"port": server.port}
    # One connection that is kept: redis-py's pool takes one on which a TLS session ticket has come in for one with half a reply left.
    python = redis.Redis(socket_timeout=None, single_connection_client=True, **here)
    return Side(client, RedisCompute(client, Traffic(), time_to_live_s=3600), python)


# --- fetch, compute, store by redis-py --------------------------------------------------------------------------------


def fetch(python: redis.Redis, key: str) -> Tensor:
    """Return the vector stored under `key`, fetched with redis-py."""
    return tensor(python.execute_command("AI.TENSORGET", key, "BLOB"))  # type: ignore[no-untyped-call]


def store(python: redis.Redis, key: str, values: Tensor) -> None:
    """Store the vector `values` under `key` with redis-py."""
    python.execute_command("AI.TENSORSET", key, "FLOAT", values.numel(), "BLOB", view(values))  # type: ignore[no-untyped-call]


def mean_by_redis_py(python: redis.Redis, keys: list[str]) -> None:
    """Fetch the vectors of `keys` with redis-py, average them in this process, and store the mean under "out"."""
    store(python, "out", mean([fetch(python, key) for key in keys], [1.0] * len(keys)))


def step_by_redis_py(python: redis.Redis) -> None:
    """Fetch model, gradient and velocity with redis-py, take an optimizer step (SGD with momentum) in this process, and store the results
    as "model1" and "velocity1".
    """
    model, gradient, velocity = (fetch(python, key) for key in ("model", "gradient", "velocity"))
    update = Update(number=1, learning_rate=RATE, momentum=MOMENTUM)
    model, (velocity,) = step(model, gradient, [velocity], update)
    store(python, "model1", model)
    store(python, "velocity1", velocity)


def step_by_store(compute: TensorCompute) -> None:
    """Take an optimizer step (SGD with momentum) with `compute`, which works inside the database, or, if it is a FetchCompute, in this
    process. The results are stored under the keys of NEXT.
    """
    compute.update(STATE, "gradient", out=NEXT, update=Update(number=1, learning_rate=RATE, momentum=MOMENTUM))


# --- the figures ------------------------------------------------------------------------------------------------------


def measure_averaging(plain: Side, encrypted: Side, local: list[Tensor], label: str, rounds: int) -> list[Figure]:
    """Time averages of VECTORS vectors inside the database and by fetching them, and return the figures. Leaves three of the vectors in the
    database, as g0 to g2. `plain`, `encrypted`: clients without and with TLS; `local`: the vectors; `label`: their size in words; `rounds`:
    number of timed rounds.
    """
    keys = [f"g{i}" for i in range(VECTORS)]
    for key, values in zip(keys, local, strict=True):
        plain.store.put(key, Vector(VectorKind.GRADIENT, view(values)))
    in_database = partial(plain.store.mean, keys, out="out")
    near = measure_medians(  # short ones often, apart from the long ones, which leave caches and memory in disorder
        {"read": lambda: [values.sum() for values in local], "in_database": in_database},
        rounds=4 * rounds,
        after=lambda: plain.store.delete("out"),
    )
    took = measure_medians(
        {
            "in_database": in_database,
            "own": lambda: FetchCompute(plain.store).mean(keys, out="out"),
            "own_tls": lambda: FetchCompute(encrypted.store).mean(keys, out="out"),
            "redis_py": lambda: mean_by_redis_py(plain.python, keys),
            "redis_py_tls": lambda: mean_by_redis_py(encrypted.python, keys),
        },
        rounds=rounds,
        after=lambda: plain.store.delete("out"),
    )
    plain.store.delete(*keys[3:])  # the first three remain for the update
    of = f"mean of {VECTORS} x {label}"
    inside = took["in_database"]
    return [
        Figure(f"{of}: in the database", near["in_database"] * 1e3, "ms"),
        Figure(f"{of}: in the database / reading the bytes once", near["in_database"] / near["read"], "x", "<= 1.4"),
        Figure(f"{of}: fetch, average, store by redis-py / in the database", took["redis_py"] / inside, "x", ">= 15"),
        Figure(f"{of}: fetch, average, store by our client / in the database", took["own"] / inside, "x", ">= 7"),
        Figure(
            f"{of}: fetch, average, store by redis-py over TLS / in the database", took["redis_py_tls"] / inside, "x"
        ),
        Figure(f"{of}: fetch, average, store by our client over TLS / in the database", took["own_tls"] / inside, "x"),
    ]


def measure_updating(plain: Side, encrypted: Side, local: list[Tensor], label: str, rounds: int) -> list[Figure]:
    """Time an optimizer step inside the database and by fetching the vectors, and return the figures. `plain`, `encrypted`: clients without
    and with TLS; `local`: at least three vectors, taken as model, gradient and velocity; `label`: their size in words; `rounds`: half the
    number of timed rounds.
    """
    for key, values, kind in zip(
        ("model", "gradient", "velocity"),
        local,
        (VectorKind.MODEL, VectorKind.GRADIENT, VectorKind.VELOCITY),
        strict=False,
    ):
        plain.store.put(key, Vector(kind, view(values)))
    took = measure_medians(
        {
            "in_database": lambda: step_by_store(plain.store),
            "own": lambda: step_by_store(FetchCompute(plain.store)),
            "own_tls": lambda: step_by_store(FetchCompute(encrypted.store)),
            "redis_py": lambda: step_by_redis_py(plain.python),
        },
        rounds=2 * rounds,
        after=lambda: plain.store.delete("model1", "velocity1"),
    )
    of = f"SGD with momentum, {label}"
    inside = took["in_database"]
    return [
        Figure(f"{of}: in the database, out of place", inside * 1e3, "ms"),
        Figure(f"{of}: fetch, update, store by redis-py / in the database", took["redis_py"] / inside, "x", ">= 8"),
        Figure(f"{of}: fetch, update, store by our client / in the database", took["own"] / inside, "x", ">= 4"),
        Figure(f"{of}: fetch, update, store by our client over TLS / in the database", took["own_tls"] / inside, "x"),
    ]


def measure_moving(on: Side, values: Tensor, rounds: int, how: str) -> list[Figure]:
    """Time the transfer of a vector to the database and back with the clients `on`, and return the figures. `values`: the vector; `rounds`:
    a sixth of the number of timed rounds; `how`: name of the connection, "TCP" or "TLS".
    """
    data = view(values)
    into = memoryview(bytearray(data.nbytes))
    vector = Vector(VectorKind.MODEL, data)
    on.client.command("SET", "plain", data)
    on.store.put("vector", vector)
    took = measure_medians(
        {
            "set": lambda: on.client.command("SET", "plain", data),
            "tensorset": lambda: on.store.put("vector", vector),
            "redis_py_tensorset": lambda: store(on.python, "vector_by_redis_py", values),
            "get": lambda: on.client.command("GET", "plain", place=lambda _: into),
            "tensorget": lambda: on.store.get("vector", out=into),
            "redis_py_tensorget": lambda: fetch(on.python, "vector_by_redis_py"),
        },
        rounds=6 * rounds,
        after=lambda: None,
    )
    of = f"{data.nbytes / 1e6:.1f} MB over {how}"
    figures = []
    for tensor_command, command in (("tensorset", "set"), ("tensorget", "get")):
        name = tensor_command.upper()
        figures += [
            Figure(f"{of}: {name} by our client", took[tensor_command] * 1e3, "ms"),
            Figure(
                f"{of}: {name} / {command.upper()}, both by our client",
                took[tensor_command] / took[command],
                "x",
                "<= 1.3",
            ),
            Figure(
                f"{of}: {name} by redis-py / by our client",
                took[f"redis_py_{tensor_command}"] / took[tensor_command],
                "x",
                ">= 1.5" if how == "TCP" else None,  # over TLS both spend their time on the cipher
            ),
        ]
    return figures


def measure_answering(
    server: RedisServer, plain: Side, local: list[Tensor], label: str, seconds: float
) -> list[Figure]:
    """Time PING by another client while the database computes means for `seconds` seconds, and return the figures. `server`: to which that
    client connects; `plain`: clients that request the means; `local`: the vectors; `label`: their size in words.
    """
    keys = [f"g{i}" for i in range(VECTORS)]
    for key, values in zip(keys, local, strict=True):
        plain.store.put(key, Vector(VectorKind.GRADIENT, view(values)))
    stop = threading.Event()
    compute = plain.store

    def average() -> None:
        """Average the vectors in the database again and again until `stop` is set."""
        while not stop.is_set():
            compute.mean(keys, out="out")
            plain.store.delete("out")

    worker = threading.Thread(target=average)
    connection = RedisConnection(parse_address(server.url), timeout_s=30)
    times = []
    worker.start()
    end_s = time.perf_counter() + seconds
    while (start_s := time.perf_counter()) < end_s:
        connection.command(["PING"])
        times.append(time.perf_counter() - start_s)
    stop.set()
    worker.join()
    connection.close()
    plain.store.delete(*keys)
    of = f"PING of another client during means of {VECTORS} x {label}"
    cuts = statistics.quantiles(times, n=100)
    return [
        Figure(f"{of}: median", statistics.median(times) * 1e3, "ms", "< 1"),
        Figure(f"{of}: 99th percentile", cuts[98] * 1e3, "ms", "< 10"),
    ]


def main() -> None:
    """Measure the tensor database and the clients, with and without TLS, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small vectors, few rounds: to see that it runs")
    quick: bool = parser.parse_args().quick
    torch.set_num_threads(1)
    subprocess.run(["make", "-s", "-C", str(ROOT / "redis_module"), "core"], check=True, stdout=sys.stderr)
    sizes = {"0.4 M": 400_000} if quick else {"4.2 M": 4_200_000, "11.7 M": 11_700_000}
    rounds = 3 if quick else 5
    figures: list[Figure] = []
    with servers.temporary_folder() as folder:
        tls = self_made(folder / "tls")
        module = ROOT / "redis_module" / "build" / "tensors.so"
        with TlsRedisServer(folder / "redis", module=module, tls=tls) as server:
            plain, encrypted = connect_side(server, tls, encrypted=False), connect_side(server, tls, encrypted=True)
            for label, elements in sizes.items():
                local = [torch.randn(elements) for _ in range(VECTORS)]
                figures += measure_averaging(plain, encrypted, local, label, rounds)
                figures += measure_updating(plain, encrypted, local, label, rounds)
                if label == next(iter(sizes)):
                    figures += measure_moving(plain, local[0], rounds, "TCP") + measure_moving(
                        encrypted, local[0], rounds, "TLS"
                    )
                    figures += measure_answering(server, plain, local, label, seconds=1.0 if quick else 5.0)
            for each in (plain, encrypted):
                each.client.close()
                each.python.close()
    write("tensor_engine", figures)


if __name__ == "__main__":
    main()

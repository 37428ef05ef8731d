"""One exchange of one gradient among processes: AllReduce and ScatterReduce through Redis and S3, beside gloo's all_reduce in the same run.

    python -m benchmarks.exchange [--quick]      --quick: 4 processes, 0.4 M elements, few rounds: to see that it runs

Every process runs the architectures' own exchange code, on one thread. A round lasts from a common start to the last process's end; the
figures are ratios of medians, taken in turns. The database writes nothing to the disk here: computing and moving are compared, not syncing.
"""

import argparse
import multiprocessing
import queue
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from benchmarks.report import Figure, write
from crossover.experiment import Exchange as OneExchange
from crossover.experiment import Experiment, Storage
from crossover.local import servers
from crossover.local.servers import RedisServer
from crossover.stores import connecting
from crossover.stores.clients import MemoryClients
from crossover.stores.encoding import HEADER_BYTES, VectorKind
from crossover.stores.protocols import TensorStore, Traffic
from crossover.training.group import Group, GroupExchange
from crossover.training.long_worker import keys_of
from crossover.training.waits import Waits
from crossover.workflow.context import Context, Resources, RunConfiguration
from functions.all_reduce import AllReduce
from functions.scatter_reduce import ScatterReduce

ROOT = Path(__file__).parents[1]
EXCHANGES: dict[str, GroupExchange] = {"AllReduce": AllReduce(), "ScatterReduce": ScatterReduce()}
BUCKET = "exchange"
S3_ROUNDS = 2  # moto answers one request at a time
GOALS = {
    ("ScatterReduce", "Redis TCP"): "<= 3",
    ("AllReduce", "Redis TCP"): "<= 4",
    ("ScatterReduce", "Redis unix socket"): "<= 2",
}


@dataclass(frozen=True)
class Setting:
    """A group of processes and the size of their vectors. `workers`: number of processes; `elements`: float32 numbers of a vector; `label`:
    this number in words; `rounds`: number of timed rounds; `with_goal`: whether the figures have goals.
    """

    workers: int
    elements: int
    label: str
    rounds: int
    with_goal: bool


@dataclass(frozen=True)
class Channel:
    """A store through which vectors are exchanged. `name`: such as "Redis TCP"; `url`: address of Redis or of an S3 endpoint."""

    name: str
    url: str

    @property
    def is_s3(self) -> bool:
        """True if the channel is S3."""
        return self.url.startswith("http")


class OneStore(MemoryClients):
    """A provider of clients for a context that uses only a tensor store: every worker gets the store with which it was created."""

    def __init__(self, store: TensorStore) -> None:
        """Prepare clients that always return `store`."""
        super().__init__(workers=1)
        self._store = store

    def tensors(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorStore:
        """Return the store, whichever the experiment and worker. `traffic`: counts what the store moves, if the store supports that."""
        with_traffic = getattr(self._store, "with_traffic", None)
        return with_traffic(traffic) if with_traffic else self._store

    def hold_slot(self) -> AbstractContextManager[float]:
        """Return a context manager that does nothing and gives 0 seconds of waiting: there is no limit of concurrent workers."""
        return nullcontext(0.0)


def connect_store(channel: Channel, traffic: Traffic) -> TensorStore:
    """Return a tensor store connected to the channel. `traffic`: counts what the store moves."""
    if channel.is_s3:
        from crossover.stores.s3 import S3ObjectStore

        client = _s3_client(channel.url)
        return connecting.open_object_tensors(S3ObjectStore(BUCKET, traffic, client=client))
    return connecting.open_tensor_store(channel.url, time_to_live_s=3_600, traffic=traffic)


def _s3_client(address: str) -> Any:
    """Return a boto3 client for the local S3 at `address`."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id="local",  # moto takes any
        aws_secret_access_key="local",
    )


def build_context(channel: Channel, setting: Setting) -> tuple[Context, Traffic]:
    """Return (a workflow context whose tensor store is the channel, the traffic object that counts what the store moves)."""
    traffic = Traffic()
    storage = Storage(channel="s3" if channel.is_s3 else "redis")
    experiment = Experiment(
        name="exchange",
        architecture="all_reduce",
        workers=setting.workers,
        storage=storage,
        exchange=OneExchange(every=1),
    )
    resources = Resources(OneStore(connect_store(channel, traffic)))
    resources.facts["r"] = RunConfiguration(experiment, "", {"minibatches": 1}, setting.elements, 0, 0.0)
    ctx = Context(resources, run="r")
    return ctx, traffic if channel.is_s3 else ctx.traffic["tensor_store"]


def run_worker(
    rank: int,
    setting: Setting,
    channels: list[Channel],
    folder: Path,
    start: Barrier,
    results: "multiprocessing.Queue[Any]",
) -> None:
    """Run one worker in this process: make one exchange of each kind in turns, once to warm up and then `setting.rounds` times (through S3
    S3_ROUNDS times). Raises AssertionError if a mean of the warm-up is wrong. Puts (rank, seconds of each round by kind, (bytes sent, bytes
    received) in the last round by kind) into `results`. `rank`: number of the worker; `folder`: folder in which gloo's processes meet;
    `start`: barrier at which all workers start together.
    """
    torch.set_num_threads(1)
    own = torch.randn(setting.elements, generator=torch.Generator().manual_seed(rank))
    out, mixed = torch.empty_like(own), torch.empty_like(own)
    meeting = f"file://{folder / 'gloo'}"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=setting.workers)
    ways: dict[str, Callable[[int], Callable[[], None]]] = {"gloo": lambda round: lambda: _average_by_gloo(own, mixed)}
    traffics: dict[str, Traffic] = {}
    contexts = {channel.name: build_context(channel, setting) for channel in channels}
    for channel in channels:
        for name, exchange in EXCHANGES.items():
            ctx, traffics[f"{name}, {channel.name}"] = contexts[channel.name]
            ways[f"{name}, {channel.name}"] = _make_preparation(ctx, exchange, rank, setting, own, out)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    moved: dict[str, tuple[int, int]] = {}
    round = 0
    for turn in range(setting.rounds + 1):
        for name, prepare in ways.items():
            if turn > S3_ROUNDS and "S3" in name:
                continue
            round += 1
            run = prepare(round)
            before = _count_moved_bytes(traffics.get(name))
            start.wait()
            began_s = time.perf_counter()
            run()
            spent_s = time.perf_counter() - began_s
            after = _count_moved_bytes(traffics.get(name))
            start.wait()
            if turn:
                seconds[name].append(spent_s)
                moved[name] = (after[0] - before[0], after[1] - before[1])
            if name == "gloo":
                continue
            if turn == 0:
                _check_mean(out, mixed, setting)
            ctx, _ = contexts[name.partition(", ")[2]]
            exchange = EXCHANGES[name.partition(", ")[0]]
            ctx.tensors[0].delete(*keys_of(ctx.keys, exchange, round, rank, setting.workers))
    distributed.destroy_process_group()
    results.put((rank, seconds, moved))


def _average_by_gloo(own: Tensor, mixed: Tensor) -> None:
    """Set `mixed` to the mean of all processes' vectors `own`, by gloo's all_reduce. All processes must call it."""
    mixed.copy_(own)
    distributed.all_reduce(mixed)
    mixed.div_(distributed.get_world_size())


def _make_preparation(
    ctx: Context, exchange: GroupExchange, rank: int, setting: Setting, own: Tensor, out: Tensor
) -> Callable[[int], Callable[[], None]]:
    """Return a function that takes a round's number, prepares one exchange, and returns a function that makes the exchange. `ctx`: context
    with the store; `rank`: number of the worker; `own`: its vector; `out`: gets the mean.
    """
    waits = Waits(ctx, f"worker {rank}", 0, lambda round: False)

    def prepare(round: int) -> Callable[[], None]:
        """Create the group of workers for this round, and return a function that makes the exchange."""
        peers = Group(ctx, waits, rank, round, [64] * setting.workers, VectorKind.GRADIENT)
        return lambda: exchange.exchange(peers, own, out)

    return prepare


def _count_moved_bytes(traffic: Traffic | None) -> tuple[int, int]:
    """Return (bytes sent, bytes received) so far; (0, 0) if there is no store."""
    return (traffic.as_record()["bytes_out"], traffic.as_record()["bytes_in"]) if traffic else (0, 0)


def _check_mean(out: Tensor, mixed: Tensor, setting: Setting) -> None:
    """Raise AssertionError if the mean `out` differs from `mixed`, that of torch.distributed, by more than rounding errors."""
    if float((out - mixed).abs().max()) > 1e-6 * setting.workers:
        raise AssertionError("an exchange's mean differs from torch.distributed's")


def measure(setting: Setting, channels: list[Channel], folder: Path) -> list[Figure]:
    """Run one group of processes over all channels, and return the figures: median milliseconds of each kind of exchange, their ratio to
    gloo, and by how many bytes the worst worker's traffic differs from the expected number. `folder`: empty folder for the group. Raises
    RuntimeError if a process fails.
    """
    many = multiprocessing.get_context("fork")  # after the imports, before any torch operation: memory stays shared
    start, results = many.Barrier(setting.workers), many.Queue()
    group = [
        many.Process(target=run_worker, args=(rank, setting, channels, folder, start, results), daemon=True)
        for rank in range(setting.workers)
    ]
    for each in group:
        each.start()
    try:
        found = sorted((_wait_for_result(results, group) for _ in group), key=lambda result: int(result[0]))
    finally:
        for each in group:
            each.join(timeout=10)
            each.terminate()
    rounds = {
        name: [max(seconds[name][turn] for _, seconds, _ in found) for turn in range(len(first))]
        for name, first in found[0][1].items()
    }
    medians = {name: statistics.median(values) for name, values in rounds.items()}
    where = f"{setting.label}, {setting.workers} processes"
    figures = [Figure(f"gloo all_reduce, {where}", medians["gloo"] * 1_000, "ms")]
    for name, median in medians.items():
        if name == "gloo":
            continue
        exchange, _, channel = name.partition(", ")
        goal = GOALS.get((exchange, channel)) if setting.with_goal else None
        figures.append(Figure(f"{name}, {where}", median * 1_000, "ms"))
        figures.append(Figure(f"{name} / gloo, {where}", median / medians["gloo"], "x", goal))
        headers = HEADER_BYTES if "S3" in channel else 0
        worst = max(_count_excess_bytes(exchange, rank, moved[name], setting, headers) for rank, _, moved in found)
        figures.append(Figure(f"{name}: bytes beside the closed form, {where}", worst, "bytes", "<= 0"))
    return figures


def _wait_for_result(results: "multiprocessing.Queue[Any]", group: Sequence[BaseProcess]) -> Any:
    """Wait for the next result of a process, and return it. Raises RuntimeError if a process of the group has failed."""
    while True:
        failed = [each.exitcode for each in group if each.exitcode]
        if failed:
            raise RuntimeError(f"a process of the group ended with status {failed[0]}")
        with suppress(queue.Empty):
            return results.get(timeout=1)


def _count_excess_bytes(exchange: str, rank: int, moved: tuple[int, int], setting: Setting, header_bytes: int) -> int:
    """Return by how many bytes the traffic of a worker differs from the expected number, sent and received added up without their signs.
    `exchange`: "AllReduce" or "ScatterReduce"; `rank`: number of the worker; `moved`: (bytes sent, bytes received); `header_bytes`: bytes
    of header that the store adds to each vector.
    """
    size, others = 4 * setting.elements, setting.workers - 1
    if exchange == "AllReduce":
        puts, gets = (2, others) if rank == 0 else (1, 1)
        expected = (puts * size, gets * size)
    else:
        mine = 4 * (setting.elements // setting.workers + (rank < setting.elements % setting.workers))
        puts, gets = setting.workers, 2 * others
        expected = (size, others * mine + size - mine)
    return abs(moved[0] - expected[0] - puts * header_bytes) + abs(moved[1] - expected[1] - gets * header_bytes)


def main() -> None:
    """Measure every kind of exchange over every channel, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a small vector, few rounds: to see that it runs")
    quick: bool = parser.parse_args().quick
    subprocess.run(["make", "-s", "-C", str(ROOT / "redis_module"), "core"], check=True, stdout=sys.stderr)
    settings = [Setting(4, 400_000, "0.4 M", 3, True)]
    if not quick:
        sizes = (("3.2 M", 3_217_226), ("11.17 M", 11_173_962))
        settings = [Setting(w, elements, label, 7, True) for label, elements in sizes for w in (4, 8)]
        settings += [Setting(16, elements, label, 3, False) for label, elements in (*sizes, ("23.5 M", 23_520_842))]
    figures: list[Figure] = []
    with servers.temporary_folder() as folder:
        module = ROOT / "redis_module" / "build" / "tensors.so"
        with (
            RedisServer(folder / "redis", module=module, settings={"appendonly": "no"}) as server,
            LocalS3(folder) as endpoint,
        ):
            channels = [
                Channel("Redis TCP", server.url),
                Channel("Redis unix socket", server.socket_url),
                Channel("local S3", endpoint),
            ]
            for number, setting in enumerate(settings):
                own = folder / str(number)
                own.mkdir()
                slow = setting.elements * setting.workers > 50_000_000
                figures += measure(setting, channels[:2] if slow else channels, own)
    write("exchange", figures)


class LocalS3:
    """A context manager that runs moto's S3 server in a process of its own, with one bucket, and returns its address."""

    def __init__(self, folder: Path) -> None:
        """Prepare the server without starting it. `folder`: working directory, which gets its log."""
        self._folder = folder

    def __enter__(self) -> str:
        """Start the server on a free port, create the bucket, and return the server's URL. Raises RuntimeError if it does not answer within
        about 20 seconds.
        """
        from crossover.local.servers import find_free_port

        port = find_free_port()
        command = [str(Path(sys.executable).with_name("moto_server")), "-p", str(port)]
        with open(self._folder / "s3.log", "wb") as log:
            self._process = servers.start_process(command, folder=self._folder, output=log)
        address = f"http://127.0.0.1:{port}"
        client = _s3_client(address)
        for _ in range(200):
            try:
                client.create_bucket(Bucket=BUCKET)
                return address
            except Exception:
                time.sleep(0.1)
        servers.stop_process(self._process)
        raise RuntimeError(f"moto_server did not start; {self._folder / 's3.log'} says why")

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        servers.stop_process(self._process)


if __name__ == "__main__":
    main()

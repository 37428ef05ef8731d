"""Clients of a run in this process: what it stores lies in memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from crossover import runtime
from crossover.clients.pools import Pool
from crossover.clients.protocol import Event
from crossover.dataplane.connecting import object_tensors
from crossover.dataplane.fetch_compute import FetchCompute
from crossover.dataplane.memory import MemoryObjectStore, MemoryTensorStore
from crossover.dataplane.memory_bus import MemoryMessageBus
from crossover.dataplane.protocols import MessageBus, ObjectStore, TensorCompute, TensorStore
from crossover.dataplane.traffic import Traffic
from crossover.errors import RunFailed
from crossover.experiment import Experiment


class MemoryClients:
    """Memory stores for a run in this process. Once it is stopped nobody gets a client or a slot any more: its steps end where they begin,
    and its programs before they compute. `slots`: how many of them compute at a time, one for each core unless said: a training step may
    hold gigabytes, and SPIRT has a function for every minibatch of every worker.
    """

    def __init__(self, *, workers: int, shared_tensors: bool = False, slots: int = 0) -> None:
        self.object_store = MemoryObjectStore(Traffic())
        self.shared_tensors = shared_tensors
        count = 1 if shared_tensors else workers
        self.tensor_stores = [MemoryTensorStore(Traffic()) for _ in range(count)]
        self.message_bus = MemoryMessageBus(Traffic())
        self.run_machine: Callable[[str, Event], Event] = _nobody_runs_machines
        self._stopped = runtime.event()
        self._slots = Pool(slots or os.cpu_count() or 1)

    def stop(self) -> None:
        """End the run; what it has stored stays."""
        self._stopped.set()

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise RunFailed("the run was stopped")

    def objects(self, traffic: Traffic) -> ObjectStore:
        self._go_on()
        return self.object_store.beside(traffic)

    def data(self, worker: int, traffic: Traffic) -> ObjectStore:
        return self.objects(traffic)

    def through_objects(self, experiment: Experiment) -> bool:
        return experiment.storage.channel == "s3" and self.shared_tensors

    def tensors(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorStore:
        self._go_on()
        if self.through_objects(experiment):
            return object_tensors(self.objects(traffic))
        return self.tensor_stores[worker % len(self.tensor_stores)].beside(traffic)

    def compute(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorCompute:
        return FetchCompute(self.tensors(experiment, worker, traffic))

    def bus(self, traffic: Traffic) -> MessageBus:
        self._go_on()
        return self.message_bus.beside(traffic)

    @contextmanager
    def slot(self) -> Iterator[float]:
        """To compute; yields the seconds it was waited for."""
        began_s = runtime.monotonic()
        with self._slots.place():
            self._go_on()
            yield runtime.monotonic() - began_s


def _nobody_runs_machines(name: str, event: Event) -> Event:
    raise AssertionError("whoever starts programs says how their machines run: `run_machine`")

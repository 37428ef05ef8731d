"""What `crossover/context` asks of whoever makes its clients: memory.py for a run in this process, deployed.py for all others."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

from crossover.dataplane.protocols import MessageBus, ObjectStore, TensorCompute, TensorStore
from crossover.dataplane.traffic import Traffic
from crossover.experiment import Experiment

Event = dict[str, Any]  # the state that travels from step to step; crossover/workflow.py says what it consists of


class Clients(Protocol):
    """How clients are made: by the deployment's environment, or in memory. Each counts into the traffic it is given."""

    def objects(self, traffic: Traffic) -> ObjectStore: ...
    def data(self, worker: int, traffic: Traffic) -> ObjectStore: ...
    def through_objects(self, experiment: Experiment) -> bool:
        """Whether vectors lie in the object store, whose requests theirs then are."""

    def tensors(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorStore: ...
    def compute(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorCompute: ...
    def bus(self, traffic: Traffic) -> MessageBus: ...
    def run_machine(self, name: str, event: Event) -> Event:
        """Run the architecture's machine `name` to its end: in Step Functions, or the tree in this process."""

    def slot(self) -> AbstractContextManager[float]:
        """A share of this machine's cores, around computing; yields the seconds waited for it. On AWS there is nothing to wait for."""

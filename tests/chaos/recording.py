"""What every step asks for, as its requests go over the wire: recorded from the real code in a world where nothing goes wrong and nothing
takes time, so that nobody waits and asks in vain.

Bytes are affine in the model's parameters and buffers: recordings of vectors of a few elements tell what any size moves.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from crossover.errors import RunFailed
from crossover.experiment import Experiment
from crossover.learning.batches import Batch
from crossover.learning.learner import Evaluation
from crossover.simulation.calibration import PURE_COMPUTE
from crossover.simulation.kernel import Tally
from crossover.stores.keys import Keys
from tests.chaos.world.kernel import Process
from tests.chaos.world.learner import ExactLearner
from tests.chaos.world.world import Nothing, VirtualCall, VirtualWorld

# The wire's requests by the data plane's words; others are of connections.
_WORDS: Mapping[str, str] = {
    "GetObject": "get",
    "PutObject": "put",
    "HeadObject": "exists",
    "DeleteObjects": "delete",
    "ListObjectsV2": "list",
    "TENSOR.GET": "get",
    "AI.TENSORSET": "create",
    "EVAL": "rename",
    "EXISTS": "exists",
    "UNLINK": "delete",
}
_LOSS, _METRIC = 0.12345678901234567, 0.9012345678901234
CHANNELS = {"s3": "objects", "redis": "tensors", "rabbitmq": "bus"}
# What an environment reads once, and what an invocation says of itself.
_ITS_OWN = (
    "runs//experiment.json",
    "runs//marks/",
    "runs//lease/",
    "runs//heartbeat/",
    "runs//left/",
    "runs//failure/",
    "fleet/",
)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One recorded request. `key`: the first key that it names, without the run's name, "" if it names none; `server`: number of the server
    among those of its service; `up`, `down`: bytes of payload sent and received; `vain`: whether it asked for something that did not exist.
    """

    service: str
    operation: str
    server: int
    key: str
    up: int
    down: int
    vain: bool


@dataclass
class RecordedInvocation:
    """One invocation of a step, or one epoch of a program: its requests in order, and the record that it wrote."""

    requests: list[RecordedRequest]
    record: dict[str, Any]

    def tally(self) -> Tally:
        """Return the recorded requests and bytes, counted as the simulator's scripts count them. Left out are requests that the simulator
        does not count, such as leases, polls of barriers, requests to AWS's own APIs, and requests for things that do not exist.
        """
        found, made = Tally(), set[str]()
        for asked in self.requests:
            if asked.vain or asked.key.startswith(_ITS_OWN) or asked.operation == "connect":
                continue
            if asked.service == "aws" or (asked.key == "runs//finished" and self.record["step"] != "collect"):
                continue  # programs look for the end of the run all the time
            up, down = asked.up, asked.down
            if asked.service == "rabbitmq":
                mailbox = ".mailbox" in asked.key
                match asked.operation:
                    case "basic.publish":
                        found.count("bus", "replace" if mailbox else "arrive", out=up)
                    case "basic.get" if mailbox:
                        found.count("bus", "peek", into=down)
                    case "queue.declare" | "queue.delete":
                        made.add("declare" if asked.operation == "queue.declare" else "remove")
            else:
                word = _WORDS.get(asked.operation) or asked.operation.rpartition(".")[2].lower()
                found.count(CHANNELS[asked.service], word, into=down, out=up)
        for word in made:  # of several queues at once
            found.count("bus", word)
        return found


@dataclass
class Recorder(Nothing):
    """A nemesis that causes no faults but records all requests. `invoked`: invocations in the order in which they ended."""

    invoked: list[RecordedInvocation] = field(default_factory=list)
    _world: VirtualWorld | None = None
    _under_way: dict[Process, list[RecordedRequest]] = field(default_factory=dict)

    def began(self, world: VirtualWorld) -> None:
        """Remember the world."""
        self._world = world

    def after(self, call: VirtualCall) -> None:
        """Record a request with its reply. The write of an invocation's record ends that invocation."""
        assert self._world is not None
        run, key = self._world.client.run, call.request.keys[0] if call.request.keys else ""
        if run and key.startswith(Keys(run).records):
            record = json.loads(self._world.servers.bucket.objects[key])
            self.invoked.append(RecordedInvocation(self._under_way.pop(call.process, []), record))
            return
        self._under_way.setdefault(call.process, []).append(_record_request(self._world, call))


def _record_request(world: VirtualWorld, call: VirtualCall) -> RecordedRequest:
    """Return the request `call` and its reply as a RecordedRequest."""
    request, run = call.request, world.client.run
    key = request.keys[0] if request.keys else ""
    down, vain = _measure_reply(call)
    shown = key.replace(run, "", 1) if run else key
    return RecordedRequest(request.service, request.operation, request.server, shown, request.bytes_out, down, vain)


def _measure_reply(call: VirtualCall) -> tuple[int, bool]:
    """Return (bytes of the reply's payload, whether the request asked for something that does not exist); only reads have a payload, all
    others give (0, False).
    """
    match call.request.operation:
        case "GetObject" | "TENSOR.GET":
            return call.bytes_in, call.reply is None
        case "basic.get":
            return (0, True) if call.reply is None else (len(call.reply[1].body), False)
    return 0, False


class ConstantLearner(ExactLearner):
    """A learner whose losses and metrics always have equally many digits, so that recorded sizes do not vary. `share`: share of the
    gradient's coordinates that are not 0.
    """

    share = 1.0

    def initialise_model(self) -> memoryview:
        """Set all values of the model to 0.5, and return it."""
        self._model.fill_(0.5)
        return self.model

    def compute_gradient(self, batch: Batch, *, epoch: int, round: int, worker: int, minibatch: int) -> float:
        """Set the gradient to 0.25 in the first `share` of the parameters and to 0 in the others, and return a constant loss."""
        self._gradient.fill_(0.25)
        self._gradient[int(self.share * self.parameters) : self.parameters] = 0.0
        return _LOSS

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        """Return the evaluation with a constant loss and metric."""
        return replace(super().evaluate(batches), loss=_LOSS, metric=_METRIC)


@dataclass
class _AtOnce(VirtualWorld):
    """A world in which nothing takes time, with a `ConstantLearner`. `share`: share of a gradient's coordinates that are not 0."""

    share: float = 1.0

    def spread(self, seconds: float) -> float:
        """Return 0 seconds."""
        return 0.0

    def _learner(self, experiment: Experiment, manifest: Mapping[str, Any]) -> Any:
        """Return a `ConstantLearner` with the share of this world."""
        learner = ConstantLearner(experiment, sizes=self.sizes)
        learner.share = self.share
        return learner


def record_run(
    experiment: Experiment, *, sizes: tuple[int, int], seed: int = 2, minibatches: int = 2, share: float = 1.0
) -> list[RecordedInvocation]:
    """Run the experiment in a world in which nothing goes wrong and nothing takes time, and return all its invocations, in the order in
    which they ended.

    `sizes`: the model's number of parameters and buffers; `minibatches`: number per worker; `share`: share of a gradient's coordinates that
    are not 0. Raises RunFailed if the run fails.
    """
    recorder = Recorder()
    world = _AtOnce(
        experiment,
        seed,
        recorder,
        minibatches=minibatches,
        minibatch_s=0.0,
        calibration=PURE_COMPUTE,
        sizes=sizes,
        share=share,
    )
    outcome = world.run()
    if outcome.failure:
        raise RunFailed(f"undisturbed, on a virtual clock: {outcome.failure}")
    return recorder.invoked

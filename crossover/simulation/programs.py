"""Programs on instances: peers and GPU workers, one process each, in the order of crossover/training/peer/algorithm.py. What they start is
walked like any tree.
"""

from math import inf

from crossover.algorithms import compression
from crossover.costs import paper_cost
from crossover.costs.prices import Prices
from crossover.simulation.figures import UNKNOWN_INSTANCE
from crossover.simulation.kernel import Process
from crossover.simulation.p2p_serverless import averaging
from crossover.simulation.spirt import ARRIVAL_BYTES, OUTCOME_BYTES, decision_bytes, moved_on, optimizer_vectors
from crossover.simulation.usage import Place
from crossover.simulation.walk import Walk
from crossover.simulation.workload import VECTOR_HEADER_BYTES
from crossover.simulation.world import Invocation, Model, World
from crossover.workflow import Step
from crossover.workflow import walk as nodes_of

MODELS = dict[str, Model]()  # programs of peers/ alone have no steps
MESSAGE_BYTES = 160  # what stands around a gradient in a mailbox
CHECKPOINT_BYTES = 150


def run(world: World, walk: Walk) -> Process:
    """One process per worker, until the last is through."""
    yield world.env.all_of([world.env.process(_Peer(world, walk, rank).train()) for rank in range(world.workers)])


class _Peer:
    """One peer, or one GPU's worker."""

    def __init__(self, world: World, walk: Walk, rank: int) -> None:
        self.world, self.walk, self.rank = world, walk, rank
        program = world.architecture.program
        assert program is not None
        self.gpu, self.step = program.count == "gpus", program.step
        self.instance_type = world.experiment.gpu.instance_type if self.gpu else world.experiment.p2p.instance_type
        known = world.calibration.instances.get(self.instance_type, UNKNOWN_INSTANCE)
        self.network_bytes_s = known.bytes_s or inf
        network = {"burst_bytes": 0.0, "floor_bytes_s": self.network_bytes_s}
        self.objects = world.calibration.instance_objects.at(**network)
        broker = world.experiment.network.broker_instance_type
        self.bus = world.calibration.on_host(world.calibration.instance_bus, broker).at(**network)
        self.luck, self.round = world.luck[rank], 0
        self.checkpoint_every = world.experiment.functions.checkpoint_every if self.gpu else 1
        self.exchange = self._gathering if self.gpu else self._mailboxes
        self.invocation = Invocation(0.0, 0.0)

    def train(self) -> Process:
        world, days = self.world, self.world.days
        use = world.usage.of(self.step, memory_mb=0)
        for epoch in range(1, days.epochs + 1):
            place = Place(worker=self.rank)
            moved_on(world, place, self.round)
            entered = place.copy()
            self.invocation = invocation = Invocation(world.env.now, float("inf"))
            for _ in range(days.rounds_per_epoch):
                yield from self._round(place)
                self.round += 1
                moved_on(world, place, self.round)
            yield from self._timed("convergence detection", self._convergence(epoch))
            world.state.setdefault("seconds", []).append(invocation.stages["compute gradients"][0])
            world.usage.add(
                use,
                entered,
                started_at=invocation.started_at,
                wall_s=world.env.now - invocation.started_at,
                init_s=0.0,
                cold=False,
                tally=invocation.tally,
                stages=invocation.as_stages(),
                notes={"instance_type": self.instance_type},
            )

    def _timed(self, stage: str, process: Process) -> Process:
        began = self.world.env.now
        yield from process
        self.invocation.spent(stage, self.world.env.now - began)

    def _wait(self, seconds: float) -> Process:
        if seconds > 0:
            yield self.world.env.timeout(seconds)

    def _round(self, place: Place) -> Process:
        world = self.world
        machines = world.architecture.machines
        yield from self._timed("compute gradients", self._by_functions(place) if machines else self._itself(place))
        yield from self.exchange()
        yield from self._timed("model update", self._update())
        yield from self._timed("checkpoint", self._checkpoint())

    # --- computing ----------------------------------------------------------------------------------------------------

    def _itself(self, place: Place) -> Process:
        """Batches one after another; a GPU's worker fetches the next one meanwhile."""
        world, workload, seconds, left_s = self.world, self.world.workload, 0.0, 0.0
        first = world.days.first_minibatch(self.round)
        for samples in workload.samples[first : first + place.minibatches]:
            batch = workload.batch_bytes(samples)
            self.invocation.tally.count("objects", "get", into=batch)
            fetch_s = self.objects.read.seconds(batch) * self.luck.request()
            if self.gpu:
                compute_s = world.calibration.on_gpu(world.experiment, workload, samples) * self.luck.compute()
                ahead_s = 0.0 if self.round == 0 and left_s == 0.0 else compute_s
                seconds, left_s = seconds + compute_s + max(0.0, fetch_s - ahead_s), compute_s
            else:
                compute_s = world.calibration.on_instance(world.experiment, workload, samples) * self.luck.compute()
                seconds += fetch_s + compute_s
        yield from self._wait(seconds)

    def _by_functions(self, place: Place) -> Process:
        """The model to the object store, an execution for the gradients, then their average, here or by functions again."""
        world, tally, size = self.world, self.invocation.tally, self.world.workload.vector_bytes
        tally.count("objects", "put", out=size + VECTOR_HEADER_BYTES)
        yield from self._wait(self.objects.write.seconds(size + VECTOR_HEADER_BYTES) * self.luck.request())
        yield from self._machine("gradients", place)
        count, by_functions = place.minibatches, world.experiment.p2p.average_in == "lambda"
        if by_functions:
            yield from self._machine("averages", place)
        requests = averaging(world, place) if by_functions else count
        bytes_ = (size if by_functions else count * size) + requests * VECTOR_HEADER_BYTES
        tally.count("objects", "get", requests, into=bytes_)
        seconds = self.objects.read.seconds(bytes_, requests) * self.luck.request()
        yield from self._wait(seconds + world.calibration.arithmetic_s(bytes_ + size))

    def _machine(self, name: str, place: Place) -> Process:
        yield from self._wait(self.world.calibration.child_s)
        yield from self.walk.run(self.world.architecture.machines[name], place.copy(), last=True)

    # --- exchanging ---------------------------------------------------------------------------------------------------

    def _mailboxes(self) -> Process:
        """RabbitMQ: the own gradient into its mailbox, a barrier, everybody else's out of theirs; large ones through the object store."""
        world, calibration, tally, workers = (
            self.world,
            self.world.calibration,
            self.invocation.tally,
            self.world.workers,
        )
        body = self._message_bytes()
        through_objects = body > world.experiment.p2p.message_limit_mb * 2**20
        in_mailbox = MESSAGE_BYTES if through_objects else body + MESSAGE_BYTES
        tally.count("bus", "replace", out=in_mailbox).count("bus", "arrive", out=ARRIVAL_BYTES)
        asynchronous = world.experiment.p2p.mode == "asynchronous"

        def send() -> Process:
            if through_objects:
                tally.count("objects", "put", out=body)
                yield from self._wait(self.objects.write.seconds(body) * self.luck.request())
            start = world.broker.ingress.reserve(world.env.now, in_mailbox)
            seconds = self.bus.write.seconds(in_mailbox, 2) * self.luck.request()
            yield from self._wait(start - world.env.now + seconds + calibration.mailbox_s)
            world.gate("arrived", self.round).arrive(world.env, self.rank)

        def receive() -> Process:
            if not asynchronous:
                yield from world.gate("arrived", self.round).wait()
                tally.count("bus", "arrived")
            others = workers - 1
            tally.count("bus", "peek", others, into=others * in_mailbox)
            start = world.broker.egress.reserve(world.env.now, others * in_mailbox)
            seconds = self.bus.read.seconds(others * in_mailbox, others + 1)
            if through_objects:
                tally.count("objects", "get", others, into=others * body)
                seconds += self.objects.read.seconds(others * body, others)
            if self.round and through_objects:
                tally.count("objects", "delete")
                seconds += self.objects.write.latency_s
            combine_s = calibration.arithmetic_s((workers + 1) * world.workload.vector_bytes)
            yield from self._wait(
                start - world.env.now + seconds * self.luck.request() + others * calibration.mailbox_s + combine_s
            )
            world.forget("arrived", self.round - 2)

        yield from self._timed("send", send())
        yield from self._timed("receive", receive())

    def _message_bytes(self) -> int:
        p2p, workload = self.world.experiment.p2p, self.world.workload
        code = compression.named(p2p.compression, bits=p2p.bits, bucket=p2p.bucket, norm=p2p.norm)
        return code.nbytes(workload.parameters) + 4 * workload.buffers + VECTOR_HEADER_BYTES

    def _gathering(self) -> Process:
        """The object store: the own gradient in, every other one out as it comes."""
        world, tally = self.world, self.invocation.tally
        body, others = world.workload.vector_bytes + VECTOR_HEADER_BYTES, world.workers - 1
        distributed = world.experiment.gpu.exchange == "distributed"

        def send() -> Process:
            if not distributed:
                tally.count("objects", "put", out=body)
                yield from self._wait(self.objects.write.seconds(body) * self.luck.request())
            world.gate("shown", self.round).arrive(world.env, self.rank)

        def receive() -> Process:
            gate, began = world.gate("shown", self.round), world.env.now
            if distributed:  # a ring: twice the vector, whatever the workers
                yield from gate.wait()
                # From instance to instance; as to a store where their network is not known.
                rate = self.objects.read.bytes_s if self.network_bytes_s == inf else self.network_bytes_s
                yield from self._wait(2 * body * others / max(1, world.workers) / rate)
                return
            tally.count("objects", "get", others, into=others * body)
            each_s = self.objects.read.seconds(body) * self.luck.request()
            waits = not gate.open
            yield from gate.wait()
            end = began + others * each_s
            if waits:  # the last one to show its gradient holds up its own fetch and those behind it
                before = gate.last - int(gate.last > self.rank)
                end = max(end, world.env.now + (others - before) * each_s)
            combine_s = world.calibration.arithmetic_s((others + 2) * body)
            yield from self._wait(end - world.env.now + combine_s)
            world.forget("shown", self.round - 2)

        yield from self._timed("send", send())
        yield from self._timed("receive", receive())

    # --- after the exchange -------------------------------------------------------------------------------------------

    def _update(self) -> Process:
        kept = optimizer_vectors(self.world)
        yield from self._wait(self.world.calibration.arithmetic_s((3 + 2 * kept) * self.world.workload.vector_bytes))

    def _checkpoint(self) -> Process:
        """Each `checkpoint_every` rounds; then what computing left in stores goes."""
        world, tally = self.world, self.invocation.tally
        if (self.round + 1) % self.checkpoint_every:
            return
        kept = optimizer_vectors(world)
        bytes_ = (
            world.workload.vector_bytes
            + kept * 4 * world.workload.parameters
            + (1 + kept) * VECTOR_HEADER_BYTES
            + CHECKPOINT_BYTES
        )
        tally.count("objects", "put", out=bytes_)
        saved = (self.round + 1) // self.checkpoint_every
        deletes = int(saved > 2) + int(bool(world.architecture.machines))
        tally.count("objects", "delete", deletes)
        yield from self._wait(self.objects.write.seconds(bytes_, 1 + deletes) * self.luck.request())

    def _convergence(self, epoch: int) -> Process:
        """Evaluate, unless a peer has; all follow the decision that was created first."""
        world, workload, tally = self.world, self.world.workload, self.invocation.tally
        said = decision_bytes(epoch)
        tally.count("objects", "exists").count("objects", "get", into=said)
        if epoch in world.epochs_end_s:
            yield from self._wait(2 * self.objects.read.latency_s)
            yield from self._conclude(epoch)
            return
        chunks = workload.validation_chunks
        tally.count("objects", "get", chunks, into=workload.validation_bytes).count("objects", "put", out=said)
        if epoch > 1:
            tally.count("objects", "get", into=decision_bytes(epoch - 1))
        on = world.calibration.on_gpu if self.gpu else world.calibration.on_instance
        compute_s = world.calibration.evaluate_share * on(world.experiment, workload, workload.validation_samples)
        requests_s = self.objects.read.seconds(workload.validation_bytes, chunks + 3) + self.objects.write.latency_s
        yield from self._wait(requests_s + compute_s * self.luck.compute())
        world.epoch_ended(epoch)
        yield from self._conclude(epoch)

    def _conclude(self, epoch: int) -> Process:
        """The trained model to the object store, by whoever is first."""
        world, size = self.world, self.world.workload.vector_bytes + VECTOR_HEADER_BYTES
        if epoch < world.days.epochs:
            return
        self.invocation.tally.count("objects", "exists")
        seconds = self.objects.read.latency_s
        if not world.state.setdefault("concluded", False):
            world.state["concluded"] = True
            self.invocation.tally.count("objects", "put", 2, out=size + OUTCOME_BYTES)
            seconds += self.objects.write.seconds(size + OUTCOME_BYTES, 2)
        yield from self._wait(seconds)


def paper_usd(world: World, prices: Prices) -> float:
    """The 2023 paper's equations, from each peer's and epoch's computation time."""
    instance_type = world.experiment.p2p.instance_type
    known = paper_cost.PEER_USD_PER_S.get(instance_type)
    ec2 = known or prices.of(f"ec2.{instance_type}").usd / 3_600
    machine_steps = [
        node for machine in world.architecture.machines.values() for node in nodes_of(machine) if isinstance(node, Step)
    ]
    functions = [world.usage.steps[step.name] for step in machine_steps if step.name in world.usage.steps]
    invocations = sum(use.invocations for use in functions)
    peer_epochs = world.workers * world.days.epochs
    per_s = sum(use.invocations * paper_cost.lambda_usd_per_s(use.memory_mb) for use in functions) / max(1, invocations)
    return sum(
        paper_cost.peer_serverless_usd(
            seconds, batches=invocations // peer_epochs, lambda_usd_per_s=per_s, ec2_usd_per_s=ec2
        )
        for seconds in world.state.get("seconds", [])
    )

"""Programs on instances: peers and GPU workers, one process each, in the order of crossover/training/peer.py.

The state machines that they start are walked like any tree.
"""

from collections.abc import Mapping
from functools import cached_property
from math import inf

from crossover.reports import bill
from crossover.reports.prices import Prices
from crossover.simulation.figures import UNKNOWN_INSTANCE
from crossover.simulation.kernel import SimProcess, WhereInRun
from crossover.simulation.mirror.lambdaml import CODEC_PASSES, codec_state_bytes, exchange_sizes
from crossover.simulation.mirror.p2p_serverless import count_averaging_functions, function_input_bytes
from crossover.simulation.mirror.spirt import (
    DECISION_BYTES,
    count_optimizer_vectors,
    count_outer_vectors,
    move_to_round,
)
from crossover.simulation.walk import Walk
from crossover.simulation.workload import VECTOR_HEADER_BYTES, Workload
from crossover.simulation.world import Model, SimulatedInvocation, World
from crossover.training.checkpoints import CheckpointPace
from crossover.workflow import Step
from crossover.workflow import walk as nodes_of

MODELS = dict[str, Model]()  # programs of peers/ alone have no steps
DISK_SHARE = 0.5  # of a disk that data may take, as crossover/stores/local_copies.py does
KEPT_BODIES = {"synchronous": 1, "asynchronous": 3}  # rounds for which a gradient in the object store is kept
MOST_ROUNDS = 300  # of an epoch: up to here every round is simulated
SAMPLED_ROUNDS = 160  # of a longer epoch of a single worker: those after them take the mean of these


def run(world: World, walk: Walk) -> SimProcess:
    """Simulate a fleet of programs, as a simpy process that starts one process per worker and ends with the last of them. `walk`:
    interpreter of the state machines that the programs start.
    """
    yield world.env.all_of(
        [world.env.process(SimulatedPeer(world, walk, rank).train()) for rank in range(world.workers)]
    )


class SimulatedPeer:
    """One simulated program on an EC2 instance: a peer, a GPU worker, or a single worker. `rank`: its number; `round`: the round that it
    trains next; `ahead`: whether it fetches the next minibatch while it computes, as all but peers do; `invocation`: its usage since the
    last decision.
    """

    def __init__(self, world: World, walk: Walk, rank: int) -> None:
        """Prepare a program. `walk`: interpreter of the state machines that it starts; `rank`: its number, from 0."""
        self.world, self.walk, self.rank = world, walk, rank
        architecture = world.architecture
        program = architecture.program
        assert program is not None
        asked = program.instances(world.experiment)
        self.gpu, self.step, self.instance_type = asked.gpu, program.step, asked.instance_type
        known = world.calibration.instances.get(self.instance_type, UNKNOWN_INSTANCE)
        self.network_bytes_s = known.bytes_s or inf
        network = {"burst_bytes": 0.0, "floor_bytes_s": self.network_bytes_s}
        self.objects = world.calibration.instance_objects.for_client(**network)
        broker = world.experiment.network.broker_instance_type
        self.bus = world.calibration.limit_by_host(world.calibration.instance_bus, broker).for_client(**network)
        self.factors, self.round = world.factors[rank], 0
        self.ahead = not program.uses_bus
        self.checkpoint_every = 1 if program.uses_bus else world.experiment.functions.checkpoint_every
        # A single program reads each object once, if its disk has room for them, and the time decides when it saves.
        alone = architecture.alone
        self.steps_on_gpu = alone and self.gpu  # model and optimizer are in its memory; otherwise on the processor
        self.pace = CheckpointPace(self.checkpoint_every, lambda: world.env.now) if alone else None
        self.keeps_data = alone and world.workload.data_bytes <= DISK_SHARE * asked.volume_gb * 10**9
        self.saved, self.on_disk = 0, 0  # checkpoints; the first so many minibatches
        self._fetches = dict[int, float]()  # by samples: many thousand times the same
        self.exchange = self._exchange_by_mailboxes if program.uses_bus else self._exchange_by_objects
        self.invocation = SimulatedInvocation(0.0, inf)

    def train(self) -> SimProcess:
        """Simulate the whole program, as a simpy process, from its start to its end. Its usage is added to the run's after each decision,
        as one invocation.
        """
        world, days = self.world, self.world.days
        use = world.usage.for_step(self.step, memory_mb=0)
        yield from self._start()
        for number in range(1, days.decisions + 1):
            place = WhereInRun(worker=self.rank)
            move_to_round(world, place, self.round)
            entered = place.copy()
            invocation = self.invocation
            invocation.started_at = world.env.now
            until = days.rounds_until(days.epoch_of_decision(number))
            if world.architecture.alone:
                self._run_rounds_alone(until)
            while self.round < until:
                yield from self.run_round(place)
                self.round += 1
                move_to_round(world, place, self.round)
            yield from self._measure("convergence detection", self._agree_after_epoch(days.epoch_of_decision(number)))
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
            self.invocation = SimulatedInvocation(0.0, inf)

    def _start(self) -> SimProcess:
        """Simulate the program's start, as a simpy process: read the base weights if there are any, ask whether the run has ended and for
        an earlier checkpoint, create mailboxes if it uses the bus.
        """
        tally, mailboxes = self.invocation.tally, not self.ahead
        tally.count("objects", "exists", 1 + mailboxes).count("objects", "list").count("bus", "declare", mailboxes)
        if base_bytes := self.world.workload.base_bytes:
            tally.count("objects", "get", into=base_bytes)
            yield from self._wait(
                self.objects.read.seconds(base_bytes) + self.world.calibration.arithmetic_s(base_bytes)
            )
        yield from self._wait((2 + mailboxes) * self.objects.read.latency_s + mailboxes * self.bus.write.latency_s)

    def _measure(self, stage: str, process: SimProcess) -> SimProcess:
        """Run the simpy process `process` to its end, and add the simulated seconds that it takes to `stage`."""
        began = self.world.env.now
        yield from process
        self.invocation.add_seconds(stage, self.world.env.now - began)

    def _wait(self, seconds: float) -> SimProcess:
        """Let `seconds` of simulated time pass, as a simpy process; return at once if they are not positive."""
        env = self.world.env
        if seconds > 0 and not env.skip(seconds):
            yield env.timeout(seconds)

    def run_round(self, place: WhereInRun) -> SimProcess:
        """Simulate one round of this program, one of several, as a simpy process: gradients, exchanges with the other programs, model
        update, checkpoint. The caller then raises `round`.
        """
        world = self.world
        machines = world.architecture.machines
        yield from self._measure(
            "compute gradients", self._compute_by_functions(place) if machines else self._compute_here(place)
        )
        yield from self._run_exchanges()
        yield from self._measure("model update", self._update_model())
        yield from self._measure("checkpoint", self._save_checkpoint())

    def _run_rounds_alone(self, until: int) -> None:
        """Simulate the rounds of a single worker from its present one up to the round `until`, which ends an epoch and is not simulated
        here. Nothing else happens in such a run, so the time is only moved on, without simpy's processes, at a fifth of the cost. Of more
        than MOST_ROUNDS rounds with equal minibatches, only the first SAMPLED_ROUNDS and the last two are simulated, and those between are
        added by `_skip_rounds`. Raises RuntimeError if anything else is due meanwhile.
        """
        began, alike = self.round, len(set(self.world.workload.samples[:-1])) <= 1
        sampled = until - began if until - began <= MOST_ROUNDS or not alike else SAMPLED_ROUNDS
        spent = dict[str, float]()
        while self.round < began + sampled:
            self._run_round_alone()
            if self.round == began + 1:  # which reads what others do not
                spent = self._stage_seconds()
        if self.round < until:
            each_s = {
                stage: (seconds - spent.get(stage, 0.0)) / (sampled - 1)
                for stage, seconds in self._stage_seconds().items()
                if stage != "checkpoint"
            }
            self._skip_rounds(until - 2 - self.round, each_s)
        while self.round < until:
            self._run_round_alone()

    def _stage_seconds(self) -> dict[str, float]:
        """Return the seconds of this program since the last decision by stage."""
        return {stage: seconds for stage, (seconds, _) in self.invocation.stages.items()}

    def _run_round_alone(self) -> None:
        """Simulate the next round of a single worker, whose number is raised. Raises RuntimeError as `_run_rounds_alone` does."""
        world, days, factors, pace = self.world, self.world.days, self.factors, self.pace
        assert pace is not None
        workload, minibatches, epoch = world.workload, days.minibatches, days.epoch(self.round)
        end, reads = (epoch - days.epochs_before(self.round)) * minibatches, not (self.keeps_data and epoch > 1)
        first, seconds = self.round % days.rounds_per_epoch * days.sync_every, 0.0
        numbers = range(first, min(first + days.sync_every, end))
        for at in numbers:
            begins, samples = self.round == 0 and at == first, workload.samples[at % minibatches]
            if self.on_disk < minibatches:
                self._count_batches(at % minibatches, first=begins, last=at == numbers[-1])
            fetch_s = self._fetch_s(samples) * factors.draw_request_factor()
            compute_s = self._gradient_s(samples) * factors.draw_compute_factor()
            late_s = max(0.0, reads * fetch_s - (0.0 if begins else compute_s))
            seconds = seconds + compute_s + late_s
        self._spend_alone("compute gradients", seconds)
        for stage, each_s in self._exchange_alone_s:
            self._spend_alone(stage, each_s)
        began = world.env.now
        if self.round and days.ends_epoch(self.round - 1):
            self._run_alone(self._read_results())
        self._spend_alone("model update", self._update_s, began)
        began = world.env.now
        if pace.is_due(self.round + 1):
            self._run_alone(self._save_checkpoint())
        self._spend_alone("checkpoint", 0.0, began)
        self.round += 1

    @cached_property
    def _exchange_alone_s(self) -> list[tuple[str, float]]:
        """Stages of a single worker between its gradients and its update, as (name, seconds): compression, and the arithmetic that replaces
        each exchange.
        """
        world, travel, whole = self.world, exchange_sizes(self.world), self.world.workload.vector_bytes
        compresses = world.experiment.exchange.compression != "none"
        compress_s = world.calibration.arithmetic_s(CODEC_PASSES * whole)
        receive_s = [self._arithmetic_s(2 * (whole if len(travel) == 1 else up)) for up, _ in travel]
        return [*([("compress", compress_s)] if compresses else []), *(("receive", each_s) for each_s in receive_s)]

    def _run_alone(self, process: SimProcess) -> None:
        """Run to its end, outside simpy, a simpy process of a single worker that never has to wait. Raises RuntimeError if it yields, i.e.
        has to wait.
        """
        for _ in process:
            raise RuntimeError("a single worker waits for another one")

    def _spend_alone(self, stage: str, seconds: float, began: float | None = None, *, times: int = 1) -> None:
        """Let `seconds` of simulated time pass, none if they are not above 0, and add all seconds since the simulated time `began` to the
        stage. `began`: by default the time of the call; `times`: how often the stage took place in them. Raises RuntimeError if anything
        else is due within these seconds.
        """
        env = self.world.env
        began = env.now if began is None else began
        if seconds > 0 and not env.skip(seconds):
            raise RuntimeError("a single worker waits for another one")
        self.invocation.add_seconds(stage, env.now - began, times)

    def _skip_rounds(self, rounds: int, each_s: Mapping[str, float]) -> None:
        """Add the next `rounds` rounds of a single worker at once: their seconds, the requests for their minibatches, and the checkpoints
        that are due meanwhile; raise the number of the round. `each_s`: mean seconds of a round by stage, without checkpoints. The rounds
        must be of one epoch, and not include its last one. Raises RuntimeError as `_run_rounds_alone` does.
        """
        world, tally, pace = self.world, self.invocation.tally, self.pace
        assert pace is not None
        first = (
            self.round % world.days.rounds_per_epoch * world.days.sync_every + 1
        )  # each reads the next one meanwhile
        end = first + rounds * world.days.sync_every
        count = max(0, end - max(first, self.on_disk))
        tally.count("objects", "get", count, into=count * world.workload.batch_bytes(world.workload.samples[0]))
        self.on_disk = max(self.on_disk, end) if self.keeps_data else 0
        bytes_, save_s = self._checkpoint_bytes, self._checkpoint_s(deletes=1) + self.objects.read.latency_s
        round_s = sum(each_s.values())
        apart = pace.count_rounds_apart(round_s, save_s)
        passed = min(apart, int(pace.passed_s / round_s))  # rounds since the last one
        saves = (rounds + passed) // apart
        left = rounds + passed - saves * apart if saves else rounds  # rounds after the last one
        before, self.saved = self.saved, self.saved + saves
        tally.count("objects", "put", saves, out=saves * bytes_).count("objects", "exists", saves)
        tally.count("objects", "delete", max(0, self.saved - 2) - max(0, before - 2))
        for stage, seconds in each_s.items():
            self._spend_alone(stage, (rounds - left) * seconds, times=rounds - left)
        self._spend_alone("checkpoint", saves * save_s, times=rounds)
        if saves:
            pace.note_saved(save_s)
        for stage, seconds in each_s.items():
            self._spend_alone(stage, left * seconds, times=left)
        self.round += rounds

    # --- computing ----------------------------------------------------------------------------------------------------

    def _compute_here(self, place: WhereInRun) -> SimProcess:
        """Simulate, as a simpy process, the round's gradients on this instance, one minibatch after another. Programs that are not peers
        fetch the next minibatch while they compute.
        """
        world, workload, seconds, left_s = self.world, self.world.workload, 0.0, 0.0
        numbers = world.days.list_minibatches(self.round)
        for minibatch, number in enumerate(numbers):
            samples = workload.samples[number]
            self._count_batches(number, first=self.round == 0 and minibatch == 0, last=minibatch + 1 == len(numbers))
            fetch_s = self._fetch_s(samples) * self.factors.draw_request_factor()
            compute_s = self._gradient_s(samples) * self.factors.draw_compute_factor()
            if self.ahead:
                ahead_s = 0.0 if self.round == 0 and left_s == 0.0 else compute_s
                seconds, left_s = seconds + compute_s + max(0.0, fetch_s - ahead_s), compute_s
            else:
                seconds += fetch_s + compute_s
        yield from self._wait(seconds)

    def _count_batches(self, number: int, *, first: bool, last: bool) -> None:
        """Count the requests for minibatches that are read while minibatch `number` is computed: that minibatch itself; if the program
        reads ahead, the next one instead, and in the beginning of the run both. Minibatches on the program's disk are not read. `first`:
        whether it is the first of the run; `last`: whether it is the last of its round.
        """
        world, samples, fetched = self.world, self.world.workload.samples, [number]
        if self.ahead:
            fetched = [number] if first else []
            if self.round + 1 < world.days.rounds or not last:
                fetched.append((number + 1) % len(samples))
        if self.keeps_data and fetched:
            fetched = [each for each in fetched if each >= self.on_disk]
            self.on_disk = max([self.on_disk, *(each + 1 for each in fetched)])
        for each in fetched:
            self.invocation.tally.count("objects", "get", into=world.workload.batch_bytes(samples[each]))

    def _fetch_s(self, samples: int) -> float:
        """Return the seconds in which this program reads a minibatch of `samples` samples, without random factors. Cached."""
        if samples not in self._fetches:
            self._fetches[samples] = self.objects.read.seconds(self.world.workload.batch_bytes(samples))
        return self._fetches[samples]

    def _check_run_over(self) -> SimProcess:
        """Simulate, as a simpy process, the request by which a program checks whether the run has ended, each time after it has stored
        something.
        """
        self.invocation.tally.count("objects", "exists")
        yield from self._wait(self.objects.read.latency_s)

    def _gradient_s(self, samples: int) -> float:
        """Return the seconds in which this program computes the gradient of a minibatch of `samples` samples, without random factors."""
        known = self.world.state.setdefault("gradient seconds", {})  # many thousand times the same
        if samples not in known:
            known[samples] = self._minibatch_s(samples, self.world.workload)
        found: float = known[samples]
        return found

    def _evaluation_s(self) -> float:
        """Return the seconds in which this program evaluates the model on the validation set, without random factors."""
        whole = self.world.workload.at_full_size
        return self.world.calibration.evaluate_share * self._minibatch_s(whole.validation_samples, whole)

    def _minibatch_s(self, samples: int, workload: Workload) -> float:
        """Return the seconds of one gradient of `samples` samples, on the instance's GPU or on its processor. `workload`: sizes of model
        and images.
        """
        calibration = self.world.calibration
        if self.gpu:
            precision = self.world.experiment.training.precision
            return calibration.gpu_gradient_s(workload, samples, instance_type=self.instance_type, precision=precision)
        return calibration.instance_gradient_s(
            self.world.experiment, workload, samples, instance_type=self.instance_type
        )

    def _compute_by_functions(self, place: WhereInRun) -> SimProcess:
        """Simulate, as a simpy process, the round's gradients of a peer that computes them in Lambda functions: store the model, run a
        state machine, then average the gradients here or in functions again. With local steps, read the trained model instead of averaging.
        """
        world, tally, size = self.world, self.invocation.tally, self.world.workload.vector_bytes
        given = function_input_bytes(world, self.round)
        tally.count("objects", "put", out=given)
        yield from self._wait(self.objects.write.seconds(given) * self.factors.draw_request_factor())
        yield from self._check_run_over()
        yield from self._run_machine("gradients", place)
        if world.days.local:
            back = function_input_bytes(world, self.round + 1)
            tally.count("objects", "get", into=back)
            yield from self._wait(self.objects.read.seconds(back) * self.factors.draw_request_factor())
            return
        count, by_functions = place.minibatches, world.experiment.p2p.average_in == "lambda"
        if by_functions:
            yield from self._run_machine("averages", place)
        requests = count_averaging_functions(world, place) if by_functions else count
        bytes_ = (size if by_functions else count * size) + requests * VECTOR_HEADER_BYTES
        tally.count("objects", "get", requests, into=bytes_)
        seconds = self.objects.read.seconds(bytes_, requests) * self.factors.draw_request_factor()
        yield from self._wait(seconds + world.calibration.arithmetic_s(bytes_ + size))

    def _run_machine(self, name: str, place: WhereInRun) -> SimProcess:
        """Simulate, as a simpy process, one execution of the architecture's state machine called `name`."""
        yield from self._wait(self.world.calibration.child_s)
        yield from self.walk.run(self.world.architecture.machines[name], place.copy(), last=True)

    # --- exchanging ---------------------------------------------------------------------------------------------------

    def _run_exchanges(self) -> SimProcess:
        """Simulate, as a simpy process, all exchanges of a round with the other programs (two with PowerSGD, otherwise one), and the time
        of compression.
        """
        travel, whole = exchange_sizes(self.world), self.world.workload.vector_bytes
        if self.world.experiment.exchange.compression != "none":
            yield from self._measure("compress", self._wait(self.world.calibration.arithmetic_s(CODEC_PASSES * whole)))
        for number, (up, _) in enumerate(travel):
            yield from self.exchange(number, up + VECTOR_HEADER_BYTES, whole if len(travel) == 1 else up)

    def _exchange_by_mailboxes(self, number: int, body: int, decoded: int) -> SimProcess:
        """Simulate, as a simpy process, one exchange through RabbitMQ: write to the own mailbox, wait at a barrier if peers are
        synchronous, read the other mailboxes. Messages above the size limit go through the object store.

        `number`: index of the exchange in the round; `body`: bytes of a message; `decoded`: bytes of the vector after decoding.
        """
        world, calibration, tally, workers = (
            self.world,
            self.world.calibration,
            self.invocation.tally,
            self.world.workers,
        )
        through_objects = body > world.experiment.p2p.message_limit_mb * 2**20
        in_mailbox = 0 if through_objects else body
        asynchronous = world.experiment.p2p.mode == "asynchronous"
        tally.count("bus", "replace", out=in_mailbox)
        if not asynchronous:
            tally.count("bus", "arrive")

        def send() -> SimProcess:
            """Simulate, as a simpy process, storing this peer's message in the object store if it is too large for the bus, writing its
            mailbox, and then counting it as arrived.
            """
            if through_objects:
                tally.count("objects", "put", out=body)
                yield from self._wait(self.objects.write.seconds(body) * self.factors.draw_request_factor())
                yield from self._check_run_over()
            start = world.broker.ingress.reserve(world.env.now, in_mailbox)
            seconds = self.bus.write.seconds(in_mailbox, 2 - asynchronous) * self.factors.draw_request_factor()
            yield from self._wait(start - world.env.now + seconds + calibration.mailbox_s)
            world.gate(f"arrived {number}", self.round).arrive(world.env, self.rank)

        def receive() -> SimProcess:
            """Simulate, as a simpy process, reading and combining the messages of all other peers; synchronous peers first wait until all
            have arrived.
            """
            if not asynchronous:
                yield from world.gate(f"arrived {number}", self.round).wait()
                tally.count("bus", "arrived")
            others = workers - 1
            tally.count("bus", "peek", others, into=others * in_mailbox)
            start = world.broker.egress.reserve(world.env.now, others * in_mailbox)
            seconds = self.bus.read.seconds(others * in_mailbox, others + 1)
            if through_objects:
                tally.count("objects", "get", others, into=others * body)
                seconds += self.objects.read.seconds(others * body, others)
            if self.round >= KEPT_BODIES[world.experiment.p2p.mode] and not number:  # even if there is no object
                tally.count("objects", "delete")
                seconds += self.objects.write.latency_s
            combine_s = calibration.arithmetic_s((workers + 1) * decoded)
            yield from self._wait(
                start
                - world.env.now
                + seconds * self.factors.draw_request_factor()
                + others * calibration.mailbox_s
                + combine_s
            )
            world.drop_gate(f"arrived {number}", self.round - 2)

        yield from self._measure("send", send())
        yield from self._measure("receive", receive())

    def _exchange_by_objects(self, number: int, body: int, decoded: int) -> SimProcess:
        """Simulate, as a simpy process, one exchange of a GPU fleet: through the object store (store the own gradient, read each other one
        as soon as it is there), or through torch.distributed.

        `number`: index of the exchange in the round; `body`: bytes of an encoded gradient; `decoded`: bytes of the vector after decoding.
        """
        world, tally, others = self.world, self.invocation.tally, self.world.workers - 1
        distributed = world.experiment.gpu.exchange == "distributed"

        def send() -> SimProcess:
            """Simulate, as a simpy process, storing this program's gradient (nothing with torch.distributed), and then counting it as
            arrived.
            """
            if not distributed:
                tally.count("objects", "put", out=body)
                yield from self._wait(self.objects.write.seconds(body) * self.factors.draw_request_factor())
                yield from self._check_run_over()
            world.gate(f"shown {number}", self.round).arrive(world.env, self.rank)

        def receive() -> SimProcess:
            """Simulate, as a simpy process, reading and combining the gradients of all other programs, each as soon as it is there; with
            torch.distributed, the time of a ring exchange after all have arrived.
            """
            gate, began = world.gate(f"shown {number}", self.round), world.env.now
            if distributed:  # a ring: twice the vector, almost independent of the number of workers
                yield from gate.wait()
                # From instance to instance; as to a store where their network is not known.
                rate = self.objects.read.bytes_s if self.network_bytes_s == inf else self.network_bytes_s
                yield from self._wait(2 * body * others / max(1, world.workers) / rate)
                return
            tally.count("objects", "get", others, into=others * body)
            each_s = self.objects.read.seconds(body) * self.factors.draw_request_factor()
            waits = not gate.is_open
            yield from gate.wait()
            end = began + others * each_s
            if waits:  # the last one to show its gradient holds up its own fetch and those behind it
                before = gate.last - int(gate.last > self.rank)
                end = max(end, world.env.now + (others - before) * each_s)
            combine_s = world.calibration.arithmetic_s((others + 2) * decoded)
            if self.round and self.round % self.checkpoint_every == 0 and not number:
                tally.count("objects", "delete")
                end += self.objects.read.latency_s
            yield from self._wait(end - world.env.now + combine_s)
            world.drop_gate(f"shown {number}", self.round - 2)

        yield from self._measure("send", send())
        yield from self._measure("receive", receive())

    # --- after the exchange -------------------------------------------------------------------------------------------

    def _update_model(self) -> SimProcess:
        """Simulate the optimizer's step of this program, as a simpy process. In the first round after an epoch, also read the results on
        which the learning rate may depend.
        """
        if self.round and self.world.days.ends_epoch(self.round - 1):
            yield from self._read_results()
        yield from self._wait(self._update_s)

    def _read_results(self) -> SimProcess:
        """Simulate, as a simpy process, reading the results of the epochs so far."""
        self.invocation.tally.count("objects", "get")
        yield from self._wait(self.objects.read.latency_s)

    @cached_property
    def _update_s(self) -> float:
        """Seconds of the optimizer's arithmetic in one step."""
        passes = 3 + 2 * count_optimizer_vectors(self.world)
        return self._arithmetic_s(passes * self.world.workload.vector_bytes)

    def _arithmetic_s(self, bytes_: float) -> float:
        """Return the seconds of this program's vector arithmetic: at the speed of its GPU if its vectors are there, otherwise of one thread
        of its processor. `bytes_`: bytes that are read and written in all. Raises NoProjection for an unknown GPU.
        """
        if self.steps_on_gpu:
            return self.world.calibration.gpu_arithmetic_s(bytes_, instance_type=self.instance_type)
        return self.world.calibration.arithmetic_s(bytes_)

    def _save_checkpoint(self) -> SimProcess:
        """Simulate, as a simpy process, a checkpoint of this program and the deletion of old objects, if a checkpoint is due after this
        round: every `checkpoint_every` rounds (each round with a message bus); for a single worker the time since the last one decides too
        (`CheckpointPace`).
        """
        world, tally, began = self.world, self.invocation.tally, self.world.env.now
        due = self.pace.is_due(self.round + 1) if self.pace else (self.round + 1) % self.checkpoint_every == 0
        if not due:
            return
        bytes_ = self._checkpoint_bytes
        tally.count("objects", "put", out=bytes_)
        self.saved += 1
        deletes = int(self.saved > 2) + int(bool(world.architecture.machines) and self.round > 0)
        tally.count("objects", "delete", deletes)
        yield from self._wait(self._checkpoint_s(deletes) * self.factors.draw_request_factor())
        yield from self._check_run_over()
        if self.pace:
            self.pace.note_saved(world.env.now - began)

    def _checkpoint_s(self, deletes: int) -> float:
        """Return the seconds in which this program writes a checkpoint and deletes `deletes` objects, without random factors."""
        return self.objects.write.seconds(self._checkpoint_bytes, 1 + deletes)

    @cached_property
    def _checkpoint_bytes(self) -> int:
        """Bytes of a checkpoint of this program. With two exchanges in a round it includes the mean of the first, from which a resumed
        program repeats the second.
        """
        world, travel = self.world, exchange_sizes(self.world)
        kept = count_optimizer_vectors(world) + count_outer_vectors(world)
        return (
            world.workload.vector_bytes
            + kept * 4 * world.workload.parameters
            + (1 + kept) * VECTOR_HEADER_BYTES
            + codec_state_bytes(world)
            + (travel[0][0] + VECTOR_HEADER_BYTES if len(travel) > 1 else 0)
        )

    def _agree_after_epoch(self, epoch: int) -> SimProcess:
        """Simulate, as a simpy process, the decision after `epoch` (its evaluation, and whether training continues): programs that arrive
        before there is one evaluate the model, all others read it.
        """
        world, workload, tally = self.world, self.world.workload, self.invocation.tally
        number = world.days.decision_of_epoch(epoch)
        tally.count("objects", "exists").count("objects", "get", into=DECISION_BYTES)
        if epoch in world.epochs_end_s:
            yield from self._wait(2 * self.objects.read.latency_s)
            if (
                world.experiment.p2p.mode == "synchronous" or self.ahead
            ):  # otherwise the result is the model of the program that evaluated
                yield from self._conclude(epoch)
            return
        again = self.keeps_data and number > 1  # then the validation samples are on its disk already
        chunks, bytes_ = (0, 0) if again else (workload.validation_chunks, workload.validation_bytes)
        tally.count("objects", "get", chunks, into=bytes_).count("objects", "put", out=DECISION_BYTES)
        if number > 1:
            tally.count("objects", "get")
        requests_s = self.objects.read.seconds(bytes_, chunks + 3) + self.objects.write.latency_s
        # Without a random factor, as in functions: of a long evaluation it would exceed what a few more rounds take, by whose
        # difference long epochs are extrapolated.
        yield from self._wait(requests_s + self._evaluation_s())
        world.note_epoch_end(epoch)
        yield from self._conclude(epoch)

    def _conclude(self, epoch: int) -> SimProcess:
        """Simulate the end of the run, as a simpy process, if `epoch` is the last one: the first program to arrive stores the trained
        model. Otherwise do nothing.
        """
        world, size = self.world, self.world.workload.vector_bytes + VECTOR_HEADER_BYTES
        if epoch < world.days.epochs:
            return
        self.invocation.tally.count("objects", "exists")
        seconds = self.objects.read.latency_s
        if not world.state.setdefault("concluded", False):
            world.state["concluded"] = True
            self.invocation.tally.count("objects", "put", 2, out=size)
            seconds += self.objects.write.seconds(size, 2)
        yield from self._wait(seconds)


def paper_usd(world: World, prices: Prices) -> float:
    """Return the dollars of a simulated run of programs by the equations of the 2023 paper, which count the peers' seconds of computing
    gradients and the functions that they use.
    """
    program = world.architecture.program
    assert program is not None
    instance_type = program.instances(world.experiment).instance_type
    known = bill.PEER_USD_PER_S.get(instance_type)
    ec2 = known or prices.of(f"ec2.{instance_type}").usd / 3_600
    machine_steps = [
        node for machine in world.architecture.machines.values() for node in nodes_of(machine) if isinstance(node, Step)
    ]
    functions = [world.usage.steps[step.name] for step in machine_steps if step.name in world.usage.steps]
    invocations = sum(use.invocations for use in functions)
    told = world.workers * world.days.decisions  # seconds are noted once per decision, which may follow several epochs
    per_s = sum(use.invocations * bill.lambda_usd_per_s(use.memory_mb) for use in functions) / max(1, invocations)
    return sum(
        bill.peer_serverless_usd(seconds, batches=invocations // told, lambda_usd_per_s=per_s, ec2_usd_per_s=ec2)
        for seconds in world.state.get("seconds", [])
    )

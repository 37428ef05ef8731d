"""SPIRT: what each step asks of the stores, in the order of functions/spirt."""

from collections.abc import Callable

from crossover.algorithms import optimizers
from crossover.simulation.kernel import Gate, Phase
from crossover.simulation.usage import Place, Tally
from crossover.simulation.workload import VECTOR_HEADER_BYTES
from crossover.simulation.world import Model, Phased, Script, World

OUTCOME_BYTES, ARRIVAL_BYTES = 210, 25


def decision_bytes(epoch: int) -> int:
    """The JSON of an epoch's decision, which lists the epochs before it."""
    return 160 + 43 * epoch


def moved_on(world: World, place: Place, round: int) -> None:
    """The place at the start of `round`, as rounds.at says."""
    days = world.days
    place.epoch, place.round, place.minibatches = days.epoch(round), round, days.minibatches_in(round)
    place.minibatch, place.synchronised = 0, False


def shared(key: Callable[[World, Place], object]) -> Callable[[Phased], Phased]:
    """One script for all places of the same `key`: thousands of invocations ask for it."""

    def decorate(write: Phased) -> Phased:
        def script(world: World, place: Place) -> Script:
            where = (write, key(world, place))
            found = world.scripts.get(where)
            if found is None:
                found = world.scripts[where] = write(world, place)
            return found

        return script

    return decorate


def _memory(world: World, step: str) -> int:
    return (
        world.usage.steps[step].memory_mb
        if step in world.usage.steps
        else world.experiment.functions.memory_of(step, torch=True)
    )


def optimizer_vectors(world: World) -> int:
    """How many vectors of P the optimizer keeps."""
    return len(optimizers.vectors(world.experiment.training))


# --- SPIRT ------------------------------------------------------------------------------------------------------------


@shared(lambda world, place: None)
def initialise(world: World, place: Place) -> Script:
    size, tensors, workers = world.workload.vector_bytes, world.calibration.tensors, world.workers
    tally = Tally().count("bus", "declare").count("tensors", "create", workers, out=workers * size)
    tally.count("objects", "put").count("objects", "list", 3)
    seconds = world.calibration.bus.latency_s + tensors.seconds(workers * size, requests=workers)
    return Script((Phase("set up", request_s=seconds),), tally)


@shared(lambda world, place: world.workload.samples[world.days.first_minibatch(place.round) + place.minibatch])
def compute_gradients(world: World, place: Place) -> Script:
    calibration, workload = world.calibration, world.workload
    samples = workload.samples[world.days.first_minibatch(place.round) + place.minibatch]
    size, batch = workload.vector_bytes, workload.batch_bytes(samples)
    tally = Tally().count("tensors", "exists").count("tensors", "get", into=size).count("tensors", "create", out=size)
    tally.count("objects", "get", into=batch).count("objects", "exists")
    fetch_s = calibration.tensors.seconds(size, requests=2) + calibration.objects.seconds(batch)
    memory_mb = _memory(world, "compute_gradients")
    compute_s = calibration.in_function(world.experiment, workload, samples, memory_mb=memory_mb)
    return Script(
        (
            Phase("fetch", request_s=fetch_s, link="egress", bytes_=size),
            Phase("compute", compute_s=compute_s),
            Phase("store", request_s=calibration.tensors.seconds(size) + settled_s(world), link="ingress", bytes_=size),
        ),
        tally,
    )


def settled_s(world: World) -> float:
    """A step that has stored something asks the bucket whether the run was resumed meanwhile."""
    return world.calibration.objects.latency_s


def combining(world: World, tally: Tally, vectors: int) -> tuple[float, float]:
    """The mean of so many vectors of a worker's database, where the experiment has it done: seconds of requests and of computing."""
    size, calibration = world.workload.vector_bytes, world.calibration
    if world.experiment.database.compute == "in_database":
        tally.count("tensors", "mean")
        seconds = (vectors + 1) * size / calibration.database_bytes_s + vectors * calibration.database_batch_s
        return calibration.tensors.latency_s, seconds
    tally.count("tensors", "exists").count("tensors", "get", vectors, into=vectors * size)
    tally.count("tensors", "create", out=size)
    requests_s = calibration.tensors.seconds((vectors + 1) * size, requests=vectors + 2)
    return requests_s, (vectors + 1) * size / calibration.arithmetic_bytes_s


@shared(lambda world, place: place.minibatches)
def average_in_database(world: World, place: Place) -> Script:
    tally = Tally().count("objects", "exists")
    request_s, compute_s = combining(world, tally, place.minibatches)
    return Script((Phase("average", request_s=request_s + settled_s(world), compute_s=compute_s),), tally)


@shared(lambda world, place: None)
def notify_peers(world: World, place: Place) -> Script:
    tally = Tally().count("bus", "arrive", out=ARRIVAL_BYTES)
    return Script((Phase("synchronise", request_s=world.calibration.bus.latency_s),), tally)


def notified(world: World, place: Place) -> None:
    barrier(world, place).arrive(world.env, place.worker)


def barrier(world: World, place: Place) -> Gate:
    return world.gate("barrier", place.round)


@shared(lambda world, place: None)
def check_peers(world: World, place: Place) -> Script:
    tally = Tally().count("bus", "arrived")
    return Script((Phase("synchronise", request_s=world.calibration.bus.latency_s),), tally)


@shared(lambda world, place: None)
def aggregate_peers(world: World, place: Place) -> Script:
    size, tensors, others = world.workload.vector_bytes, world.calibration.tensors, world.workers - 1
    tally = Tally().count("tensors", "exists", 1 + others).count("objects", "exists")
    tally.count("tensors", "get", others, into=others * size).count("tensors", "create", others, out=others * size)
    copies_s = tensors.seconds(2 * others * size, requests=3 * others + 1)
    request_s, compute_s = combining(world, tally, world.workers)
    return Script(
        (
            Phase("synchronise", request_s=copies_s, link="tour" if others else "", bytes_=size),
            Phase("aggregate", request_s=request_s + settled_s(world), compute_s=compute_s),
        ),
        tally,
    )


@shared(lambda world, place: (place.round == 0, place.epoch))
def update_model(world: World, place: Place) -> Script:
    calibration, workload = world.calibration, world.workload
    size, one, kept = workload.vector_bytes, 4 * workload.parameters, optimizer_vectors(world)
    read = 2 * size + (0 if place.round == 0 else kept * one)
    written = size + kept * one
    tally = Tally().count("tensors", "delete").count("objects", "exists")
    request_s = calibration.tensors.latency_s + settled_s(world)
    if place.epoch > 1:
        tally.count("objects", "get", into=decision_bytes(place.epoch - 1))
        request_s += calibration.objects.latency_s
    vectors = 2 + (0 if place.round == 0 else kept)
    if world.experiment.database.compute == "in_database":
        command = optimizers.OPTIMIZERS[world.experiment.training.optimizer].command
        assert command is not None, "whoever places arithmetic in the database has seen to it"
        tally.count("tensors", "info", vectors).count("tensors", command.lower())
        request_s += (1 + vectors) * calibration.tensors.latency_s
        compute_s = (read + written) / calibration.database_bytes_s + (
            vectors + 1 + kept
        ) * calibration.database_batch_s
    else:
        # Model and optimizer appear together: under temporary names first, where there is more than one.
        tally.count("tensors", "exists").count("tensors", "get", vectors, into=read).count(
            "tensors", "create", out=written
        )
        request_s += calibration.tensors.seconds(read + written, requests=vectors + 2 + kept)
        compute_s = (read + written) / calibration.arithmetic_bytes_s
    return Script((Phase("update", request_s=request_s, compute_s=compute_s),), tally)


@shared(lambda world, place: (world.days.ends_epoch(place.round), place.epoch in world.epochs_end_s, place.epoch))
def detect_convergence(world: World, place: Place) -> Script:
    """At an epoch's end the first ones evaluate: all who come before a decision is there."""
    objects, workload = world.calibration.objects, world.workload
    if not world.days.ends_epoch(place.round):
        return Script((), Tally())
    said = decision_bytes(place.epoch)
    tally = Tally().count("objects", "exists").count("objects", "get", into=said)
    if place.epoch in world.epochs_end_s:
        return Script((Phase("agree", request_s=2 * objects.latency_s),), tally)
    size, chunks = workload.vector_bytes, workload.validation_chunks
    tally.count("tensors", "get", into=size).count("objects", "get", chunks, into=workload.validation_bytes)
    tally.count("objects", "put", out=said)
    if place.epoch > 1:
        tally.count("objects", "get", into=decision_bytes(place.epoch - 1))
    requests_s = world.calibration.tensors.seconds(size) + objects.seconds(
        workload.validation_bytes, requests=chunks + 4
    )
    memory_mb = _memory(world, "detect_convergence")
    evaluate = Phase("evaluate", request_s=requests_s, compute_s=world.evaluate_s(memory_mb=memory_mb))
    return Script((evaluate,), tally)


def advanced(world: World, place: Place) -> None:
    """On to the next round."""
    ends, epoch = world.days.ends_epoch(place.round), place.epoch
    if ends:
        world.epoch_ended(epoch)
    moved_on(world, place, place.round + 1)
    place.epoch_finished, place.finished = ends, ends and epoch >= world.days.epochs


@shared(lambda world, place: None)
def collect(world: World, place: Place) -> Script:
    size, objects, tensors = world.workload.vector_bytes, world.calibration.objects, world.calibration.tensors
    tally = Tally().count("objects", "list").count("objects", "get", into=decision_bytes(world.days.epochs))
    tally.count("objects", "exists").count("objects", "put", 2, out=size + VECTOR_HEADER_BYTES + OUTCOME_BYTES)
    tally.count("tensors", "get", into=size).count("tensors", "delete", world.workers).count("bus", "remove")
    seconds = objects.seconds(size, requests=5) + tensors.seconds(size, requests=1 + world.workers)
    return Script((Phase("collect", request_s=seconds + world.calibration.bus.latency_s),), tally)


def begun(world: World, place: Place) -> None:
    moved_on(world, place, 0)


MODELS = {
    "initialise": Model(script=initialise, changes=begun),
    "compute_gradients": Model(script=compute_gradients),
    "average_in_database": Model(script=average_in_database),
    "notify_peers": Model(script=notify_peers, changes=notified),
    "check_peers": Model(script=check_peers, polls=barrier, patience_s=1.0),
    "aggregate_peers": Model(script=aggregate_peers),
    "update_model": Model(script=update_model),
    "detect_convergence": Model(script=detect_convergence, changes=advanced),
    "collect": Model(script=collect),
}

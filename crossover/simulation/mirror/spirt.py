"""SPIRT: requests of each step to the stores, in the order of functions/spirt."""

from collections.abc import Callable

from crossover.algorithms import optimizers
from crossover.algorithms.outer import OUTER
from crossover.simulation.kernel import Gate, Phase, Tally, WhereInRun
from crossover.simulation.workload import VECTOR_HEADER_BYTES
from crossover.simulation.world import Model, Script, ScriptBuilder, World

DECISION_BYTES = 256  # of the decision's text, which is all that most workers read after an epoch


def move_to_round(world: World, place: WhereInRun, round: int) -> None:
    """Set the epoch, round and number of minibatches of `place` to those at the start of `round`, and reset its other fields of progress,
    as `build_round_event` in crossover/training/progress.py does for an event.
    """
    days = world.days
    place.epoch, place.round, place.minibatches = days.epoch(round), round, days.count_parallel(round)
    place.minibatch, place.synchronised = 0, False


def share_scripts(key: Callable[[World, WhereInRun], object]) -> Callable[[ScriptBuilder], ScriptBuilder]:
    """Return a decorator that caches the results of a function which builds the script of a step. All positions of one simulated run with
    an equal `key(world, place)` get the same script object, which must not be changed, because thousands of invocations ask for one.
    """

    def decorate(write: ScriptBuilder) -> ScriptBuilder:
        """Return a function like `write` that keeps its scripts in `world.scripts`, and calls `write` only once per world and key."""

        def script(world: World, place: WhereInRun) -> Script:
            """Return the script for the key of this position: from `world.scripts`, or built and stored there."""
            where = (write, key(world, place))
            found = world.scripts.get(where)
            if found is None:
                found = world.scripts[where] = write(world, place)
            return found

        return script

    return decorate


def count_optimizer_vectors(world: World) -> int:
    """Return the number of vectors that the optimizer keeps, each with one value per parameter: 0 for plain SGD, 1 with momentum, 2 for
    Adam.
    """
    return len(optimizers.list_vectors(world.experiment.training))


def count_outer_vectors(world: World) -> int:
    """Return how many vectors the outer optimizer keeps: 1 if workers combine local steps with momentum, otherwise 0."""
    exchange = world.experiment.exchange
    return int(exchange.what == "delta" and exchange.outer.momentum > 0)


# --- SPIRT ------------------------------------------------------------------------------------------------------------


@share_scripts(lambda world, place: None)
def initialise(world: World, place: WhereInRun) -> Script:
    """Return the phases and requests of SPIRT's first step: it asks every database for a state of this attempt, newest round first, and
    stores the initial model in each database.
    """
    size, tensors, workers = world.workload.vector_bytes, world.tensors("initialise"), world.workers
    objects, asked = world.objects("initialise"), (world.days.rounds_until(1) + 2) * workers
    tally = Tally().count("bus", "declare").count("tensors", "exists", asked)
    tally.count("tensors", "create", workers, out=workers * size)
    tally.count("objects", "put").count("objects", "list", 3).count("objects", "exists", 3)
    seconds = world.calibration.bus.latency_s + tensors.write.seconds(workers * size, workers)
    seconds += asked * tensors.read.latency_s + objects.write.latency_s + 6 * objects.read.latency_s
    return Script((Phase("set up", request_s=seconds),), tally)


def samples_of_minibatches(world: World, place: WhereInRun) -> tuple[int, ...]:
    """Return the number of samples in each minibatch that one function computes, in order: that of the single minibatch at `place`, or with
    local steps those of all minibatches of the round.
    """
    days, samples = world.days, world.workload.samples
    if days.local:
        return tuple(samples[number] for number in days.list_minibatches(place.round))
    return (samples[days.first_minibatch(place.round) + place.minibatch],)


def count_kept_vectors(world: World, round: int) -> int:
    """Return how many vectors the optimizer of a worker that takes local steps keeps at the start of `round`; 0 without local steps, and 0
    in round 0.
    """
    return count_optimizer_vectors(world) if world.days.local and round else 0


@share_scripts(
    lambda world, place: (
        samples_of_minibatches(world, place),
        place.round > 0,
        world.days.local and world.days.decisions_before(place.round),
    )
)
def compute_gradients(world: World, place: WhereInRun) -> Script:
    """Return the phases and requests of the function that computes the gradient of the minibatch at `place`, or with local steps all steps
    of the round, and stores the result in the worker's database.
    """
    calibration, workload, samples = world.calibration, world.workload, samples_of_minibatches(world, place)
    one, data = 4 * workload.parameters, sum(map(workload.batch_bytes, samples))
    before, after = count_kept_vectors(world, place.round), count_kept_vectors(world, place.round + 1)
    read, written = workload.vector_bytes + before * one, workload.vector_bytes + after * one
    tally = Tally().count("tensors", "exists", 2).count("tensors", "get", 1 + before, into=read)
    tally.count("tensors", "create", 1 + after, out=written)
    tally.count("objects", "get", len(samples), into=data).count("objects", "exists")
    decided = world.days.decisions_before(place.round)
    if told := int(world.days.local and decided > 0):  # the results on which the learning rate may depend
        tally.count("objects", "get")
    tensors, objects = world.tensors("compute_gradients"), world.objects("compute_gradients")
    fetch_s = tensors.read.seconds(read, 2 + before) + objects.read.seconds(data, len(samples) + told)
    memory_mb = world.memory_of("compute_gradients")
    compute_s = sum(
        calibration.function_gradient_s(world.experiment, workload, each, memory_mb=memory_mb) for each in samples
    )
    store_s = (
        tensors.write.seconds(written, 1 + after) + tensors.read.latency_s + objects.read.latency_s
    )  # whether the run was resumed
    return Script(
        (
            Phase("fetch", request_s=fetch_s, link="egress", bytes_=read),
            Phase("compute", compute_s=compute_s),
            Phase("store", request_s=store_s, link="ingress", bytes_=written),
        ),
        tally,
    )


def resume_check_s(world: World, step: str) -> float:
    """Return the seconds of the one request by which `step`, after it has stored something, asks the bucket whether the run was resumed
    meanwhile. Nothing is counted in a tally.
    """
    return world.objects(step).read.latency_s


def count_mean(world: World, step: str, tally: Tally, vectors: int) -> tuple[float, float]:
    """Count in `tally` the requests by which `step` averages `vectors` vectors of a worker's database, and return (seconds of requests,
    seconds of computing). The mean is computed in the database or in the function, as the experiment says.
    """
    tensors = world.tensors(step)
    size, calibration = world.workload.vector_bytes, world.calibration
    if world.experiment.database.compute == "in_database":
        tally.count("tensors", "mean")
        seconds = (vectors + 1) * size / calibration.database_bytes_s + vectors * calibration.database_batch_s
        return tensors.write.latency_s, seconds
    tally.count("tensors", "exists").count("tensors", "get", vectors, into=vectors * size)
    tally.count("tensors", "create", out=size)
    requests_s = tensors.read.seconds(vectors * size, vectors + 1) + tensors.write.seconds(size)
    return requests_s, world.arithmetic_s((vectors + 1) * size, step)


@share_scripts(lambda world, place: place.minibatches)
def average_in_database(world: World, place: WhereInRun) -> Script:
    """Return the phases and requests of the step that averages a worker's gradients of one round."""
    tally = Tally().count("objects", "exists")
    request_s, compute_s = count_mean(world, "average_in_database", tally, place.minibatches)
    check_s = resume_check_s(world, "average_in_database")
    return Script((Phase("average", request_s=request_s + check_s, compute_s=compute_s),), tally)


@share_scripts(lambda world, place: None)
def notify_peers(world: World, place: WhereInRun) -> Script:
    """Return the phases and requests of the step by which a worker announces to the others that its average is stored."""
    tally = Tally().count("bus", "arrive")
    return Script((Phase("synchronise", request_s=world.calibration.bus.latency_s),), tally)


def notify_barrier(world: World, place: WhereInRun) -> None:
    """Count the worker of `place` as arrived at the barrier of its round, which opens when all workers have arrived."""
    find_barrier(world, place).arrive(world.env, place.worker)


def find_barrier(world: World, place: WhereInRun) -> Gate:
    """Return the gate for the round of `place`, which opens when all workers have announced their averages."""
    return world.gate("barrier", place.round)


@share_scripts(lambda world, place: None)
def check_peers(world: World, place: WhereInRun) -> Script:
    """Return the phases and requests of one poll of the barrier, which asks the message bus how many workers have arrived."""
    tally = Tally().count("bus", "arrived")
    return Script((Phase("synchronise", request_s=world.calibration.bus.latency_s),), tally)


@share_scripts(lambda world, place: None)
def aggregate_peers(world: World, place: WhereInRun) -> Script:
    """Return the phases and requests of the step that copies the averages of all other workers into the worker's database and combines
    them.
    """
    size, tensors, others = world.workload.vector_bytes, world.tensors("aggregate_peers"), world.workers - 1
    tally = Tally().count("tensors", "exists", 2 + others).count("objects", "exists")
    tally.count("tensors", "get", others, into=others * size).count("tensors", "create", others, out=others * size)
    copies_s = tensors.read.seconds(others * size, 2 * others + 1) + tensors.write.seconds(others * size, others)
    request_s, compute_s = count_mean(world, "aggregate_peers", tally, world.workers)
    check_s = tensors.read.latency_s + resume_check_s(world, "aggregate_peers")
    return Script(
        (
            Phase("synchronise", request_s=copies_s, link="tour" if others else "", bytes_=size),
            Phase("aggregate", request_s=request_s + check_s, compute_s=compute_s),
        ),
        tally,
    )


@share_scripts(lambda world, place: (place.round == 0, place.epoch))
def update_model(world: World, place: WhereInRun) -> Script:
    """Return the phases and requests of the step that applies the combined gradient to a worker's model, in the database or in the function
    as the experiment says; if models are averaged, of the step that makes the average the new model.
    """
    calibration, workload = world.calibration, world.workload
    if world.experiment.exchange.what == "model":
        return _copy_combined_model(world, place)
    size, one = workload.vector_bytes, 4 * workload.parameters
    kept = count_outer_vectors(world) if world.days.local else count_optimizer_vectors(world)
    read = 2 * size + (0 if place.round == 0 else kept * one)
    written = size + kept * one
    tally = Tally().count("tensors", "delete", int(place.round > 0)).count("objects", "exists")
    tensors = world.tensors("update_model")
    request_s = (place.round > 0) * tensors.read.latency_s + resume_check_s(world, "update_model")
    if place.epoch > 1 and not world.days.local:
        tally.count("objects", "get")
        request_s += world.objects("update_model").read.latency_s
    vectors = 2 + (0 if place.round == 0 else kept)
    if world.experiment.database.compute == "in_database":
        optimizer = OUTER if world.days.local else world.experiment.training.optimizer
        command = optimizers.OPTIMIZERS[optimizer].command
        assert command is not None, "the rules of validation have refused this"
        tally.count("tensors", "info", vectors).count("tensors", command.lower())
        request_s += (1 + vectors) * tensors.read.latency_s
        compute_s = (read + written) / calibration.database_bytes_s + (
            vectors + 1 + kept
        ) * calibration.database_batch_s
    else:
        # Stored under temporary names first and then renamed, so that model and optimizer appear together.
        tally.count("tensors", "exists", 2).count("tensors", "get", vectors, into=read)
        tally.count("tensors", "create", 1 + kept, out=written).count("tensors", "rename")
        request_s += tensors.read.seconds(read, vectors + 3) + tensors.write.seconds(written, 1 + kept)
        compute_s = world.arithmetic_s(read + written, "update_model")
    return Script((Phase("update", request_s=request_s, compute_s=compute_s),), tally)


def _copy_combined_model(world: World, place: WhereInRun) -> Script:
    """Return the phases and requests of `update_model` in experiments that average models instead of gradients: the combined model becomes
    the next model.
    """
    tally = Tally().count("tensors", "delete", int(place.round > 0)).count("objects", "exists")
    request_s, compute_s = count_mean(world, "update_model", tally, 1)
    request_s += (place.round > 0) * world.tensors("update_model").read.latency_s + resume_check_s(
        world, "update_model"
    )
    return Script((Phase("update", request_s=request_s, compute_s=compute_s),), tally)


@share_scripts(
    lambda world, place: (world.days.ends_epoch(place.round), place.epoch in world.epochs_end_s, place.epoch)
)
def detect_convergence(world: World, place: WhereInRun) -> Script:
    """Return the phases and requests of the step that ends a round. At the end of an epoch, workers that arrive before the decision
    evaluate the model, and later ones read the decision; in other rounds the step does nothing.
    """
    objects, workload = world.objects("detect_convergence"), world.workload
    if not world.days.ends_epoch(place.round):
        return Script((), Tally())
    tally = Tally().count("objects", "exists").count("objects", "get", into=DECISION_BYTES)
    if place.epoch in world.epochs_end_s:
        return Script((Phase("agree", request_s=2 * objects.read.latency_s),), tally)
    size, chunks = workload.vector_bytes, workload.validation_chunks
    tally.count("tensors", "get", into=size).count("objects", "get", chunks, into=workload.validation_bytes)
    tally.count("objects", "put")
    if world.days.decision_of_epoch(place.epoch) > 1:
        tally.count("objects", "get")
    requests_s = world.tensors("detect_convergence").read.seconds(size) + objects.write.latency_s
    requests_s += objects.read.seconds(workload.validation_bytes, chunks + 3)
    memory_mb = world.memory_of("detect_convergence")
    evaluate = Phase("evaluate", request_s=requests_s, compute_s=world.evaluate_s(memory_mb=memory_mb))
    return Script((evaluate,), tally)


def advance_round(world: World, place: WhereInRun) -> None:
    """Move `place` to the next round. At the end of an epoch, also record the simulated time and set `epoch_finished`; after the last epoch
    set `finished`.
    """
    ends, epoch = world.days.ends_epoch(place.round), place.epoch
    if ends:
        world.note_epoch_end(epoch)
    move_to_round(world, place, place.round + 1)
    place.epoch_finished, place.finished = ends, ends and epoch >= world.days.epochs


@share_scripts(lambda world, place: None)
def collect(world: World, place: WhereInRun) -> Script:
    """Return the phases and requests of SPIRT's last step: fetch the final model from a database, store it in the bucket, delete the
    workers' keys.
    """
    size, objects, tensors = world.workload.vector_bytes, world.objects("collect"), world.tensors("collect")
    tally = Tally().count("objects", "list").count("objects", "get")
    tally.count("objects", "exists", 3).count("objects", "put", 3, out=size + VECTOR_HEADER_BYTES)
    tally.count("tensors", "get", into=size).count("tensors", "delete", world.workers).count("bus", "remove")
    seconds = objects.read.seconds(0, 5) + objects.write.seconds(size, 3)
    seconds += tensors.read.seconds(size, 1 + world.workers)
    return Script((Phase("collect", request_s=seconds + world.calibration.bus.latency_s),), tally)


def begin_run(world: World, place: WhereInRun) -> None:
    """Set the fields of `place` to the first round of the run."""
    move_to_round(world, place, 0)


MODELS = {
    "initialise": Model(script=initialise, changes=begin_run),
    "compute_gradients": Model(script=compute_gradients),
    "average_in_database": Model(script=average_in_database),
    "notify_peers": Model(script=notify_peers, changes=notify_barrier),
    "check_peers": Model(script=check_peers, polls=find_barrier, polls_for_s=1.0),
    "aggregate_peers": Model(script=aggregate_peers),
    "update_model": Model(script=update_model),
    "detect_convergence": Model(script=detect_convergence, changes=advance_round),
    "collect": Model(script=collect),
}

"""Functions that a P2P peer's state machine starts: their requests to the object store, as in functions/p2p_serverless.py."""

from crossover.algorithms.schedule import split_into_parts
from crossover.simulation.kernel import Phase, Tally, WhereInRun
from crossover.simulation.mirror.spirt import count_kept_vectors, samples_of_minibatches, share_scripts
from crossover.simulation.workload import VECTOR_HEADER_BYTES
from crossover.simulation.world import Model, Script, World


def count_averaging_functions(world: World, place: WhereInRun) -> int:
    """Return the number of functions among which the averaging of a round's gradients is divided, at most one per minibatch; each averages
    one part of the vector.
    """
    return len(split_into_parts(world.workload.elements, most=place.minibatches))


def _is_average_in_functions(world: World) -> bool:
    """Return True if the experiment averages gradients in Lambda functions instead of in the peer."""
    return world.experiment.p2p.average_in == "lambda"


def function_input_bytes(world: World, round: int) -> int:
    """Return the bytes that a peer stores as input of its functions at the start of `round`: its model, and with local steps also its
    optimizer's vectors. With local steps, `round` + 1 gives the bytes that the functions return.
    """
    kept = count_kept_vectors(world, round)
    more = kept * (4 * world.workload.parameters + VECTOR_HEADER_BYTES) if world.days.local else 0
    return world.workload.vector_bytes + VECTOR_HEADER_BYTES + more


@share_scripts(
    lambda world, place: (
        place.minibatches,
        samples_of_minibatches(world, place),
        world.days.local and world.days.decisions_before(place.round),
        world.days.local and place.round > 0,
    )
)
def compute_gradient(world: World, place: WhereInRun) -> Script:
    """Return the phases and requests of a function that computes the gradient of one minibatch, or with local steps all
    steps of the round.
    """
    calibration, workload, samples = world.calibration, world.workload, samples_of_minibatches(world, place)
    local = world.days.local
    told = local and world.days.decisions_before(place.round) > 0  # the results on which the learning rate may depend
    read = function_input_bytes(world, place.round) + sum(map(workload.batch_bytes, samples))
    pieces = count_averaging_functions(world, place) if _is_average_in_functions(world) else 1
    written = workload.vector_bytes + pieces * VECTOR_HEADER_BYTES
    written = function_input_bytes(world, place.round + 1) if local else written
    objects, gets = world.objects("compute_gradient"), 1 + len(samples) + told
    tally = (
        Tally().count("objects", "exists", 2).count("objects", "get", gets, into=read)
    )  # checks whether the result exists, and whether the run has ended
    tally.count("objects", "put", pieces, out=written)
    memory_mb = world.memory_of("compute_gradient")
    compute_s = sum(
        calibration.function_gradient_s(world.experiment, workload, each, memory_mb=memory_mb) for each in samples
    )
    return Script(
        (
            Phase("fetch", request_s=objects.read.seconds(read, 1 + gets)),
            Phase("compute", compute_s=compute_s),
            Phase("store", request_s=objects.write.seconds(written, pieces) + objects.read.latency_s),
        ),
        tally,
    )


@share_scripts(lambda world, place: (place.minibatches, place.minibatch < count_averaging_functions(world, place)))
def average_part(world: World, place: WhereInRun) -> Script:
    """Return the phases and requests of a function that averages one part of a round's gradients. Functions beyond the number of parts do
    nothing.
    """
    pieces = count_averaging_functions(world, place)
    if place.minibatch >= pieces:
        return Script((Phase("average"), Phase("store")), Tally())
    objects, one = world.objects("average_part"), world.workload.vector_bytes // pieces + VECTOR_HEADER_BYTES
    tally = Tally().count("objects", "exists", 2)
    tally.count("objects", "get", place.minibatches, into=place.minibatches * one)
    tally.count("objects", "put", out=one)
    read_s = objects.read.seconds(place.minibatches * one, place.minibatches + 1)
    compute_s = world.arithmetic_s((place.minibatches + 1) * one, "average_part")
    return Script(
        (
            Phase("average", request_s=read_s, compute_s=compute_s),
            Phase("store", request_s=objects.write.seconds(one) + objects.read.latency_s),
        ),
        tally,
    )


MODELS = {"compute_gradient": Model(script=compute_gradient), "average_part": Model(script=average_part)}

"""P2P's functions, which a peer's state machine starts: what each asks of the object store, as in functions/p2p_serverless.py."""

from crossover.algorithms.chunking import parts
from crossover.simulation.kernel import Phase
from crossover.simulation.spirt import shared
from crossover.simulation.usage import Place, Tally
from crossover.simulation.workload import VECTOR_HEADER_BYTES
from crossover.simulation.world import Model, Script, World


def averaging(world: World, place: Place) -> int:
    """How many functions share the averaging."""
    return len(parts(world.workload.elements, most=place.minibatches))


def _by_functions(world: World) -> bool:
    return world.experiment.p2p.average_in == "lambda"


@shared(
    lambda world, place: (
        place.minibatches,
        world.workload.samples[world.days.first_minibatch(place.round) + place.minibatch],
    )
)
def compute_gradient(world: World, place: Place) -> Script:
    calibration, workload = world.calibration, world.workload
    samples = workload.samples[world.days.first_minibatch(place.round) + place.minibatch]
    model, batch = workload.vector_bytes + VECTOR_HEADER_BYTES, workload.batch_bytes(samples)
    pieces = averaging(world, place) if _by_functions(world) else 1
    gradient = workload.vector_bytes + pieces * VECTOR_HEADER_BYTES
    objects = world.objects("compute_gradient")
    tally = Tally().count("objects", "exists", 2).count("objects", "get", 2, into=model + batch)  # there already; over
    tally.count("objects", "put", pieces, out=gradient)
    memory_mb = world.memory_of("compute_gradient")
    return Script(
        (
            Phase("fetch", request_s=objects.read.seconds(model + batch, 3)),
            Phase(
                "compute", compute_s=calibration.in_function(world.experiment, workload, samples, memory_mb=memory_mb)
            ),
            Phase("store", request_s=objects.write.seconds(gradient, pieces) + objects.read.latency_s),
        ),
        tally,
    )


@shared(lambda world, place: (place.minibatches, place.minibatch < averaging(world, place)))
def average_part(world: World, place: Place) -> Script:
    pieces = averaging(world, place)
    if place.minibatch >= pieces:
        return Script((), Tally())
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

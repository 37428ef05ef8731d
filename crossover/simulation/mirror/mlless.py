"""MLLess: a worker's step and the supervisor's, as in functions/mlless/worker.py and supervisor.py.

It is bulk synchronous; `slack` and scaling in are not simulated. The share of coordinates that pass the filter is the calibration's.
"""

from functools import partial

from crossover.algorithms import schedule
from crossover.simulation.kernel import Phase, SimProcess, WhereInRun
from crossover.simulation.mirror.lambdaml import StoreConnection, arithmetic, build_first_step
from crossover.simulation.mirror.long_worker import (
    Leave,
    WorkerInvocation,
    WorkerProgress,
    build_last_step,
    run_invocation,
)
from crossover.simulation.mirror.spirt import begin_run
from crossover.simulation.workload import VECTOR_HEADER_BYTES
from crossover.simulation.world import Model, Script, SimulatedInvocation, World

MOST_POINTS = 2_048  # of the loss curve
DECISION, REPORTS = 1, 2  # what the supervisor waits for, in the place of a worker's minibatch
SPARSE_HEADER_BYTES, PAIR_BYTES = 16, 8
FILTER_VECTORS = 6  # read and written while filtering: gradient, velocity, residual, base, and the update


def update_bytes(world: World) -> int:
    """Return the bytes of an update: pairs of index and value, or all values if those are fewer bytes."""
    workload = world.workload
    pairs = int(world.calibration.significant * workload.parameters)
    return min(4 * workload.elements, SPARSE_HEADER_BYTES + PAIR_BYTES * pairs + 4 * workload.buffers)


def checkpoint_bytes(world: World, round: int) -> int:
    """Return the bytes of a worker's checkpoint: the shared model, the residual and the velocity. `round` is not used."""
    workload, momentum = world.workload, world.experiment.training.momentum > 0
    return 2 * workload.vector_bytes + momentum * 4 * workload.parameters + (2 + momentum) * VECTOR_HEADER_BYTES


def supervisor_bytes(world: World, steps: int) -> int:
    """Return the bytes of the supervisor's checkpoint after `steps` steps: the loss of each step, and each worker's seconds of the latest
    ones.
    """
    return 42 * min(steps, MOST_POINTS) + world.workers * (8 + 12 * min(steps, schedule.SPAN))


def step(life: WorkerInvocation) -> SimProcess:
    """Simulate a worker's step: compute, filter, report, wait for the supervisor's answer, read the updates that it names, apply them."""
    way, world, round = StoreConnection(life), life.world, life.standing.round
    others, size, telling = world.workers - 1, world.workload.vector_bytes, update_bytes(world)
    bus_s, computing = world.calibration.bus.latency_s, life.standing.published.get("reported", -1) < round
    if computing:
        yield from life.accumulate()
        yield from life.read_history()
        yield from arithmetic(life, "filter", FILTER_VECTORS * size)
        yield from way.put("store", telling)
        yield from way.put("", 0)
        life.tally.count("bus", "arrive")
        yield from life.spend("", bus_s)
        way.publish("reported")
    word = world.gate("word", round, needed=1)
    began = world.env.now
    waited = yield from life.wait_for(word)
    # Announcements wake; the word itself is looked for once a second beside them.
    life.tally.count("bus", "arrived", life.count_polls(waited, "tensors") + 1).count(way.channel, "get", int(waited))
    yield from life.spend("", bus_s)
    yield from way.get("", 0)
    if others:
        yield from way.get("", others * telling, others)
    life.invocation.add_seconds("synchronise", world.env.now - began)
    yield from arithmetic(life, "update", (1 + others) * telling + 2 * size)
    world.forget("word", round - 2)
    world.forget("reported", round - 2)


def train(world: World, place: WhereInRun, invocation: SimulatedInvocation) -> SimProcess:
    """Simulate an invocation of a worker."""
    standing = world.state.setdefault(("standing", place.worker), WorkerProgress())
    yield from run_invocation(
        WorkerInvocation(world, place, invocation, standing, partial(checkpoint_bytes, world)), step
    )


def supervise(world: World, place: WhereInRun, invocation: SimulatedInvocation) -> SimProcess:
    """Simulate an invocation of the supervisor: in each step it waits for all reports, then answers."""
    standing = world.state.setdefault("supervisor", WorkerProgress())
    place.worker = world.workers  # whose luck it has
    life = WorkerInvocation(
        world, place, invocation, standing, partial(supervisor_bytes, world), "supervise", adds=False
    )
    way, calibration, tally = StoreConnection(life), world.calibration, invocation.tally
    every = world.experiment.functions.checkpoint_every
    finished = False
    yield from life.restore()
    life.mark()
    try:
        while True:
            round = standing.round
            if round % every == 0:
                yield from life.save()
            if round and world.days.ends_epoch(round - 1):
                standing.minibatch = DECISION
                waited = yield from life.wait_for(world.gate("decision", world.days.epoch(round - 1), needed=1))
                invocation.add_seconds("synchronise", waited)
                tally.count("objects", "get", 2 + life.count_polls(waited, "objects"))
                finished = world.days.epoch(round - 1) >= world.days.epochs
                life.mark()
                if finished:
                    break
            if life.remaining_s() <= 0:
                raise Leave
            standing.minibatch = REPORTS
            yield from way.gather("synchronise", "reported", 0, world.workers, before=lambda last: last)
            yield from life.spend("", calibration.supervisor_s * way.luck.compute())
            yield from way.put("", 4 * world.workers)
            word = world.gate("word", round, needed=1)
            if not word.open:
                word.arrive(world.env)
            tally.count("bus", "arrive")
            yield from life.spend("", calibration.bus.latency_s)
            if round % every == 0 and round:
                yield from way.delete()
            standing.round, standing.minibatch = round + 1, 0
    except Leave:
        pass
    yield from life.save()
    place.worker = 0
    place.finished = finished


def initialise(world: World, place: WhereInRun) -> Script:
    """Return the script of the first step: as for any long workers, with the supervisor as one more member, and the exchange of the bus."""
    script = build_first_step(world, looks=1, supervised=True)
    script.tally.count("bus", "declare")
    return Script((*script.phases, Phase("", request_s=world.calibration.bus.latency_s)), script.tally)


def collect(world: World, place: WhereInRun) -> Script:
    """Return the script of the last step."""
    return build_last_step(world, checkpoint_bytes(world, world.days.rounds), members=world.workers + 1, bus=True)


MODELS = {
    "initialise": Model(script=initialise, changes=begin_run),
    "train": Model(living=train),
    "supervise": Model(living=supervise),
    "collect": Model(script=collect),
}

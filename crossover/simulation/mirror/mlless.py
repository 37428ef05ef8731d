"""MLLess: a worker's step and the supervisor's, as in functions/mlless/worker.py and supervisor.py.

Bulk synchronous (`slack` and scaling in are not simulated); the share of coordinates that pass the filter is the calibration's.
"""

from functools import partial

from crossover.algorithms import knee
from crossover.simulation.kernel import Phase, SimProcess
from crossover.simulation.mirror.lambdaml import Way, arithmetic, beginning
from crossover.simulation.mirror.long_worker import Leave, Life, Standing, collected, lives
from crossover.simulation.mirror.spirt import begun
from crossover.simulation.usage import WhereInRun
from crossover.simulation.workload import VECTOR_HEADER_BYTES
from crossover.simulation.world import Model, Script, SimulatedInvocation, World

MOST_POINTS = 2_048  # of the loss curve
DECISION, REPORTS = 1, 2  # what the supervisor waits for, in the place of a worker's minibatch
SPARSE_HEADER_BYTES, PAIR_BYTES = 16, 8
FILTER_VECTORS = 6  # read and written while filtering: gradient, velocity, residual, base, and the update


def update_bytes(world: World) -> int:
    """An update on its way: pairs of index and value, or all values where that is smaller."""
    workload = world.workload
    pairs = int(world.calibration.significant * workload.parameters)
    return min(4 * workload.elements, SPARSE_HEADER_BYTES + PAIR_BYTES * pairs + 4 * workload.buffers)


def checkpoint_bytes(world: World, round: int) -> int:
    """What all were told, the residual, the velocity; the last word."""
    workload, momentum = world.workload, world.experiment.training.momentum > 0
    return 2 * workload.vector_bytes + momentum * 4 * workload.parameters + (2 + momentum) * VECTOR_HEADER_BYTES


def supervised_bytes(world: World, steps: int) -> int:
    """What the supervisor keeps: its word, the loss of each step, and each worker's seconds of the latest ones."""
    return 42 * min(steps, MOST_POINTS) + world.workers * (8 + 12 * min(steps, knee.SPAN))


def step(life: Life) -> SimProcess:
    """One step: compute, filter, tell, wait for the supervisor's word, fetch what it names, apply."""
    way, world, round = Way(life), life.world, life.standing.round
    others, size, telling = world.workers - 1, world.workload.vector_bytes, update_bytes(world)
    bus_s, computing = world.calibration.bus.latency_s, life.standing.published.get("reported", -1) < round
    if computing:
        yield from life.accumulate()
        yield from life.history()
        yield from arithmetic(life, "filter", FILTER_VECTORS * size)
        yield from way.put("store", telling)
        yield from way.put("", 0)
        life.tally.count("bus", "arrive")
        yield from life.spend("", bus_s)
        way.publish("reported")
    word = world.gate("word", round, needed=1)
    began = world.env.now
    waited = yield from life.until(word)
    # Announcements wake; the word itself is looked for once a second beside them.
    life.tally.count("bus", "arrived", life.looks(waited, "tensors") + 1).count(way.channel, "get", int(waited))
    yield from life.spend("", bus_s)
    yield from way.get("", 0)
    if others:
        yield from way.get("", others * telling, others)
    life.invocation.spent("synchronise", world.env.now - began)
    yield from arithmetic(life, "update", (1 + others) * telling + 2 * size)
    world.forget("word", round - 2)
    world.forget("reported", round - 2)


def train(world: World, place: WhereInRun, invocation: SimulatedInvocation) -> SimProcess:
    standing = world.state.setdefault(("standing", place.worker), Standing())
    yield from lives(Life(world, place, invocation, standing, partial(checkpoint_bytes, world)), step)


def supervise(world: World, place: WhereInRun, invocation: SimulatedInvocation) -> SimProcess:
    """All reports, then the word; step after step."""
    standing = world.state.setdefault("supervisor", Standing())
    place.worker = world.workers  # whose luck it has
    life = Life(world, place, invocation, standing, partial(supervised_bytes, world), "supervise", adds=False)
    way, calibration, tally = Way(life), world.calibration, invocation.tally
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
                waited = yield from life.until(world.gate("decision", world.days.epoch(round - 1), needed=1))
                invocation.spent("synchronise", waited)
                tally.count("objects", "get", 2 + life.looks(waited, "objects"))
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
    """As of any long worker, with the supervisor as a member more, by whom a run is found that was begun before; and the exchange."""
    script = beginning(world, looks=1, supervised=True)
    script.tally.count("bus", "declare")
    return Script((*script.phases, Phase("", request_s=world.calibration.bus.latency_s)), script.tally)


def collect(world: World, place: WhereInRun) -> Script:
    return collected(world, checkpoint_bytes(world, world.days.rounds), members=world.workers + 1, bus=True)


MODELS = {
    "initialise": Model(script=initialise, changes=begun),
    "train": Model(living=train),
    "supervise": Model(living=supervise),
    "collect": Model(script=collect),
}

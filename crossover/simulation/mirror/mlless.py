"""MLLess: a worker's step and the supervisor's, as in functions/mlless/worker.py and supervisor.py.

It is bulk synchronous; `slack` and scaling in are not simulated. The share of coordinates that pass the filter is the calibration's.
"""

from functools import partial

from crossover.algorithms import schedule
from crossover.algorithms.encoded_sizes import sparse_bytes
from crossover.simulation.kernel import Phase, SimProcess, WhereInRun
from crossover.simulation.mirror.lambdaml import StoreConnection, build_first_step, simulate_arithmetic
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
DECISION, REPORTS = 1, 2  # what the supervisor waits for; stored where a worker's progress has the minibatch
FILTER_VECTORS = 6  # read and written while filtering: gradient, velocity, residual, base, and the update


def update_bytes(world: World) -> int:
    """Return the bytes of one worker's filtered update: pairs (index, value), or all values if that takes fewer bytes."""
    workload = world.workload
    pairs = int(world.calibration.significant * workload.parameters)
    return min(4 * workload.elements, sparse_bytes(pairs, tail=workload.buffers))


def checkpoint_bytes(world: World, round: int) -> int:
    """Return the bytes of an MLLess worker's checkpoint: the shared model, the residual, and the velocity if there is momentum. `round`:
    not used, since the size is the same in every round; `WorkerInvocation.kept_bytes` passes it.
    """
    workload, momentum = world.workload, world.experiment.training.momentum > 0
    return 2 * workload.vector_bytes + momentum * 4 * workload.parameters + (2 + momentum) * VECTOR_HEADER_BYTES


def supervisor_bytes(world: World, steps: int) -> int:
    """Return the bytes of the supervisor's checkpoint after `steps` steps: the losses of the steps (limited in number), and the seconds of
    each worker in the latest steps.
    """
    return 42 * min(steps, MOST_POINTS) + world.workers * (8 + 12 * min(steps, schedule.SPAN))


def simulate_worker_step(worker_call: WorkerInvocation) -> SimProcess:
    """Simulate one step of an MLLess worker, as a simpy process: compute a gradient, filter it, store and report the update, wait for the
    supervisor's answer, read the other workers' updates, apply them. A step that an earlier invocation has reported is not computed again.
    Raises Leave if the invocation must end first.
    """
    store, world, round = StoreConnection(worker_call), worker_call.world, worker_call.progress.round
    others, size, telling = world.workers - 1, world.workload.vector_bytes, update_bytes(world)
    bus_s, computing = world.calibration.bus.latency_s, worker_call.progress.published.get("reported", -1) < round
    if computing:
        yield from worker_call.accumulate()
        yield from worker_call.read_history()
        yield from simulate_arithmetic(worker_call, "filter", FILTER_VECTORS * size)
        yield from store.put("store", telling)
        yield from store.put("", 0)
        worker_call.tally.count("bus", "arrive")
        yield from worker_call.spend("", bus_s)
        yield from store.publish("reported")
    word = world.gate("word", round, needed=1)
    began = worker_call.now
    waited = yield from worker_call.wait_for(word)
    # Announcements on the bus wake the worker; besides, it reads the supervisor's answer itself once a second.
    worker_call.tally.count("bus", "arrived", worker_call.count_polls(waited, "tensors") + 1).count(
        store.channel, "get", int(waited)
    )
    yield from worker_call.spend("", bus_s)
    yield from store.get("", 0)
    if others:
        yield from store.get("", others * telling, others)
    worker_call.invocation.add_seconds("synchronise", worker_call.now - began)
    yield from simulate_arithmetic(worker_call, "update", (1 + others) * telling + 2 * size)
    world.drop_gate("word", round - 2)
    world.drop_gate("reported", round - 2)


def train(world: World, place: WhereInRun, invocation: SimulatedInvocation) -> SimProcess:
    """Simulate one invocation of the MLLess worker at `place`, as a simpy process, from its checkpoint until training ends or the
    invocation's time is nearly over.
    """
    progress = world.state.setdefault(("progress", place.worker), WorkerProgress())
    yield from run_invocation(
        WorkerInvocation(world, place, invocation, progress, partial(checkpoint_bytes, world)), simulate_worker_step
    )


def supervise(world: World, place: WhereInRun, invocation: SimulatedInvocation) -> SimProcess:
    """Simulate one invocation of the supervisor, as a simpy process. In each step it waits for the reports of all workers, then answers
    them, until training ends or the invocation must end. `place`: its position in the run; sets `place.finished`. `invocation`: receives
    its stages and requests.
    """
    progress = world.state.setdefault("supervisor", WorkerProgress())
    place.worker = world.workers  # the supervisor has random factors of its own
    worker_call = WorkerInvocation(
        world, place, invocation, progress, partial(supervisor_bytes, world), "supervise", adds=False
    )
    store, calibration, tally = StoreConnection(worker_call), world.calibration, invocation.tally
    every = world.experiment.functions.checkpoint_every
    finished = False
    yield from worker_call.restore()
    worker_call.note_usage()
    try:
        while True:
            round = progress.round
            if round % every == 0:
                yield from worker_call.save()
            if round and world.days.ends_epoch(round - 1):
                progress.minibatch = DECISION
                waited = yield from worker_call.wait_for(world.gate("decision", world.days.epoch(round - 1), needed=1))
                invocation.add_seconds("synchronise", waited)
                tally.count("objects", "get", 2 + worker_call.count_polls(waited, "objects"))
                finished = world.days.epoch(round - 1) >= world.days.epochs
                worker_call.note_usage()
                if finished:
                    break
            if worker_call.remaining_s() <= 0:
                raise Leave
            progress.minibatch = REPORTS
            yield from store.gather("synchronise", "reported", 0, world.workers, before=lambda last: last)
            yield from worker_call.spend("", calibration.supervisor_s * store.factors.draw_compute_factor())
            yield from store.put("", 4 * world.workers)
            word = world.gate("word", round, needed=1)
            yield from worker_call.catch_up()
            if not word.is_open:
                word.arrive(world.env)
            tally.count("bus", "arrive")
            yield from worker_call.spend("", calibration.bus.latency_s)
            if round % every == 0 and round:
                yield from store.delete()
            progress.round, progress.minibatch = round + 1, 0
    except Leave:
        pass
    yield from worker_call.save()
    yield from worker_call.catch_up()
    place.worker = 0
    place.finished = finished


def initialise(world: World, place: WhereInRun) -> Script:
    """Return the phases and requests of the first step: look for an earlier attempt, store a first checkpoint for each worker and for the
    supervisor, declare the message exchange.
    """
    script = build_first_step(world, looks=1, supervised=True)
    script.tally.count("bus", "declare")
    return Script((*script.phases, Phase("", request_s=world.calibration.bus.latency_s)), script.tally)


def collect(world: World, place: WhereInRun) -> Script:
    """Return the phases and requests of the last step: store the trained model, delete keys, remove the message exchange."""
    return build_last_step(world, checkpoint_bytes(world, world.days.rounds), members=world.workers + 1, bus=True)


MODELS = {
    "initialise": Model(script=initialise, changes=begin_run),
    "train": Model(process=train),
    "supervise": Model(process=supervise),
    "collect": Model(script=collect),
}

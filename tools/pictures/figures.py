"""Figures in the pictures: bytes and seconds of one simulated round, dollars of an hour and of a run."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from math import inf
from pathlib import Path
from typing import Any

from crossover import validation
from crossover.cli.plan import PlanEstimate, estimate_by_simulation
from crossover.experiment import Experiment
from crossover.running import running_costs
from crossover.simulation import AWS
from crossover.simulation.calibration import SIGMAS
from crossover.simulation.kernel import CHANNELS, SimProcess, Usage, WhereInRun
from crossover.simulation.mirror import all_reduce, lambdaml, mlless, models_of, programs, scatter_reduce
from crossover.simulation.mirror.long_worker import WorkerInvocation, WorkerProgress
from crossover.simulation.mirror.p2p_serverless import function_input_bytes
from crossover.simulation.mirror.spirt import move_to_round
from crossover.simulation.walk import Walk
from crossover.simulation.workload import VECTOR_HEADER_BYTES, Workload, calendar
from crossover.simulation.world import SimulatedInvocation, World
from crossover.workflow import Child, Node, walk
from crossover.workflow.architecture import Architecture, architecture_of, steps

ROOT = Path(__file__).parents[2]
ROUND = 1  # the one that is drawn: optimizers have their vectors, nothing starts cold
ROUNDS_OF_LONG_WORKERS: dict[str, Callable[[WorkerInvocation], SimProcess]] = {
    "all_reduce": all_reduce.simulate_round,
    "scatter_reduce": scatter_reduce.simulate_round,
    "mlless": mlless.simulate_worker_step,
}


@dataclass(frozen=True)
class Part:
    """Usage of one step or program by one worker in the drawn round. `bytes_in`, `bytes_out`: bytes read and written by channel;
    `operations`: number of requests by channel and operation; `stages`: seconds by stage; `wall_s`: seconds in all, infinite for a program,
    which goes on.
    """

    bytes_in: dict[str, int]
    bytes_out: dict[str, int]
    operations: dict[str, Counter[str]]
    stages: dict[str, float]
    wall_s: float


class Figures:
    """All figures that the pictures of one architecture show, simulated with its example config/<name>.yaml when they are first needed.
    `config`: path of the example; `workload`: sizes of its model and data; `world`: the simulation.
    """

    def __init__(self, name: str) -> None:
        """Load the example config/`name`.yaml, and prepare a simulation of it without random factors and cold starts."""
        self.config = f"config/{name}.yaml"
        self.architecture: Architecture
        experiment = validation.load(ROOT / self.config)
        self.architecture = architecture_of(experiment)
        self.experiment: Experiment = self.architecture.resolve(experiment)
        self.workload = Workload.from_experiment(self.experiment)
        usage = Usage(self.experiment.architecture, keep_records=True)
        even: dict[str, Any] = dict.fromkeys(SIGMAS, 0.0)
        days = calendar(self.experiment, self.workload)
        self.world = World(self.experiment, self.architecture, self.workload, replace(AWS, **even), days, usage)
        for step in steps(self.architecture):
            self.world.environments(step.name).leave(0.0, 1_000)

    @cached_property
    def estimate(self) -> PlanEstimate:
        """Projected minutes and dollars of a whole run, as `crossover plan` gives them."""
        return estimate_by_simulation(self.experiment)

    @cached_property
    def idle_usd(self) -> float:
        """Dollars per hour while the experiment is deployed and nothing runs."""
        return running_costs.sum_usd(running_costs.list_hourly_costs(self.experiment))

    @cached_property
    def running_usd(self) -> float:
        """Dollars per hour, during a run, of everything that is billed by the hour."""
        return running_costs.sum_usd(running_costs.list_hourly_costs(self.experiment, running=True))

    @cached_property
    def round(self) -> dict[tuple[str, int], Part]:
        """Usage in the drawn round, by (step or program, worker), simulated at the first access. Functions that one worker runs
        concurrently are added up, but `wall_s` is that of the longest and `stages` those of one of them.
        """
        world = self.world
        models = models_of(self.architecture)
        if self.architecture.name in ROUNDS_OF_LONG_WORKERS:
            return self._round_of_long_workers(ROUNDS_OF_LONG_WORKERS[self.architecture.name])
        walker = Walk(world, models)
        if self.architecture.program is not None:
            peers = [programs.SimulatedPeer(world, walker, rank) for rank in range(world.workers)]
            for peer in peers:
                peer.round = ROUND
            world.env.run(until=world.env.all_of([world.env.process(p.run_round(self._place(p.rank))) for p in peers]))
            found = {(p.step, p.rank): _build_part(p.invocation, inf) for p in peers}
        else:
            (tree,) = (node.body for node in walk(self._run) if isinstance(node, Child) and node.name == "round")
            rounds = [walker.run(tree, self._place(rank), last=False) for rank in range(world.workers)]
            world.env.run(until=world.env.all_of([world.env.process(each) for each in rounds]))
            found = {}
        for record in world.usage.records:
            key = record["step"], record["worker"]
            before = found.get(key, Part({}, {}, {}, {}, 0.0))
            traffic = {channel: record["traffic"][name] for channel, name in CHANNELS.items()}
            found[key] = Part(
                {c: before.bytes_in.get(c, 0) + traffic[c]["bytes_in"] for c in CHANNELS},
                {c: before.bytes_out.get(c, 0) + traffic[c]["bytes_out"] for c in CHANNELS},
                {c: before.operations.get(c, Counter()) + Counter(traffic[c]["operations"]) for c in CHANNELS},
                {each["stage"]: each["wall_s"] for each in record["stages"]},
                max(before.wall_s, record["wall_s"]),
            )
        return found

    @property
    def _run(self) -> Node:
        """Root of the tree of the architecture's steps, which must not consist of programs alone."""
        assert self.architecture.run is not None
        return self.architecture.run

    def _place(self, rank: int) -> WhereInRun:
        """Return the position in the run at which the drawn round starts for a worker. `rank`: the worker's number."""
        place = WhereInRun(worker=rank)
        move_to_round(self.world, place, ROUND)
        return place

    def _round_of_long_workers(self, simulate: Callable[[WorkerInvocation], SimProcess]) -> dict[tuple[str, int], Part]:
        """Simulate the drawn round of long workers, and return the usage by (step, worker), including the supervisor's if there is one.
        `simulate`: simulates the round of one worker.
        """
        world, calls = self.world, []
        for rank in range(world.workers):
            invocation = SimulatedInvocation(0.0, inf)
            size = partial(
                mlless.checkpoint_bytes if world.architecture.name == "mlless" else lambdaml.checkpoint_bytes, world
            )
            call = WorkerInvocation(world, self._place(rank), invocation, WorkerProgress(round=ROUND), size)
            call.invocation.notes["asked"] = True  # no first round of an invocation
            calls.append(call)
        if world.architecture.name == "mlless":
            world.state["supervisor"] = WorkerProgress(round=ROUND)
            supervisor = SimulatedInvocation(0.0, inf)
            world.env.process(mlless.supervise(world, self._place(0), supervisor))
        world.env.run(until=world.env.all_of([world.env.process(simulate(call)) for call in calls]))
        found = {("train", call.place.worker): _build_part(call.invocation, world.env.now) for call in calls}
        if world.architecture.name == "mlless":
            found["supervise", 0] = _build_part(supervisor, world.env.now)
        return found

    # --- sizes ----------------------------------------------------------------------------------------------------------

    def size(self, name: str) -> int:
        """Return the bytes of one item of the given kind. `name`: the kind, a key of SIZES, such as "model" or "gradient"."""
        return SIZES[name](self)

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.experiment.workers

    @property
    def minibatches(self) -> int:
        """Number of minibatches that a worker computes in the drawn round."""
        return self.world.days.minibatches_in(ROUND)

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of items that one arrow can represent, by name: "once", "others", "workers" and "minibatches"."""
        return {"once": 1, "others": self.workers - 1, "workers": self.workers, "minibatches": self.minibatches}


@cache
def load_figures(name: str) -> Figures:
    """Return the figures for the example config/<name>.yaml; the same object for each call of a process."""
    return Figures(name)


def _build_part(invocation: SimulatedInvocation, wall_s: float) -> Part:
    """Return the usage so far of one simulated invocation. `wall_s`: its seconds in all."""
    tally = invocation.tally
    stages = {name: seconds for name, seconds, _ in invocation.as_stages()}
    return Part(dict(tally.bytes_in), dict(tally.bytes_out), dict(tally.operations), stages, wall_s)


def _count_minibatch_bytes(of: Figures) -> int:
    """Return the stored bytes of the first minibatch in the drawn round."""
    return of.workload.batch_bytes(of.workload.samples[of.world.days.list_minibatches(ROUND)[0]])


SIZES: dict[str, Callable[[Figures], int]] = {
    "message": lambda of: 0,
    "minibatch": _count_minibatch_bytes,
    "model": lambda of: of.workload.vector_bytes,
    "gradient": lambda of: of.workload.vector_bytes,
    "average": lambda of: of.workload.vector_bytes,
    "chunk": lambda of: round(of.workload.vector_bytes / of.workers),
    "update": lambda of: mlless.update_bytes(of.world),
    "validation set": lambda of: of.workload.validation_bytes,
    # with the header that a vector has in a bucket or a message
    "stored model": lambda of: function_input_bytes(of.world, ROUND),
    "stored gradient": lambda of: of.workload.vector_bytes + VECTOR_HEADER_BYTES,
    "checkpoint": lambda of: lambdaml.checkpoint_bytes(of.world, ROUND),
}

"""Runs under schedules, judged: what a seed's schedule did, and the smallest one that still breaks the same promise."""

import hashlib
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

from crossover.architecture import Architecture, load
from crossover.experiment import Experiment
from crossover.learning.reference import train_reference
from crossover.surroundings import database_hosts, talks
from crossover.virtual.history import History
from crossover.virtual.kernel import Stuck
from crossover.virtual.learner import ExactLearner
from crossover.virtual.nemeses import Disturbed
from crossover.virtual.oracles import Judged, broken
from crossover.virtual.schedule import KINDS, Fault, Kind, Terrain, draw
from crossover.virtual.shrink import smallest
from crossover.virtual.world import Outcome, World

WORKERS, EPOCHS = 4, 2
TURNS = 300_000  # a hundred times what a small run takes
# Of a run whose state a lost server held: it may fail, in words.
BEYOND: Mapping[str, str] = {
    "memory_lost": "what a database held is gone with it, if no other and no checkpoint holds it",
    "queues_lost": "whoever waits for a message that went with its queue waits until a resumed run sends it again, or its hours are over",
}


@dataclass(frozen=True)
class Trial:
    """One run: its faults, those that took effect, and the promises that it broke. `digest`: of its history."""

    seed: int
    faults: tuple[Fault, ...]
    struck: tuple[Fault, ...]
    findings: tuple[str, ...]
    digest: str
    history: History = field(repr=False)


@dataclass
class Trials:
    """Of one experiment."""

    experiment: Experiment

    @property
    def architecture(self) -> Architecture:
        return load(self.experiment.architecture)

    @cached_property
    def model(self) -> str:
        """The digest of what one process comes to, where the architecture claims to end with the same bits; else ""."""
        if "equals_reference" not in self.architecture.claims:
            return ""
        world = World(self.experiment, 0)
        vector = train_reference(world.resolved, world.dataset, learner=cast(Any, ExactLearner(world.resolved)))[0]
        return hashlib.sha256(vector).hexdigest()

    @cached_property
    def undisturbed(self) -> tuple[Outcome, Terrain]:
        """A run in which nothing goes wrong, and where faults can strike. Raises AssertionError where even that breaks a promise."""
        nemesis = Disturbed()
        world = World(self.experiment, 0, nemesis)
        outcome = world.run()
        found = broken(Judged(nemesis.history, outcome, self.model, ()))
        assert not found, "; ".join(found)
        servers = {"s3": 1, "redis": len(world.servers.databases), "rabbitmq": int(talks(self.architecture))}
        programs = [f"program {rank}" for rank in range(self.experiment.workers)] if self.architecture.program else []
        terrain = Terrain(
            requests=dict(nemesis.requests),
            programs=programs,
            servers={service: count for service, count in servers.items() if count},
            seconds=outcome.seconds,
            kinds=self.kinds(),
        )
        return outcome, terrain

    def kinds(self) -> tuple[Kind, ...]:
        """What can happen to this architecture."""
        architecture = self.architecture
        absent = set[Kind]()
        if not database_hosts(self.experiment, architecture):
            absent.add("memory_lost")
        if not talks(architecture):
            absent.add("queues_lost")
        if architecture.program is None:
            absent |= {"taken", "late"}
        if architecture.run is None and not architecture.machines:
            absent |= {"throttle", "duplicate"}
        return tuple(kind for kind in KINDS if kind not in absent)

    def of(self, seed: int) -> Trial:
        """The schedule of a seed."""
        return self.under(draw(self.undisturbed[1], seed), seed)

    def under(self, faults: Sequence[Fault], seed: int) -> Trial:
        """These faults; `seed` breaks ties and spreads durations."""
        nemesis, findings = Disturbed(faults), list[str]()

        def excused() -> list[Fault]:
            return [fault for fault in nemesis.struck if fault.kind in BEYOND]

        try:
            outcome = World(self.experiment, seed, nemesis, turns=TURNS).run()
        except Stuck as stuck:
            if not excused():
                findings.append(f"every_wait_ends: {stuck}")
        else:
            findings += broken(Judged(nemesis.history, outcome, self.model, excused(), nemesis.killed))
        return Trial(
            seed, tuple(faults), tuple(nemesis.struck), tuple(findings), nemesis.history.digest, nemesis.history
        )

    def shrunk(self, trial: Trial) -> Trial:
        """The smallest schedule that breaks a promise of the same name."""
        oracles = {_oracle(finding) for finding in trial.findings}

        def fails(faults: tuple[Fault, ...]) -> bool:
            return bool(oracles & {_oracle(finding) for finding in self.under(faults, trial.seed).findings})

        return self.under(smallest(trial.faults, fails), trial.seed)


def _oracle(finding: str) -> str:
    return finding.partition(":")[0]


def reduced(experiment: Experiment) -> Experiment:
    """The same architecture and settings, with few workers and epochs: faults are found by their number, not by a run's length. Rates are
    powers of two, so that sums are exact.
    """
    given = experiment.training
    training = replace(given, epochs=min(given.epochs, EPOCHS), batch_size=min(given.batch_size, 2))
    if given.optimizer == "sgd":
        training = replace(training, learning_rate=0.5, momentum=0.5, weight_decay=0.0)
    return replace(experiment, workers=min(experiment.workers, WORKERS), training=training)


def side_by_side(trials: Trials, seeds: Sequence[int], *, processes: int) -> Iterator[Trial]:
    """The trial of each seed, in the seeds' order."""
    if processes == 1:
        yield from map(trials.of, seeds)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads half
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(trials.experiment,)) as pool:
        yield from pool.map(_of, seeds, chunksize=4)


_mine: list[Trials] = []


def _begin(experiment: Experiment) -> None:
    _mine[:] = [Trials(experiment)]


def _of(seed: int) -> Trial:
    return _mine[0].of(seed)

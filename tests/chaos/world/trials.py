"""Runs under schedules, judged: what a seed's schedule did, and the smallest one that still breaks the same promise."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from crossover.errors import UserError
from crossover.experiment import Aggregation, Experiment, Faults
from crossover.pools import start_pool
from crossover.running.resume import tolerates_failures
from crossover.training.progress import calendar_of
from crossover.workflow.architecture import Architecture, architecture_of
from crossover.workflow.infrastructure import database_hosts, uses_bus
from tests.chaos.world.asynchronous import AsynchronousSteps
from tests.chaos.world.drawing import draw
from tests.chaos.world.history import RequestHistory
from tests.chaos.world.judged import JudgedRun
from tests.chaos.world.kernel import Stuck
from tests.chaos.world.learner import BUFFERS, PARAMETERS, ExactLearner
from tests.chaos.world.nemeses import Disturbed
from tests.chaos.world.oracles import list_broken_promises
from tests.chaos.world.schedule import (
    KINDS,
    LIMITS,
    Fault,
    FaultKind,
    Requests,
    Terrain,
    ends_client,
    find_gone_roles,
    pass_by,
)
from tests.chaos.world.shrink import shrink_schedule
from tests.chaos.world.supervised import (
    judge_dropped,
    judge_fewest,
    judge_removals,
    judge_reports,
    judge_resumptions,
    judge_words,
)
from tests.chaos.world.world import RunOutcome, VirtualWorld
from tests.chaos.world.yardstick import (
    EpochResult,
    Yardstick,
    ends_training,
    evaluate_model,
    measure_mlless,
    measure_reference,
)

WORKERS, EPOCHS = 4, 2
LONG_EPOCHS = 6  # of the run that shows whether stores fill up
CURVES = 8  # different losses of runs that may stop early
OFTEN = 2  # rounds from one checkpoint to the next, in every second schedule
_TRIES = 16  # of each, one in two does not follow the run that goes on, but stops it
_SEEDS_OF_A_PROCESS = (
    500  # a world that has ended keeps 1 to 3 MB: Python does not see the cycles through its greenlets' frames
)
_OF_WORLD = (
    *(
        "part_bytes",
        "page_keys",
        "page_s",
        "spares",
        "minibatch_s",
        "minibatches",
        "missing_samples",
        "unlabelled",
        "own_bits",
        "even_s",
        "waits_s",
    ),
)  # limits that no setting is
MOST_POLLS = 8  # of one wait after its timeout: an invocation and its retries
TURNS = 300_000  # a hundred times what a small run takes


@dataclass(frozen=True)
class Trial:
    """One run under a schedule: its faults, those that took effect (`struck`), and the promises that it broke, in words (`findings`)."""

    seed: int
    faults: tuple[Fault, ...]
    struck: tuple[Fault, ...]
    findings: tuple[str, ...]
    history: RequestHistory = field(repr=False)


@dataclass
class Trials:
    """Runs of one experiment under schedules."""

    experiment: Experiment
    _yardsticks: dict[tuple[Any, ...], Yardstick] = field(default_factory=dict)

    @property
    def architecture(self) -> Architecture:
        """The experiment's architecture."""
        return architecture_of(self.experiment)

    def yardstick(self, world: VirtualWorld) -> Yardstick:
        """Return the expected results after each epoch, computed in one process; empty if what a round combines, or who takes part, depends
        on who is late.
        """
        if self.experiment.p2p.mode != "synchronous" or self._setting("scale_in") or world.own_bits:
            return {}
        # No update is on its way across a checkpoint.
        saved = world.resolved.functions.checkpoint_every if self._setting("slack") else 0
        settings = world.resolved
        rounds: tuple[Any, ...] = (
            *(saved, world.minibatches, settings.exchange.every, settings.training.epochs),
            *(world.missing_samples, world.unlabelled),
            *(settings.aggregation.rule, settings.seed),
        )
        if rounds not in self._yardsticks:
            measure = measure_mlless if self._removes and not self._adds else measure_reference
            self._yardsticks[rounds] = measure(world.resolved, world.dataset, self.make_learner(world))
        return self._yardsticks[rounds]

    def make_learner(self, world: VirtualWorld) -> ExactLearner:
        """Return the exact learner of a world."""
        return ExactLearner(world.resolved, sizes=world.sizes)

    @cached_property
    def undisturbed(self) -> tuple[RunOutcome, Terrain]:
        """The outcome of a run in which nothing goes wrong, and the places where faults can strike; computed once. Raises UserError if that
        run fails, AssertionError if it breaks a promise.
        """
        nemesis = Disturbed()
        world = self._world(0, nemesis)
        outcome = world.run()
        if outcome.failure:
            raise UserError(f"undisturbed, the run fails already: {outcome.failure}")
        found = list_broken_promises(self.collect_facts(nemesis, outcome, world)) or self._judge_long_run()
        assert not found, "; ".join(found)
        servers = {
            "s3": 1,
            "redis": len(world.servers.databases),
            "rabbitmq": int(uses_bus(self.architecture)),
            "aws": 1,
        }
        half_s = round(outcome.seconds / 2, 3)
        programs = [f"program {rank}" for rank in range(self.experiment.workers)] if self.architecture.program else []
        terrain = Terrain(
            requests=dict(nemesis.asked),
            messages=dict(nemesis.messages),
            deliveries=dict(nemesis.deliveries),
            programs=programs,
            servers={service: count for service, count in servers.items() if count},
            kinds=self.kinds(),
            again=self._resumed(half_s, nemesis.asked),
            again_s=half_s,
            may_go=self._may_go,
            limits=self._limits,
        )
        return outcome, terrain

    def _judge_long_run(self) -> list[str]:
        """Return the promises broken by an undisturbed run of several epochs with checkpoints as often as possible, and an invocation for
        each minibatch. Returns [] without a run if steps or a budget end the training, if peers are asynchronous and may be any number of
        rounds apart, or if a single worker trains, which saves whenever it likes.
        """
        given, slack = self.experiment, int(self._setting("slack") or 0)
        set_otherwise = given.training.steps or given.lifetime.budget_usd is not None
        if set_otherwise or given.p2p.mode != "synchronous" or self.architecture.alone:
            return []
        every = min(given.functions.checkpoint_every, slack + 1)
        functions = replace(given.functions, checkpoint_every=every)
        longer = Trials(replace(given, training=replace(given.training, epochs=LONG_EPOCHS), functions=functions))
        nemesis = Disturbed()
        world = longer._world(2, nemesis)
        return list_broken_promises(
            replace(longer.collect_facts(nemesis, world.run(), world), kept_rounds=2 * every + slack + 1)
        )

    def _resumed(self, at_s: float, asked: Mapping[str, Requests]) -> dict[str, Requests]:
        """Return the requests that each role makes in addition if the client dies at `at_s`, and another client stops the run and resumes
        it. `asked`: each role's requests in the undisturbed run. Empty if no client stopped the run in _TRIES seeds.
        """
        for seed in range(_TRIES):
            nemesis = Disturbed([Fault(kind="client_dies", at_s=at_s, seconds=0.1)])
            self._world(seed, nemesis).run()
            again = {role: found[len(asked.get(role, ())) :] for role, found in nemesis.asked.items()}
            if any(what.startswith("StopExecution") for _, what in nemesis.asked["client"]):
                return {role: found for role, found in again.items() if found}
        return {}

    @property
    def _adds(self) -> bool:
        """Whether MLLess sends all updates whole and applies them at once, so that the result has the bits of the average. The model then
        has no BatchNorm buffers, whose momentum of 0.1 makes sums inexact.
        """
        return self._removes and self._setting("threshold") == 0.0 and not self._setting("slack")

    @property
    def _removes(self) -> bool:
        """Whether the architecture removes workers that are silent for too long."""
        return "adds_what_others_average" in self.architecture.claims

    @property
    def _may_go(self) -> int:
        """How many workers the others can continue without."""
        return self.experiment.workers - 1 if self._removes or tolerates_failures(self.experiment) else 0

    def _setting(self, name: str) -> Any:
        """Return the value of a setting of the architecture; None if the architecture has no such setting."""
        settings = self.architecture.settings
        return getattr(settings and self.experiment.settings(settings), name, None)

    @property
    def _sizes(self) -> tuple[int, int]:
        """The model's number of parameters and buffers in these runs."""
        return PARAMETERS, 0 if self._adds else BUFFERS

    def _world(self, seed: int, nemesis: Disturbed) -> VirtualWorld:
        """Return the virtual world of a seed, with the nemesis's limits. Every even seed has a checkpoint at least every OFTEN rounds; half
        of these have an invocation for each minibatch, which must not change what is learnt. Runs that may stop early learn by one of
        CURVES seeds, so that their losses differ.
        """
        functions, exchange = self.experiment.functions, self.experiment.exchange
        if seed % 2 == 0:
            functions = replace(functions, checkpoint_every=min(functions.checkpoint_every, OFTEN))
        if seed % 4 == 2:
            exchange = replace(exchange, minibatches_per_invocation=1)
        limits, database, p2p = nemesis.limits, self.experiment.database, self.experiment.p2p
        functions = replace(
            functions,
            timeout_s=int(limits.get("timeout_s", functions.timeout_s)),
            checkpoint_every=int(limits.get("checkpoint_every", functions.checkpoint_every)),
        )
        database = replace(database, time_to_live_s=int(limits.get("time_to_live_s", database.time_to_live_s)))
        if "exchange_every" in limits:
            exchange = replace(exchange, every=int(limits["exchange_every"]))
        if "staleness_limit" in limits:
            p2p = replace(p2p, staleness_limit=int(limits["staleness_limit"]))
        if "body_bytes" in limits:
            p2p = replace(p2p, message_limit_mb=limits["body_bytes"] / 2**20)
        training, learning_seed = self.experiment.training, self.experiment.seed
        if "epochs" in limits:
            most = int(limits["epochs"])
            training = replace(training, epochs=most, early_stopping=most - 2)
            learning_seed += seed % CURVES
        aggregation, faults = self.experiment.aggregation, self.experiment.faults
        if "non_finite" in limits:
            aggregation = Aggregation(rule="median", non_finite="drop")
            faults = Faults(attack="non_finite", workers=tuple(range(1, 1 + int(limits["non_finite"]))))
        given = replace(
            self.experiment,
            seed=learning_seed,
            training=training,
            functions=functions,
            exchange=exchange,
            database=database,
            p2p=p2p,
            aggregation=aggregation,
            faults=faults,
        )
        of_world: dict[str, Any] = {
            name: limits[name] if name.endswith("_s") else int(limits[name]) for name in _OF_WORLD if name in limits
        }
        return VirtualWorld(given, seed, nemesis, turns=TURNS, sizes=self._sizes, **of_world)

    @property
    def _limits(self) -> list[str]:
        """The names in LIMITS that apply to this experiment."""
        program, steps = self.architecture.program is not None, self.architecture.run or self.architecture.machines
        training = self.experiment.training
        has = {
            "part_bytes": program and steps and self.experiment.p2p.average_in == "lambda",
            "body_bytes": program and uses_bus(self.architecture),
            "spares": program,
            "timeout_s": steps,
            "waits_s": self.architecture.state == "database",  # elsewhere no step polls
            # SPIRT's state lies in databases, and a peer keeps one checkpoint each round.
            "checkpoint_every": self.architecture.state != "database" and not self.experiment.module.startswith("p2p"),
            "time_to_live_s": database_hosts(self.experiment, self.architecture),
            "minibatches": self.experiment.training.steps is None,
            "exchange_every": self.architecture.resolve(self.experiment).exchange.every == "epoch",
            # Weights that are no power of two make sums inexact, which only where they are always in one order changes no bit.
            "missing_samples": not self.experiment.data.drop_last and not self._adds,
            "unlabelled": not self._adds and training.loss == "cross_entropy",
            "staleness_limit": self.experiment.p2p.mode == "asynchronous",
            "epochs": not (training.steps or training.early_stopping or training.image_size.begin)
            and training.schedule != "plateau",
            "own_bits": self.experiment.module == "gpu",
            "non_finite": self._drops_non_finite,
        }
        return [name for name in LIMITS if has.get(name, True)]

    @property
    def _drops_non_finite(self) -> bool:
        """Whether a round may leave out a worker whose gradient is not finite: several synchronous workers exchange plain gradients, and
        settings name no rule or attack.
        """
        given = self.experiment
        plain = (given.exchange.what, given.exchange.compression, given.p2p.mode) == (
            "gradients",
            "none",
            "synchronous",
        )
        bare = (given.aggregation, given.faults) == (Aggregation(), Faults())
        return plain and bare and given.workers > 2 and not self._removes

    def kinds(self) -> tuple[FaultKind, ...]:
        """Return the kinds of faults that can happen to this architecture."""
        architecture = self.architecture
        absent = set[FaultKind]()
        if not database_hosts(self.experiment, architecture):
            absent.add("memory_lost")
        if not uses_bus(architecture):
            absent |= {"queues_lost", "message"}
        if architecture.program is None:
            absent |= {"taken", "late"}
        if architecture.run is None and not architecture.machines:
            absent |= {"throttle", "starts", "duplicate"}
        if not self._may_go:
            absent.add("gone")
        return tuple(kind for kind in KINDS if kind not in absent)

    def run_seed(self, seed: int) -> Trial:
        """Return the trial of the schedule that `seed` draws."""
        return self.run_with(draw(self.undisturbed[1], seed), seed)

    def run_with(self, faults: Sequence[Fault], seed: int) -> Trial:
        """Run the experiment with these faults, and return the trial. A run that makes no progress has the finding "every_wait_ends".
        `seed`: breaks ties and draws durations.
        """
        nemesis = Disturbed(faults)
        try:
            world = self._world(seed, nemesis)
            findings = list_broken_promises(self.collect_facts(nemesis, world.run(), world))
        except Stuck as stuck:
            findings = [f"every_wait_ends: {stuck}"]
        return Trial(seed, tuple(faults), tuple(nemesis.struck), tuple(findings), nemesis.history)

    def collect_facts(self, nemesis: Disturbed, outcome: RunOutcome, world: VirtualWorld) -> JudgedRun:
        """Return what the oracles need to know of a run that has ended."""
        given, databases = self.experiment, database_hosts(self.experiment, self.architecture)
        lost = {fault.server for fault in nemesis.struck if fault.kind == "memory_lost"}
        left, passes = find_gone_roles(nemesis.struck), pass_by(nemesis.struck, may_go=self._may_go)
        # Whoever has gone is waited for once, as training/waits.py says; then another may evaluate in its place, with half the patience.
        patience_s = (2.0 + 1.0 + 1.0) * given.functions.timeout_s
        pace = (
            max(world.even_s, world.minibatch_s)
            * world.minibatches
            / (VirtualWorld.minibatch_s * VirtualWorld.minibatches)
        )
        pace *= max(1.0, world.resolved.training.epochs / self.experiment.training.epochs)
        within_s = 10.0 * pace * self.undisturbed[0].seconds + patience_s * len(left) if left and passes else 0.0
        every = 1 if given.module.startswith("p2p") else nemesis.experiment.functions.checkpoint_every
        days = calendar_of(nemesis.experiment, {"minibatches": nemesis.minibatches})
        keeps = all(days.rounds_until(epoch) % every == 0 for epoch in range(1, days.epochs + 1))
        supervisors = {each.process for each in nemesis.history.entries if each.role.startswith("supervise ")}
        epochs = {} if nemesis.removed and not pass_by(nemesis.struck) else self.yardstick(world)
        ended = [epochs[each["epoch"]] for each in outcome.decisions if each["epoch"] in epochs]
        return JudgedRun(
            nemesis.history,
            outcome,
            ended[-1].model if ended else "",
            epochs=epochs or (self._as_saved(nemesis, outcome, world) if keeps else None),
            killed=nemesis.killed | outcome.timed_out,
            outlived={each.role for each in nemesis.struck if each.kind == "duplicate" and each.side == "after"},
            dropped={f"train {worker}" for word, _ in nemesis.words.values() for worker in word.dropped},
            by_itself=1 + sum(map(ends_client, nemesis.struck)) if passes else 0,
            state_lost=self.architecture.state == "database"
            and len(lost) >= (databases if given.exchange.what == "gradients" else 1),
            workers=given.workers,
            budget_usd=given.lifetime.budget_usd,
            models=nemesis.models if given.p2p.mode == "synchronous" else {},
            members=0 if nemesis.removed or left or lost else given.workers + self._removes,
            every=every,
            keeps=keeps,
            within_s=within_s and within_s + sum(fault.seconds for fault in nemesis.struck),
            seen=nemesis.seen,
            wrong_steps=self._wrong_steps(nemesis, outcome, world),
            wrong_words=[
                *judge_words(nemesis.words),
                *judge_fewest(nemesis.words, given.workers, self._setting("min_workers") or 1),
                *(judge_removals(nemesis.words, given.workers) if len(supervisors) <= 1 else ()),
                *judge_reports(nemesis.words, epochs),
                *judge_resumptions(nemesis.dropped),
                *judge_dropped(nemesis.dropped, nemesis.reports),
            ],
            begun_late=[f"{role} ({when})" for role, when in world.begun_late if not _held_up(nemesis.struck, role)],
            evaluated=self._evaluate(outcome, world, epochs),
            cut_off=[f"{role} ({process})" for role, process in outcome.cut_off if not _held_up(nemesis.struck, role)],
            tolerant=tolerates_failures(given),
            overdue=[
                f"{role}, since {since}" for (role, since), polls in nemesis.overdue.items() if polls > MOST_POLLS
            ],
        )

    def _evaluate(self, outcome: RunOutcome, world: VirtualWorld, epochs: Yardstick) -> tuple[float, float] | None:
        """Return loss and metric of the run's final model, of `epochs` if they have it; None if there is no model."""
        if not outcome.stored:
            return None
        known = {each.model: (each.loss, each.metric) for each in epochs.values()}
        if outcome.model in known:
            return known[outcome.model]
        return evaluate_model(outcome.stored, world.resolved, world.dataset, self.make_learner(world))

    def _wrong_steps(self, nemesis: Disturbed, outcome: RunOutcome, world: VirtualWorld) -> list[str]:
        """Return, in words, the rounds of asynchronous peers that led elsewhere than what they averaged. Where gradients are compressed,
        attacked, or may be averaged again, their checkpoints do not say what they averaged.
        """
        given = world.resolved
        plain = (given.exchange.what, given.exchange.compression) == ("gradients", "none") and given.faults == Faults()
        if not nemesis.states or not plain or given.p2p.reuse:
            return []
        history = [(said["val_loss"], said["val_metric"]) for said in outcome.decisions]
        return AsynchronousSteps(given, world.dataset, self.make_learner(world), nemesis.states).find_wrong_steps(
            history
        )

    def _as_saved(self, nemesis: Disturbed, outcome: RunOutcome, world: VirtualWorld) -> Yardstick:
        """Return what each decision must say: the evaluation of a model that was saved at its epoch's end, by the worker that the decision
        names if peers have models of their own.
        """
        days, found, evaluated = (
            calendar_of(world.resolved, {"minibatches": world.minibatches}),
            {},
            list[tuple[float, float]](),
        )
        for said in outcome.decisions:
            saved = nemesis.saved.get(days.rounds_until(said["epoch"]), {})
            by = [said["by"]] if self.architecture.program else list(saved)
            models = {model for rank in by for model in saved.get(rank, ())}
            right = [
                evaluate_model(model, world.resolved, world.dataset, self.make_learner(world))
                for model in sorted(models)
            ]
            now = (said["val_loss"], said["val_metric"])
            evaluated.append(now if now in right or not right else right[0])
            ends = ends_training(world.resolved.training, evaluated, said["epoch"])
            found[said["epoch"]] = EpochResult("", *evaluated[-1], ends)
        return found

    def shrink(self, trial: Trial) -> Trial:
        """Return a trial with the smallest schedule that still breaks a promise of the same name."""
        oracles = {_oracle(finding) for finding in trial.findings}

        def fails(faults: tuple[Fault, ...]) -> bool:
            """Return whether a run with these faults breaks the same promise."""
            return bool(oracles & {_oracle(finding) for finding in self.run_with(faults, trial.seed).findings})

        return self.run_with(shrink_schedule(trial.faults, fails), trial.seed)


def _held_up(faults: Sequence[Fault], role: str) -> bool:
    """Return whether any of the faults may have held up an invocation of the role by some seconds."""
    own = any(fault.kind in ("freeze", "slow", "lose", "message") and fault.role == role for fault in faults)
    return own or any(fault.kind in ("outage", "refusal") and fault.service == "s3" for fault in faults)


def _oracle(finding: str) -> str:
    """Return the name of the oracle that reports the finding."""
    return finding.partition(":")[0]


def reduce_experiment(experiment: Experiment) -> Experiment:
    """Return the experiment with the same architecture and settings, but few workers and epochs. Its rates are powers of two, so that sums
    are exact.
    """
    given = experiment.training
    training = replace(given, epochs=min(given.epochs, EPOCHS), steps=None, batch_size=min(given.batch_size, 2))
    if given.optimizer == "sgd":
        training = replace(training, learning_rate=0.5, momentum=0.5, weight_decay=0.0)
    made = replace(experiment, workers=min(experiment.workers, WORKERS), training=training)
    if given.steps is None:
        return made
    days = calendar_of(architecture_of(made).resolve(made), {"minibatches": VirtualWorld.minibatches})
    early = days.rounds - (days.rounds_per_epoch > 1)  # within the last epoch, where it has several rounds
    return replace(made, training=replace(training, steps=early))


def run_trials(trials: Trials, seeds: Sequence[int], *, processes: int) -> Generator[Trial]:
    """Yield the trial of each seed, in the order of the seeds, run in several processes; without its history if it ran in another process.
    Closing the iterator cancels trials that have not started.
    """
    if processes == 1:
        yield from map(trials.run_seed, seeds)
        return
    at_once = processes * _SEEDS_OF_A_PROCESS
    for first in range(0, len(seeds), at_once):
        working = start_pool(processes, _begin, trials.experiment)
        try:
            yield from working.map(_of, seeds[first : first + at_once], chunksize=4)
        finally:
            working.shutdown(cancel_futures=True)


_mine: list[Trials] = []


def _begin(experiment: Experiment) -> None:
    """Prepare this process for trials of the experiment."""
    _mine[:] = [Trials(experiment)]


def _of(seed: int) -> Trial:
    """Run the trial of a seed in this process, and return it without its history."""
    return replace(_mine[0].run_seed(seed), history=RequestHistory())

"""What a candidate takes: at least, by arithmetic; about, without stragglers; and as the simulation says.

Three looks at one question, each dearer and closer than the one before. The first two are never above the third: no run is quicker than its
computing, and whoever waits for the slowest of several waits longer than for one that is as fast as the mean.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import ceil, exp, prod, sqrt
from typing import Any, TypeVar

from crossover.advice.candidates import LIGHT_MB, Candidate, experiment_of
from crossover.algorithms.calendar import Calendar
from crossover.architecture import steps
from crossover.architecture.infrastructure import side_by_side, talks
from crossover.costs import cost, infrastructure
from crossover.costs.prices import Prices
from crossover.errors import ConfigError
from crossover.experiment import MOST_MEMORY_MB, Experiment
from crossover.simulation import figures
from crossover.simulation.calibration import Calibration
from crossover.simulation.repetitions import (
    SIMULATED_EPOCHS,
    Draw,
    Outcome,
    RepeatedRun,
    as_drawn,
    outcome,
    simulated_epochs,
)
from crossover.simulation.services import vcpus
from crossover.simulation.simulate import Simulated, simulate
from crossover.simulation.workload import Workload
from crossover.validation import check_deployment, validate

T = TypeVar("T")

USUAL_HOST = "m7g.large"
CALM = 0.96  # stragglers of one seed make a run up to 2 % quicker than none, and a short one more
LUCKY_SIGMAS = 3.0
STILL = 1e-9  # the sigma of what is drawn and makes no difference
MANY = 10**9  # of what is used, so that dollars of one have all their digits
SURE_SIGMAS = 4.0  # a mean of stragglers is not further below its middle


@dataclass(frozen=True)
class Estimate:
    """Seconds until the model is there, from `deploy` on, and dollars of the run in full. `problem`: why AWS would not run it so."""

    seconds: float
    usd: float
    problem: str = ""

    def below(self, other: "Estimate", *, slack: float = 0.0) -> bool:
        """Whether neither figure is larger than the other's, or by such a share of it at most."""
        return self.seconds <= other.seconds * (1 + slack) and self.usd <= other.usd * (1 + slack)


@dataclass(frozen=True)
class Profile:
    """A shape's run without stragglers: seconds in all, billed seconds of functions that compute and of those that do not, and its use.

    `unshared`: the same where hosts' links have room for all at once, for long workers: one computes while others hold the link, so their
    computing adds to this one only.
    """

    seconds: float
    computing_s: float
    light_s: float
    transitions: float
    used: Mapping[str, float]  # by the names of what is billed by use
    problem: str
    hosts: float = 1.0  # by how much the seed's hosts are slower than the mean, where functions compute
    unshared: "Profile | None" = None


@dataclass(frozen=True, eq=False)
class Question:
    """What candidates are evaluated for. `samples`: training samples of an epoch; `workload`: the experiment's own sizes."""

    base: Experiment
    workload: Workload
    samples: int
    calibration: Calibration
    prices: Prices
    _known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def _once(self, make: Callable[..., T], *arguments: Any) -> T:
        """What `make` gives, worked out when it is first asked for: thousands of candidates ask alike."""
        key = (make.__name__, *arguments)
        if key not in self._known:
            self._known[key] = make(*arguments)
        found: T = self._known[key]
        return found

    def task(self, candidate: Candidate) -> RepeatedRun:
        """What repetitions of the candidate simulate."""
        experiment = experiment_of(self.base, candidate)
        return RepeatedRun(experiment, self.calibration, self.workload_of(candidate), self.prices, SIMULATED_EPOCHS)

    def workload_of(self, candidate: Candidate) -> Workload:
        """With the minibatches of one worker, the one with most samples."""
        return self._once(self._workload, candidate.workers, candidate.batch_size, candidate.limit)

    def sizes(self, experiment: Experiment) -> Workload:
        """An experiment's own minibatches of this model and data."""
        return self._workload(experiment.workers, experiment.training.batch_size, experiment.data.limit)

    def _workload(self, workers: int, batch_size: int, limit: int | None) -> Workload:
        each = -(-min(self.samples, limit or self.samples) // workers)
        full, rest = divmod(each, batch_size)
        last = (rest,) if rest and not self.base.data.drop_last else ()
        return replace(self.workload, samples=(batch_size,) * full + last)

    def span(self, candidate: Candidate) -> int:
        """Epochs of its shortest run: several where a round of local steps goes through as many. A shortened run is a multiple of them."""
        minibatches = len(self.workload_of(candidate).samples)
        every = minibatches if candidate.every == "epoch" else candidate.every
        return Calendar(minibatches, every, self.base.training.epochs).span

    def before_s(self, candidate: Candidate) -> float:
        """Until its run begins to work: everything deployed that was not there, and its instances up."""
        return self._once(self._before, candidate.architecture, candidate.on, candidate.host, candidate.instance)

    def _before(self, architecture: str, on: str, host: str, instance: str) -> float:
        cloud, shape = self.calibration, Candidate(architecture, 1, 1, 1, on=on, instance=instance)
        parts = [cloud.stack_s, *([cloud.hosts_s] if host else []), *([cloud.broker_s] if talks(shape.form) else [])]
        boot_s = infrastructure.GPU_BOOT_S if shape.gpu else infrastructure.BOOT_S
        return sum(parts) + (boot_s if instance else 0.0)

    @cached_property
    def _on_its_hosts(self) -> Calibration:
        """Without stragglers but for hosts, each as fast as the seed draws it: factors of 1 are drawn in the places of the others'."""
        drawn = as_drawn(self.calibration, self._draw)
        task, cold = (STILL if sigma else 0.0 for sigma in (drawn.task_sigma, drawn.cold_sigma))
        return replace(drawn.calm(), host_sigma=drawn.host_sigma, task_sigma=task, cold_sigma=cold)

    @cached_property
    def calm(self) -> Calibration:
        """As `simulated` draws it, without stragglers."""
        return as_drawn(self.calibration, self._draw).calm()

    @property
    def _draw(self) -> Draw:
        return Draw(self.base.seed, 0.0)

    # --- at least -----------------------------------------------------------------------------------------------------

    def least(self, candidate: Candidate) -> Estimate:
        """What computing alone takes, and what is billed for as long."""
        seconds, worked_s = self._work(candidate)
        luck = self.least_luck(
            self._drawn_epochs(candidate) * len(self.workload_of(candidate).samples),
            hosts=candidate.workers if candidate.memory_mb else 0,
        )
        seconds, worked_s = luck * seconds, luck * worked_s
        per_s, once, _ = self._stands(replace(candidate, threads=1))
        gb_s = candidate.workers * worked_s * candidate.memory_mb / 1_024
        usd = gb_s * self.prices.of("lambda.arm64.gb_second").usd
        return Estimate(seconds + self.before_s(candidate), usd + once + per_s * seconds)

    def _work(self, candidate: Candidate) -> tuple[float, float]:
        """Seconds until all rounds are computed, and seconds that one worker computes, in all of its functions."""
        batch_s, sample_s = self._once(self._computing, candidate.memory_mb, candidate.threads, candidate.instance)
        epochs, minibatches = self.base.training.epochs, self.workload_of(candidate).samples
        evaluated_s = 0.0  # all wait for the one that does it
        if not candidate.instance:
            whole_s = sample_s / self.workload.training_share
            validating_s = batch_s + self.workload.validation_samples * whole_s
            evaluations = -(-epochs // self.span(candidate))
            evaluated_s = evaluations * self.calibration.evaluate_share * validating_s
        worked_s = epochs * (len(minibatches) * batch_s + sum(minibatches) * sample_s)
        if not side_by_side(candidate.form):
            return worked_s + evaluated_s, worked_s + evaluated_s
        every = len(minibatches) if candidate.every == "epoch" else candidate.every
        rounds_s = epochs * sum(batch_s + max(part) * sample_s for part in batched(minibatches, every))
        return rounds_s + evaluated_s, worked_s + evaluated_s

    def _computing(self, memory_mb: int, threads: int, instance: str) -> tuple[float, float]:
        """Seconds of a minibatch whatever its size, and of each of its samples."""
        training = replace(self.base.training, threads=threads)
        experiment, cloud = replace(self.base, training=training), self.calm

        def of(samples: int) -> float:
            if memory_mb:
                return cloud.in_function(experiment, self.workload, samples, memory_mb=memory_mb)
            if instance.startswith("g"):
                return cloud.on_gpu(self.workload, samples, instance_type=instance)
            return cloud.on_instance(experiment, self.workload, samples, instance_type=instance)

        return 2 * of(1_000) - of(2_000), (of(2_000) - of(1_000)) / 1_000

    def _stands(self, candidate: Candidate) -> tuple[float, float, int]:
        alike = replace(candidate, batch_size=1, every=1, memory_mb=0, light_mb=LIGHT_MB[-1], limit=None)
        return self._once(self._standing, replace(alike, per_invocation="all"))

    def _standing(self, shape: Candidate) -> tuple[float, float, int]:
        """Dollars of a second of what stands around the candidate's functions, those that do not grow with time (of a run of a minute and
        more), and its secrets.
        """
        fixed = infrastructure.of(experiment_of(self.base, shape))
        short, long = (
            sum(line.usd for line in cost.bill(cost.Quantities(), fixed, self.prices, duration_s=s, transitions=0))
            for s in (1_000.0, 2_000.0)
        )
        return (long - short) / 1_000, 2 * short - long, fixed.secrets

    def _priced(self, name: str, secrets: int, seconds: float) -> float:
        """Dollars of one of what is used, in a run so long."""
        used, fixed = cost.Quantities(**{name: MANY}), infrastructure.Infrastructure(secrets=secrets)
        lines, nothing = (
            cost.bill(each, fixed, self.prices, duration_s=seconds, transitions=0) for each in (used, cost.Quantities())
        )
        return (sum(line.usd for line in lines) - sum(line.usd for line in nothing)) / MANY

    def least_luck(self, count: int, *, hosts: int) -> float:
        """What the mean of so many stragglers' factors is not below, on so many hosts of functions."""
        cloud = self.calibration
        drawn = ((cloud.compute_sigma, count), (cloud.host_sigma, hosts))
        return prod(exp(-sigma * sigma / 2 - SURE_SIGMAS * sigma / sqrt(of)) for sigma, of in drawn if of)

    def _drawn_epochs(self, candidate: Candidate) -> int:
        """Whose stragglers decide: of a longer run those after the first round's, which stand for all the others."""
        epochs, span = self.base.training.epochs, self.span(candidate)
        simulated = simulated_epochs(SIMULATED_EPOCHS, span)
        return epochs if epochs <= simulated else simulated - span

    def _luck(self, candidate: Candidate) -> tuple[float, float]:
        """What computing, and what everything else, is not below without stragglers but hosts. A worker waits for the others once a round:
        long ones have computed many minibatches by then, and send one vector or two.
        """
        minibatches = self._drawn_epochs(candidate) * len(self.workload_of(candidate).samples)
        every = len(self.workload_of(candidate).samples) if candidate.every == "epoch" else candidate.every
        rounds = max(1, minibatches // every)
        cloud = self.calibration

        def least(sigma: float, count: int) -> float:
            return min(CALM, exp(-LUCKY_SIGMAS * sigma / sqrt(count)))

        computed = rounds if side_by_side(candidate.form) else minibatches
        return least(cloud.compute_sigma, computed), least(cloud.request_sigma, rounds)

    def _figures(self, candidate: Candidate, used: Mapping[str, float], seconds: float, transitions: float) -> Estimate:
        """By `cost.bill`, which is a sum of products; hosts of a run below a minute cost more than that."""
        per_s, once, secrets = self._stands(candidate)
        usd = once + per_s * seconds + transitions * self.prices.of("stepfunctions.transition").usd
        for name, value in used.items():
            if name == "stored_bytes":
                usd += value * seconds * self._once(self._priced, name, secrets, 1.0)
            elif value:
                usd += value * self._once(self._priced, name, secrets, 0.0)
        return Estimate(seconds + self.before_s(candidate), usd)

    # --- without stragglers -------------------------------------------------------------------------------------------

    def shape(self, candidate: Candidate) -> Candidate:
        """The candidate with the quickest functions: what it takes besides computing, candidates of all sizes take as well."""
        network = figures.instances().get(candidate.host)
        usual = figures.instances().get(USUAL_HOST)
        alike = network and usual and network.bytes_s == usual.bytes_s
        return replace(
            candidate,
            instance=candidate.instance if candidate.gpu else figures.as_fast(candidate.instance),
            host=USUAL_HOST if candidate.host and alike else candidate.host,
            spot=False,
            memory_mb=MOST_MEMORY_MB if candidate.memory_mb else 0,
            light_mb=LIGHT_MB[-1],
            threads=ceil(vcpus(MOST_MEMORY_MB)) if candidate.memory_mb else candidate.threads,
        )

    def profile(self, shape: Candidate) -> "Profile":
        """By a few rounds without stragglers, on the hosts of the seed: each further one takes as long as the last."""
        found = self._profile(shape, self._on_its_hosts)
        queue = shape.host and shape.memory_mb and shape.workers > 1 and not side_by_side(shape.form)
        return replace(found, unshared=self._profile(shape, self._on_its_hosts.unshared())) if queue else found

    def _profile(self, shape: Candidate, cloud: Calibration) -> "Profile":
        experiment, workload = experiment_of(self.base, shape), self.workload_of(shape)
        epochs, minibatches = experiment.training.epochs, len(workload.samples)
        every = minibatches if shape.every == "epoch" else shape.every
        rounds, span = -(-minibatches // every), self.span(shape)

        def run(epochs: int, rounds_: int) -> Simulated:
            samples = workload.samples if rounds_ == rounds else workload.samples[: rounds_ * every]
            changed = replace(experiment, training=replace(experiment.training, epochs=epochs * span))
            return simulate(changed, cloud, workload=replace(workload, samples=samples), price_list=self.prices)

        one, times = run(1, min(rounds, 2)), epochs / span
        if rounds <= 2:
            parts = [(1.0, one)] if times == 1 else [(times - 1, run(2, rounds)), (2 - times, one)]
        else:  # T(e, r) = a + b e + c e r, from T(1, 1), T(1, 2) and T(2, 1); the last round of an epoch may be a part of one
            more = times * (minibatches / every - 1)
            parts = [(more, one), (times - 1, run(2, 1)), (2 - times - more, run(1, 1))]

        def whole(of: Callable[[Simulated], float]) -> float:
            return max(0.0, sum(share * of(part) for share, part in parts))

        computing = {step.name for step in steps(shape.form) if step.needs_torch(experiment)}
        stages = [use.stages.get("compute", [0.0])[0] for use in one.steps.values() if use.memory_mb]
        batch_s, sample_s = self._once(self._computing, shape.memory_mb, shape.threads, shape.instance)
        samples = one.workload.samples
        worked_s = shape.workers * span * (len(samples) * batch_s + sum(samples) * sample_s)
        return Profile(
            seconds=whole(lambda run: run.seconds),
            computing_s=whole(lambda run: _billed_s(run, computing)),
            light_s=whole(lambda run: _billed_s(run, run.steps.keys() - computing)),
            transitions=whole(lambda run: run.transitions),
            used={
                each.name: whole(lambda run, name=each.name: getattr(run.used, name))  # type: ignore[misc]
                for each in fields(cost.Quantities)
            },
            problem=next(iter(one.problems), ""),
            hosts=sum(stages) / worked_s if shape.memory_mb else 1.0,
        )

    def about(self, candidate: Candidate, profile: "Profile") -> Estimate:
        """What the candidate takes at least, by the profile of its shape: its own computing instead of the shape's."""
        own, quickest = self._work(candidate), self._work(self.shape(candidate))
        if profile.unshared is None:
            return self._about(candidate, profile, own, quickest)
        queued, alone = (
            self._about(candidate, profile, quickest, quickest),
            self._about(candidate, profile.unshared, own, quickest),
        )
        return Estimate(max(queued.seconds, alone.seconds), max(queued.usd, alone.usd))

    def _about(
        self, candidate: Candidate, profile: "Profile", work: tuple[float, float], quickest: tuple[float, float]
    ) -> Estimate:
        """`work`, `quickest`: as `_work` gives it, of the candidate and of its shape."""
        (seconds, worked_s), (quickest_s, quickest_worked_s) = work, quickest
        computing, else_ = self._luck(candidate)

        def of(work_s: float, whole_s: float, quickest_s: float) -> float:
            work_s, quickest_s = profile.hosts * work_s, profile.hosts * quickest_s
            return computing * work_s + else_ * max(0.0, whole_s - quickest_s)

        workers = candidate.workers
        billed_s = of(workers * worked_s, profile.computing_s, workers * quickest_worked_s)
        used = {name: else_ * value for name, value in profile.used.items()}
        gb_s = (billed_s * candidate.memory_mb + else_ * profile.light_s * candidate.light_mb) / 1_024
        return self._figures(
            candidate,
            {**used, "gb_s": gb_s},
            of(seconds, profile.seconds, quickest_s),
            else_ * profile.transitions,
        )

    # --- as the simulation says ---------------------------------------------------------------------------------------

    def simulated(self, candidate: Candidate) -> tuple[Estimate, Outcome | None]:
        """In the middle session, with the stragglers of the experiment's seed. Nothing but a problem where the YAML would be refused."""
        if problem := self.refusal(candidate):
            return Estimate(0.0, 0.0, problem), None
        found = outcome(self.task(candidate), self._draw)
        seconds = found.seconds + self.before_s(candidate)
        return Estimate(seconds, found.usd, next(iter(found.problems), "")), found

    def refusal(self, candidate: Candidate) -> str:
        """Why `run` or `deploy` would not take the candidate; empty where they would."""
        experiment = experiment_of(self.base, candidate)
        try:
            check_deployment(validate(plain_of(experiment)))
        except ConfigError as refused:
            return str(refused).splitlines()[0]
        return ""


def _billed_s(run: Simulated, names: Collection[str]) -> float:
    return sum(run.steps[name].billed_ms for name in names if name in run.steps and run.steps[name].memory_mb) / 1_000


def batched(values: Sequence[int], count: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(values), count):
        yield values[start : start + count]


def plain_of(experiment: Experiment) -> dict[str, object]:
    """As a YAML says it, every field written out."""
    return {**experiment.resolved(), "recipe": "none"}


def best(found: Sequence[tuple[Candidate, Estimate]]) -> list[tuple[Candidate, Estimate]]:
    """The Pareto front: those that none of the others beats in both figures, the cheapest first."""
    front: list[tuple[Candidate, Estimate]] = []
    for each in sorted(found, key=lambda each: (each[1].usd, each[1].seconds, str(each[0]))):
        if not front or each[1].seconds < front[-1][1].seconds:
            front.append(each)
    return front

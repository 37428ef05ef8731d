"""Estimates of a candidate's time and cost: a lower bound by arithmetic, a closer bound without stragglers, and a simulation.
Each is slower and closer than the one before. The first two are never above the third: no run is quicker than its computing, and
whoever waits for the slowest of several waits longer than for one that is as fast as the mean.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import ceil, exp, inf, prod, sqrt
from typing import Any, Literal, TypeVar

from crossover.advice.candidates import LIGHT_MB, Candidate, experiment_of
from crossover.algorithms.schedule import Calendar
from crossover.errors import ConfigError
from crossover.experiment import MAX_MEMORY_MB, Experiment
from crossover.reports import bill
from crossover.reports.prices import Prices
from crossover.simulation import figures, start_up
from crossover.simulation.calibration import Calibration, vcpus
from crossover.simulation.repetitions import (
    SIMULATED_EPOCHS,
    Draw,
    Outcome,
    RepeatedRun,
    apply_draw,
    count_simulated_epochs,
    simulate_draw,
)
from crossover.simulation.simulate import Simulated, simulate
from crossover.simulation.start_up import StartUpPart
from crossover.simulation.workload import Workload
from crossover.validation import check_deployment, validate
from crossover.workflow.architecture import steps
from crossover.workflow.infrastructure import uses_bus

T = TypeVar("T")

USUAL_HOST = "m7g.large"
MOST_THREADS = ceil(vcpus(MAX_MEMORY_MB))  # of a function
STRAGGLER_DISCOUNT = 0.96  # stragglers of one seed make a run up to 2 % quicker than none do, and a short run more
LUCKY_SIGMAS = 3.0
NEGLIGIBLE_SIGMA = 1e-9  # of a factor that is drawn, to keep the order of draws, and makes no difference
PRICED_UNITS = (
    10**9
)  # units whose price is divided by their number, so that the dollars of one unit have all their digits
FEW_MINIBATCHES = 8  # of a round that is a whole epoch: a shape's profile is drawn through so many and twice as many
SURE_SIGMAS = 4.0  # a mean of stragglers is not further below its middle
RELATED_SHARE = (
    0.9  # of what is not computing in a related shape's profile: in the shape's own it is at least 0.93 of that
)


@dataclass(frozen=True)
class Estimate:
    """An estimate of one candidate's time and cost. `seconds`: from `deploy` until the model is ready, start-up included; `usd`: dollars of
    the whole run; `problem`: why AWS would not run it, or "".
    """

    seconds: float
    usd: float
    problem: str = ""

    def is_within(self, other: "Estimate", *, slack: float = 0.0) -> bool:
        """Return whether neither the seconds nor the dollars of this estimate exceed those of `other`. `slack`: share by which they may
        exceed them, such as 0.01.
        """
        return self.seconds <= other.seconds * (1 + slack) and self.usd <= other.usd * (1 + slack)


@dataclass(frozen=True)
class Profile:
    """A simulation of a whole run without stragglers, from which bounds for similar candidates are computed. `seconds`: duration of the
    run; `computing_s`, `light_s`: billed seconds of functions that compute and of those that do not; `transitions`: number of state
    transitions; `used`: other quantities billed by use; `problem`: why AWS would not run it, or ""; `hosts`: factor by which the simulated
    hosts of functions are slower than the mean; `unshared`: the same simulation without contention for network links, for workers that
    train through several invocations, else None.
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
    """An experiment for which advice is sought, with the methods that estimate candidates for it, from quick lower bounds to a simulation.
    `base`: the experiment; `workload`: sizes of its model and data; `samples`: number of training samples; `calibration`: speeds of AWS;
    `prices`: price list. Results are cached in the object.
    """

    base: Experiment
    workload: Workload
    samples: int
    calibration: Calibration
    prices: Prices
    _known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def _get_cached(self, make: Callable[..., T], *arguments: Any) -> T:
        """Return `make(*arguments)`, computed only at the first call with these arguments and the same name of `make`."""
        key = (make.__name__, *arguments)
        if key not in self._known:
            self._known[key] = make(*arguments)
        found: T = self._known[key]
        return found

    def task(self, candidate: Candidate, *, quick: bool = False) -> RepeatedRun:
        """Return the input for simulating the candidate's run repeatedly. `quick`: represent an epoch of many rounds by fewer of them than
        usual, which is enough to compare candidates.
        """
        experiment = experiment_of(self.base, candidate)
        return RepeatedRun(
            experiment, self.calibration, self.workload_of(candidate), self.prices, SIMULATED_EPOCHS, quick=quick
        )

    def workload_of(self, candidate: Candidate) -> Workload:
        """Return the sizes of the candidate's work, with the minibatch sizes of the worker that has most samples."""
        return self._get_cached(self._workload, candidate.workers, candidate.batch_size, candidate.limit)

    def sizes(self, experiment: Experiment) -> Workload:
        """Return the sizes of the work of `experiment`, another one with the same model and data, with the minibatch sizes of the worker
        that has most samples.
        """
        return self._workload(experiment.workers, experiment.training.batch_size, experiment.data.limit)

    def _workload(self, workers: int, batch_size: int, limit: int | None) -> Workload:
        """Return the sizes of the work with the minibatch sizes of the worker that has most samples. `limit`: number of training samples to
        use, None for all. `batch_size`: samples of a worker's minibatch.
        """
        each = -(-min(self.samples, limit or self.samples) // workers)
        full, rest = divmod(each, batch_size)
        last = (rest,) if rest and not self.base.data.drop_last else ()
        return replace(self.workload, samples=(batch_size,) * full + last)

    def span(self, candidate: Candidate) -> int:
        """Return the smallest number of epochs that the candidate can train: 1, or more if its workers exchange only after several epochs.
        Its runs are a multiple of this long.
        """
        return self._get_cached(
            self._compute_span, candidate.workers, candidate.batch_size, candidate.limit, candidate.every
        )

    def _compute_span(self, workers: int, batch_size: int, limit: int | None, every: int | Literal["epoch"]) -> int:
        """Return the smallest number of epochs that a run with this share of the work can train; `span` caches it. `limit`: number of
        training samples to use, None for all; `every`: minibatches in a round. `batch_size`: samples of a worker's minibatch.
        """
        minibatches = len(self._get_cached(self._workload, workers, batch_size, limit).samples)
        return Calendar(minibatches, minibatches if every == "epoch" else every, self.base.training.epochs).span

    def before_s(self, candidate: Candidate) -> float:
        """Return the assumed seconds of the candidate's start-up: from `deploy` until its stacks are deployed and its instances have
        booted.
        """
        return self._get_cached(
            self._compute_before_s, candidate.architecture, candidate.on, candidate.host, candidate.instance
        )

    def _compute_before_s(self, architecture: str, on: str, host: str, instance: str) -> float:
        """Return the assumed seconds of start-up for an architecture on the platform `on`. `host`, `instance`: instance types of the
        database hosts and of the programs, "" if there are none.
        """
        shape = Candidate(architecture, 1, 1, 1, on=on, host=host, instance=instance)
        return sum(each.seconds for each in self.start_up(shape))

    def start_up(self, candidate: Candidate) -> list[StartUpPart]:
        """Return the parts of the candidate's start-up (stacks, hosts, broker, instances), each with its range; their medians add up to
        `before_s`.
        """
        return start_up.list_parts(
            self.calibration,
            hosts=bool(candidate.host),
            broker=uses_bus(candidate.form),
            instance=bool(candidate.instance),
            gpu=candidate.gpu,
        )

    @cached_property
    def _host_calibration(self) -> Calibration:
        """The calibration under median AWS conditions with the speeds of functions' hosts as the experiment's seed draws them, and without
        other stragglers.
        """
        drawn = apply_draw(self.calibration, self._draw)
        task, cold = (NEGLIGIBLE_SIGMA if sigma else 0.0 for sigma in (drawn.task_sigma, drawn.cold_sigma))
        return replace(drawn.without_stragglers(), host_sigma=drawn.host_sigma, task_sigma=task, cold_sigma=cold)

    @cached_property
    def calm(self) -> Calibration:
        """The calibration under median AWS conditions, without stragglers."""
        return apply_draw(self.calibration, self._draw).without_stragglers()

    @property
    def _draw(self) -> Draw:
        """The random conditions of a simulation with the experiment's seed, under median AWS conditions."""
        return Draw(self.base.seed, 0.0)

    # --- at least -----------------------------------------------------------------------------------------------------

    def bound_by_computing(self, candidate: Candidate) -> Estimate:
        """Return a lower bound of the candidate's time and cost, without simulation: start-up, its computing alone, and what is billed
        during that time.
        """
        seconds, worked_s = self._computing_time(candidate)
        each = candidate
        luck = self._get_cached(
            self._least_luck, each.workers, each.batch_size, each.limit, each.every, bool(each.memory_mb)
        )
        seconds, worked_s = luck * seconds, luck * worked_s
        per_s, once, _ = self._infrastructure_usd(candidate, threads=1)
        gb_s = each.workers * worked_s * each.memory_mb / 1_024
        return Estimate(seconds + self.before_s(candidate), gb_s * self._gb_s_usd + once + per_s * seconds)

    @cached_property
    def _gb_s_usd(self) -> float:
        """Dollars of one GB-second of a function."""
        return self.prices.of("lambda.arm64.gb_second").usd

    def _least_luck(
        self, workers: int, batch_size: int, limit: int | None, every: int | Literal["epoch"], in_functions: bool
    ) -> float:
        """Return a lower bound for the mean of the random factors of all gradients of a run; `_get_cached` keeps it. `batch_size`: samples
        of a worker's minibatch; `limit`: number of training samples to use, None for all; `every`: minibatches in a round; `in_functions`:
        whether functions compute, whose hosts have a factor too.
        """
        minibatches = len(self._get_cached(self._workload, workers, batch_size, limit).samples)
        epochs = self._count_drawn_epochs(workers, batch_size, limit, every)
        return self.least_straggler_factor(epochs * minibatches, hosts=workers if in_functions else 0)

    def _computing_time(self, candidate: Candidate) -> tuple[float, float]:
        """Return (seconds of computing in the whole run, seconds that one worker's functions or program spend on it). They differ if
        functions compute minibatches in parallel. Evaluations by functions and by GPUs are included; those by other instances are not.
        """
        each = candidate
        return self._get_cached(
            self._compute_computing_time, each.workers, each.batch_size, each.limit, each.every, each.memory_mb,
            each.threads, "" if each.memory_mb else each.instance, not each.instance or each.gpu, each.has_minibatch_map,
        )  # fmt: skip

    def _compute_computing_time(
        self,
        workers: int,
        batch_size: int,
        limit: int | None,
        every: int | Literal["epoch"],
        memory_mb: int,
        threads: int,
        instance: str,
        evaluates: bool,
        mapped: bool,
    ) -> tuple[float, float]:
        """Return what `_computing_time` returns, which keeps it for all candidates with the same values. `batch_size`: samples of a
        worker's minibatch; `limit`: number of training samples to use, None for all; `every`: minibatches in a round; `memory_mb`,
        `threads`, `instance`: as for `_gradient_times`; `evaluates`: whether the evaluations count; `mapped`: whether functions compute a
        round's minibatches side by side.
        """
        batch_s, sample_s = self._get_cached(self._gradient_times, memory_mb, threads, instance)
        epochs = self.base.training.epochs
        minibatches, rounds, samples, longest = self._get_cached(self._count_work, workers, batch_size, limit, every)
        evaluated_s = 0.0  # all wait for the one that does it
        if evaluates:
            whole_s = sample_s / self.workload.training_share
            validating_s = batch_s + self.workload.validation_samples * whole_s
            span = self._get_cached(self._compute_span, workers, batch_size, limit, every)
            evaluated_s = -(-epochs // span) * self.calibration.evaluate_share * validating_s
        worked_s = epochs * (minibatches * batch_s + samples * sample_s)
        if not mapped:
            return worked_s + evaluated_s, worked_s + evaluated_s
        rounds_s = epochs * (rounds * batch_s + longest * sample_s)
        return rounds_s + evaluated_s, worked_s + evaluated_s

    def _count_work(
        self, workers: int, batch_size: int, limit: int | None, every: int | Literal["epoch"]
    ) -> tuple[int, int, int, int]:
        """Return (minibatches, rounds, samples, longest): counts of an epoch of the worker that has most samples. A round ends with an
        exchange; `longest` are the samples in the largest minibatch of each round, summed over the rounds. `limit`: number of training
        samples to use, None for all; `every`: minibatches in a round. `batch_size`: samples of a worker's minibatch.
        """
        samples = self._get_cached(self._workload, workers, batch_size, limit).samples
        parts = list(batched(samples, len(samples) if every == "epoch" else every))
        return len(samples), len(parts), sum(samples), sum(map(max, parts))

    def _gradient_times(self, memory_mb: int, threads: int, instance: str) -> tuple[float, float]:
        """Return (fixed, per sample): two times in seconds of computing a gradient, the part that does not depend on the size of the
        minibatch, and the part for each of its samples. `memory_mb`: memory of the function, 0 for an instance; `threads`: of one gradient;
        `instance`: instance type, "" for a function.
        """
        training = replace(self.base.training, threads=threads)
        experiment, cloud = replace(self.base, training=training), self.calm

        def of(samples: int) -> float:
            """Return the seconds in which one gradient of `samples` samples is computed, on the function or instance type that the outer
            call names.
            """
            if memory_mb:
                return cloud.function_gradient_s(experiment, self.workload, samples, memory_mb=memory_mb)
            if instance.startswith("g"):
                return cloud.gpu_gradient_s(
                    self.workload, samples, instance_type=instance, precision=training.precision
                )
            return cloud.instance_gradient_s(experiment, self.workload, samples, instance_type=instance)

        return 2 * of(1_000) - of(2_000), (of(2_000) - of(1_000)) / 1_000

    def _infrastructure_usd(self, candidate: Candidate, *, threads: int = 0) -> tuple[float, float, int]:
        """Return (dollars per second, dollars that do not grow with time, number of secrets) of the infrastructure around a candidate's
        functions. They are cached for all candidates with the same infrastructure. `threads`: replaces the candidate's own number, unless
        0.
        """
        each = candidate
        key = (
            "infrastructure", each.architecture, each.workers, each.updates, each.what, each.compression, threads or each.threads,
            each.channel, each.compute, each.host, each.on, each.instance, each.spot,
        )  # fmt: skip
        if key not in self._known:
            alike = each._replace(batch_size=1, every=1, memory_mb=0, light_mb=LIGHT_MB[-1], limit=None)
            shape = alike._replace(per_invocation="all", threads=threads or each.threads)
            self._known[key] = self._compute_infrastructure_usd(shape)
        found: tuple[float, float, int] = self._known[key]
        return found

    def _compute_infrastructure_usd(self, shape: Candidate) -> tuple[float, float, int]:
        """Return (dollars per second, dollars that do not grow with time, number of secrets) of the infrastructure around the functions of
        the candidate `shape`, for runs of a minute and more.
        """
        fixed = bill.infrastructure_of(experiment_of(self.base, shape))
        short, long = (
            sum(line.usd for line in bill.bill(bill.Quantities(), fixed, self.prices, duration_s=s, transitions=0))
            for s in (1_000.0, 2_000.0)
        )
        return (long - short) / 1_000, 2 * short - long, fixed.secrets

    def _unit_price(self, name: str, secrets: int, seconds: float) -> float:
        """Return the dollars of one unit of something billed by use. `name`: field of `bill.Quantities`; `secrets`: number of secrets that
        each cold start reads; `seconds`: duration of the run.
        """
        used, fixed = bill.Quantities(**{name: PRICED_UNITS}), bill.Infrastructure(secrets=secrets)
        lines, nothing = (
            bill.bill(each, fixed, self.prices, duration_s=seconds, transitions=0) for each in (used, bill.Quantities())
        )
        return (sum(line.usd for line in lines) - sum(line.usd for line in nothing)) / PRICED_UNITS

    def least_straggler_factor(self, count: int, *, hosts: int) -> float:
        """Return a lower bound for the mean of the random factors by which `count` computations on `hosts` hosts of functions are slower
        than usual. if both are 0; `hosts` is 0 if no functions compute.
        """
        cloud = self.calibration
        drawn = ((cloud.compute_sigma, count), (cloud.host_sigma, hosts))
        return prod(exp(-sigma * sigma / 2 - SURE_SIGMAS * sigma / sqrt(of)) for sigma, of in drawn if of)

    def _count_drawn_epochs(
        self, workers: int, batch_size: int, limit: int | None, every: int | Literal["epoch"]
    ) -> int:
        """Return the number of epochs whose random stragglers determine the simulated result: all if all are simulated, otherwise the
        simulated ones without the first `span`. `batch_size`: samples of a worker's minibatch; `limit`: number of training samples to use,
        None for all; `every`: minibatches in a round.
        """
        epochs, span = (
            self.base.training.epochs,
            self._get_cached(self._compute_span, workers, batch_size, limit, every),
        )
        simulated = count_simulated_epochs(SIMULATED_EPOCHS, span)
        return epochs if epochs <= simulated else simulated - span

    def _least_factors(self, candidate: Candidate) -> tuple[float, float]:
        """Return (for computing, for everything else): lower bounds for the random factors by which stragglers change the times of a
        candidate's run. The factors of hosts are not included.
        """
        each = candidate
        return self._get_cached(
            self._compute_least_factors, each.workers, each.batch_size, each.limit, each.every, each.has_minibatch_map
        )

    def _compute_least_factors(
        self, workers: int, batch_size: int, limit: int | None, every: int | Literal["epoch"], mapped: bool
    ) -> tuple[float, float]:
        """Return the two bounds of `_least_factors`, which caches them. `limit`: number of training samples to use, None for all; `every`:
        minibatches in a round; `mapped`: whether functions compute a round's minibatches side by side. `batch_size`: samples of a worker's
        minibatch.
        """
        epochs = self._count_drawn_epochs(workers, batch_size, limit, every)
        each_epoch = len(self._get_cached(self._workload, workers, batch_size, limit).samples)
        minibatches = epochs * each_epoch
        rounds = max(1, minibatches // (each_epoch if every == "epoch" else every))
        cloud = self.calibration

        def least(sigma: float, count: int) -> float:
            """Return a lower bound for the mean of `count` random factors with the spread `sigma`, at most STRAGGLER_DISCOUNT."""
            return min(STRAGGLER_DISCOUNT, exp(-LUCKY_SIGMAS * sigma / sqrt(count)))

        computed = rounds if mapped else minibatches
        return least(cloud.compute_sigma, computed), least(cloud.request_sigma, rounds)

    def _estimate_from_quantities(
        self, candidate: Candidate, used: Mapping[str, float], seconds: float, transitions: float
    ) -> Estimate:
        """Return the candidate's estimate, start-up included, from quantities billed by use, seconds of the run, and state transitions. The
        dollars are those of `bill.bill`, except that instances of a run shorter than a minute cost more in reality. `used`: quantities by
        field of `bill.Quantities`.
        """
        per_s, once, secrets = self._infrastructure_usd(candidate)
        usd = once + per_s * seconds + transitions * self.prices.of("stepfunctions.transition").usd
        for name, value in used.items():
            if name == "stored_bytes":
                usd += value * seconds * self._get_cached(self._unit_price, name, secrets, 1.0)
            elif value:
                usd += value * self._get_cached(self._unit_price, name, secrets, 0.0)
        return Estimate(seconds + self.before_s(candidate), usd)

    # --- without stragglers -------------------------------------------------------------------------------------------

    def shape(self, candidate: Candidate) -> Candidate:
        """Return a copy of the candidate with the quickest functions, the usual types of hosts and instances with the same network (GPUs
        keep theirs), and without spot. Candidates with the same copy, called their shape, differ only in how fast they compute, so that one
        simulation gives bounds for all of them.
        """
        each = candidate
        instance, host = self._get_cached(self._find_equivalents, each.instance, each.host)
        memory_mb, threads = (MAX_MEMORY_MB, MOST_THREADS) if each.memory_mb else (0, each.threads)
        key = (
            "shape", each.architecture, each.workers, each.batch_size, each.every, each.updates, each.what, each.compression, memory_mb,
            threads, each.per_invocation, each.channel, each.compute, host, each.on, instance, each.limit,
        )  # fmt: skip
        if key not in self._known:
            sizes = each._replace(memory_mb=memory_mb, threads=threads, light_mb=LIGHT_MB[-1])
            self._known[key] = sizes._replace(instance=instance, host=host, spot=False)
        found: Candidate = self._known[key]
        return found

    def _find_equivalents(self, instance: str, host: str) -> tuple[str, str]:
        """Return (instance type, database host): the types that a shape has instead of `instance` and `host`, with the same network. GPU
        instances, and hosts with another network than USUAL_HOST, stay.
        """
        known, usual = figures.load_instances().get(host), figures.load_instances().get(USUAL_HOST)
        alike = known and usual and known.bytes_s == usual.bytes_s
        return (
            instance if instance.startswith("g") else figures.find_equivalent_type(instance),
            USUAL_HOST if host and alike else host,
        )

    def family(self, shape: Candidate) -> Candidate:
        """Return a key that shapes have in common if the same number of workers exchange the same vectors. They differ in minibatch size,
        in the number of minibatches between exchanges and in the instance type; a single GPU keeps its type, because its checkpoints go by
        time. The key is made only for comparing: no run has its sizes.
        """
        known = figures.load_instances().get(shape.instance)
        if shape.gpu and known is not None:  # whose network must not be what limits them
            through_store = shape.workers > 1 and self.base.gpu.exchange == "s3"
            replaceable = through_store and (known.bytes_s or inf) >= self.calibration.instance_objects.client_bytes_s
        else:
            replaceable = known is not None and known.bytes_s is not None
        return shape._replace(batch_size=1, every=1, limit=None, instance="" if replaceable else shape.instance)

    def lightness(self, shape: Candidate) -> tuple[float, ...]:
        """Return a sort key, as a tuple of numbers, for the shapes of one family (see `family`). The largest key has the shape with the
        least to exchange: the fewest exchanges, the fewest minibatches, the fastest network; of GPUs the slowest, which hides most of what
        is read ahead.
        """
        every = len(self.workload_of(shape).samples) if shape.every == "epoch" else shape.every
        known = figures.load_instances().get(shape.instance)
        if shape.gpu:
            _, sample_s = self._get_cached(self._gradient_times, shape.memory_mb, shape.threads, shape.instance)
            return (every * shape.batch_size, shape.batch_size, sample_s)
        network = ((known.bytes_s or 0.0), known.vcpus) if known else (0.0, 0.0)
        return (every * shape.batch_size, shape.batch_size, *network)

    def profile(self, shape: Candidate) -> "Profile":
        """Return a simulation of the shape's whole run without stragglers other than slow hosts, extrapolated from a few rounds, since all
        further rounds take equally long. Not cached. If AWS would not run it, nothing is raised; the result's `problem` says why. `shape`:
        result of the method `shape`.
        """
        found = self._profile(shape, self._host_calibration)
        queue = shape.host and shape.memory_mb and shape.workers > 1 and not shape.has_minibatch_map
        return (
            replace(found, unshared=self._profile(shape, self._host_calibration.without_sharing())) if queue else found
        )

    def _profile(self, shape: Candidate, cloud: Calibration) -> "Profile":
        """Return a simulation of the shape's whole run under the calibration `cloud`, extrapolated linearly in epochs and rounds, with
        `unshared` None.
        """
        experiment, workload = experiment_of(self.base, shape), self.workload_of(shape)
        epochs, minibatches = experiment.training.epochs, len(workload.samples)
        every = minibatches if shape.every == "epoch" else shape.every
        times_each = minibatches / every
        if shape.every == "epoch" and minibatches > 2 * FEW_MINIBATCHES and not shape.has_minibatch_map:
            # A round that is a whole epoch: linear in its minibatches, which follow one another. The last may be smaller.
            every, times_each = FEW_MINIBATCHES, sum(workload.samples) / (FEW_MINIBATCHES * shape.batch_size)
        rounds, span = -(-minibatches // every), self.span(shape)

        def run(epochs: int, rounds_: int) -> Simulated:
            """Return a simulation of the shape for `epochs` times its smallest number of epochs, with `rounds_` rounds in each epoch."""
            samples = workload.samples if rounds_ == rounds else workload.samples[: rounds_ * every]
            changed = replace(experiment, training=replace(experiment.training, epochs=epochs * span))
            return simulate(changed, cloud, workload=replace(workload, samples=samples), price_list=self.prices)

        one, times = run(1, min(rounds, 2)), epochs / span
        if rounds <= 2:
            parts = [(1.0, one)] if times == 1 else [(times - 1, run(2, rounds)), (2 - times, one)]
        elif (
            shape.form.alone
        ):  # linear in epochs and in rounds, and other in the first epoch, in which it reads its data
            rounds_ = times_each
            parts = [
                ((2 - times) * (2 - rounds_), run(1, 1)),
                ((times - 1) * (2 - rounds_), run(2, 1)),
                ((2 - times) * (rounds_ - 1), one),
                ((times - 1) * (rounds_ - 1), run(2, 2)),
            ]
        else:  # the rounds of all epochs are alike
            more = times * (times_each - 1)
            parts = [(2 - times - more, run(1, 1)), (times - 1, run(2, 1)), (more, one)]

        def whole(of: Callable[[Simulated], float]) -> float:
            """Return a figure of the whole run: the sum of the parts' figures times their shares, which may be negative; at least 0. `of`:
            returns the figure of one simulation.
            """
            return max(0.0, sum(share * of(part) for share, part in parts))

        computing = {step.name for step in steps(shape.form) if step.needs_torch(experiment)}
        stages = [use.stages.get("compute", [0.0])[0] for use in one.steps.values() if use.memory_mb]
        batch_s, sample_s = self._get_cached(self._gradient_times, shape.memory_mb, shape.threads, shape.instance)
        samples = one.workload.samples
        worked_s = shape.workers * span * (len(samples) * batch_s + sum(samples) * sample_s)
        return Profile(
            seconds=whole(lambda run: run.seconds),
            computing_s=whole(lambda run: _billed_s(run, computing)),
            light_s=whole(lambda run: _billed_s(run, run.steps.keys() - computing)),
            transitions=whole(lambda run: run.transitions),
            used={
                each.name: whole(lambda run, name=each.name: getattr(run.used, name))  # type: ignore[misc]
                for each in fields(bill.Quantities)
            },
            problem=next(iter(one.problems), ""),
            hosts=sum(stages) / worked_s if shape.memory_mb else 1.0,
        )

    def bound_by_profile(self, candidate: Candidate, profile: "Profile", shape: Candidate | None = None) -> Estimate:
        """Return a lower bound of the candidate's time and cost, usually closer than that of `bound_by_computing`: the simulation of its
        shape, `profile`, with the candidate's own computing time in place of the shape's.

        `shape`: the shape that was simulated, if it is another one of the same family. The bound is then less close.
        """
        own_shape = self.shape(candidate)
        shape = shape or own_shape
        # A slower GPU that does all else alike hides at least as much of what is read ahead.
        alike = shape == own_shape or (shape.gpu and shape._replace(instance=own_shape.instance) == own_shape)
        share = 1.0 if alike else RELATED_SHARE
        own = self._computing_time(candidate)
        quickest, profiled = self._computing_time(own_shape), self._computing_time(shape)
        if profile.unshared is None:
            return self._bound_by_one_profile(candidate, profile, own, profiled, share)
        queued, alone = (
            self._bound_by_one_profile(candidate, profile, quickest, profiled, share),
            self._bound_by_one_profile(candidate, profile.unshared, own, profiled, share),
        )
        return Estimate(max(queued.seconds, alone.seconds), max(queued.usd, alone.usd))

    def _bound_by_one_profile(
        self,
        candidate: Candidate,
        profile: "Profile",
        work: tuple[float, float],
        profiled: tuple[float, float],
        share: float,
    ) -> Estimate:
        """Return a lower bound of the candidate's time and cost from one simulation. `work`, `profiled`: computing times, as
        `_computing_time` returns them, of the candidate and of the shape that was simulated; `share`: share of the simulated time other
        than computing that is certain for this candidate.
        """
        (seconds, worked_s), (quickest_s, quickest_worked_s) = work, profiled
        computing, else_ = self._least_factors(candidate)
        else_ *= share

        def of(work_s: float, whole_s: float, quickest_s: float) -> float:
            """Return a lower bound of a time of the candidate: its own computing, and all that the simulation took besides computing.
            `work_s`: its own computing time; `whole_s`: the time in the simulation; `quickest_s`: the shape's computing time.
            """
            work_s, quickest_s = profile.hosts * work_s, profile.hosts * quickest_s
            return computing * work_s + else_ * max(0.0, whole_s - quickest_s)

        workers = candidate.workers
        billed_s = of(workers * worked_s, profile.computing_s, workers * quickest_worked_s)
        used = {name: else_ * value for name, value in profile.used.items()}
        gb_s = (billed_s * candidate.memory_mb + else_ * profile.light_s * candidate.light_mb) / 1_024
        return self._estimate_from_quantities(
            candidate,
            {**used, "gb_s": gb_s},
            of(seconds, profile.seconds, quickest_s),
            else_ * profile.transitions,
        )

    # --- as the simulation says ---------------------------------------------------------------------------------------

    def simulated(self, candidate: Candidate) -> tuple[Estimate, Outcome | None]:
        """Return (estimate, outcome) of the candidate's simulation under median AWS conditions, with the stragglers that the experiment's
        seed draws. If validation would refuse the candidate's YAML, the estimate has 0 seconds and dollars and the reason as its problem,
        and the outcome is None. Not cached.
        """
        if problem := self.refusal(candidate):
            return Estimate(0.0, 0.0, problem), None
        found = simulate_draw(self.task(candidate, quick=True), self._draw)
        seconds = found.seconds + self.before_s(candidate)
        return Estimate(seconds, found.usd, next(iter(found.problems), "")), found

    def refusal(self, candidate: Candidate) -> str:
        """Return the first line of why `run` or `deploy` would refuse the candidate's YAML, "" if they would not."""
        experiment = experiment_of(self.base, candidate)
        try:
            check_deployment(validate(plain_of(experiment)))
        except ConfigError as refused:
            return str(refused).splitlines()[0]
        return ""


def _billed_s(run: Simulated, names: Collection[str]) -> float:
    """Return the billed seconds of the Lambda functions of the named steps in a simulated run."""
    return sum(run.steps[name].billed_ms for name in names if name in run.steps and run.steps[name].memory_mb) / 1_000


def batched(values: Sequence[int], count: int) -> Iterator[Sequence[int]]:
    """Yield consecutive slices of `values` with `count` values each; the last may be shorter."""
    for start in range(0, len(values), count):
        yield values[start : start + count]


def plain_of(experiment: Experiment) -> dict[str, object]:
    """Return the experiment as a new dictionary for YAML: every field written out, and `recipe: none` in place of its own recipe, so that
    no recipe changes the fields.
    """
    return {**experiment.to_plain(), "recipe": "none"}


def best(found: Sequence[tuple[Candidate, Estimate]]) -> list[tuple[Candidate, Estimate]]:
    """Return the Pareto front of candidates with their estimates, the cheapest first: each is quicker than all cheaper ones."""
    front: list[tuple[Candidate, Estimate]] = []
    for each in sorted(found, key=lambda each: (each[1].usd, each[1].seconds, str(each[0]))):
        if not front or each[1].seconds < front[-1][1].seconds:
            front.append(each)
    return front

"""Every supported way to train an experiment, as small values: architecture, workers, memory, threads, and the other axes. The
axes follow from what an architecture declares, so a new architecture gets its candidates without a change here.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import ceil
from typing import Literal, NamedTuple, get_args, get_type_hints

from crossover.algorithms.codecs import CODECS
from crossover.experiment import Exchange, Experiment, Functions, What
from crossover.learning.sizes import DATA
from crossover.learning.staging import count_minibatches
from crossover.reports import display
from crossover.reports.prices import Prices
from crossover.simulation import figures
from crossover.simulation.calibration import vcpus
from crossover.simulation.figures import UNKNOWN_INSTANCE
from crossover.simulation.processors import count_threads as threads_of
from crossover.simulation.workload import MODEL_SIZES
from crossover.workflow.architecture import Architecture, architectures, load, steps
from crossover.workflow.infrastructure import has_invocation_loop, has_minibatch_map, uses_bus

OWN, UNKNOWN = "own updates", "accuracy unknown"
Every = int | Literal["epoch"]

WORKERS = (1, 2, 4, 8, 16, 32, 64)
SPLITS = (1, 2, 4, 8, 16, 32, 64)  # into how many minibatches a worker cuts its share of an update
MIN_BATCH = 8  # of samples: BatchNorm needs several, and smaller ones leave processors idle
MEMORY_MB = (512, 1_024, 1_536, 1_769, 2_048, 2_560, 3_008, 3_538, 5_307, 7_076, 8_845, 10_240)
LIGHT_MB = (256, 512)  # of a function that does not compute
LOCAL_ROUNDS = (1, 4, 16)  # how often in an epoch models are averaged that are trained apart
MINIBATCHES_PER_INVOCATION: tuple[int | Literal["all"], ...] = (1, "all")  # minibatches of an invocation


class Candidate(NamedTuple):
    """One way to train an experiment. `batch_size`: samples of a worker's minibatch; `every`: minibatches of a worker between two
    exchanges, or "epoch"; `updates`: OWN if it makes the experiment's own updates to the model, UNKNOWN if it makes others, whose accuracy
    is unknown; `what`, `compression`: what workers exchange, and how compressed; `memory_mb`: memory of functions that compute, 0 if none
    do; `light_mb`: memory of those that do not; `threads`: of one gradient; `per_invocation`: minibatches of one invocation; `channel`:
    store of the vectors; `compute`: whether the database averages or functions fetch; `host`: instance type of the database hosts, ""
    without any; `on`: platform, "" for an architecture with only one; `instance`: instance type of the workers' programs, "" if functions
    compute; `spot`: whether these are spot instances; `limit`: number of training samples to use, None for all.
    """

    architecture: str
    workers: int
    batch_size: int
    every: Every
    updates: str = OWN
    what: What = "gradients"
    compression: str = "none"
    memory_mb: int = 0
    light_mb: int = 512
    threads: int = 1
    per_invocation: int | Literal["all"] = "all"
    channel: Literal["redis", "s3"] = "redis"
    compute: Literal["in_database", "fetch"] = "in_database"
    host: str = ""
    on: str = ""  # of an architecture that has a choice of forms
    instance: str = ""
    spot: bool = False
    limit: int | None = None  # of training samples, where only so many make updates of equal size

    @property
    def words(self) -> str:
        """Description of the candidate for people: how many functions or instances, of which size, and the architecture: `4 functions of
        1,769 MB, spirt`.
        """
        by = "" if self.form.alone else f", {self.name}"
        workers = display.describe_workers(
            self.workers, memory_mb=self.memory_mb, instance=self.instance, spot=self.spot
        )
        return f"{workers}{by}"

    @property
    def name(self) -> str:
        """Name of the candidate's architecture for people, followed by its channel and compression if those are not the defaults."""
        return display.name_architecture(self.architecture, self.channel, self.compression)

    @property
    def form(self) -> Architecture:
        """The candidate's architecture, as it runs on the candidate's platform."""
        return _load_form(self.architecture, self.on)

    @property
    def has_minibatch_map(self) -> bool:
        """True if the candidate computes the minibatches of a round side by side."""
        return _has_minibatch_map(self.architecture, self.on)

    @property
    def has_long_functions(self) -> bool:
        """True if each worker is one long function, which is invoked again and again until training ends."""
        return not self.instance and has_invocation_loop(self.form)

    @property
    def kind(self) -> str:
        """Kind of resource that the candidate's workers use: `lambda`, `ec2` or `gpu`."""
        if not self.instance:
            return "lambda"
        return "gpu" if self.gpu else "ec2"

    @property
    def gpu(self) -> bool:
        """True if the candidate's instances have GPUs."""
        return self.instance.startswith("g")


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a run's work that each worker does, and what it exchanges. `batch_size`: samples of a worker's minibatch; `every`:
    minibatches between two exchanges; `limit`: number of training samples to use in all, None for all there are; `updates`: whether the
    experiment's own updates result; `what`, `compression`: what workers exchange, and how compressed.
    """

    workers: int
    batch_size: int
    every: Every
    limit: int | None
    updates: str = OWN
    what: What = "gradients"
    compression: str = "none"


LeastMemory = Callable[[int], int]  # MB of the smallest function that holds a minibatch of so many samples


def list_candidates(
    base: Experiment, *, samples: int, prices: Prices, least_mb: LeastMemory, alone: bool = False
) -> Iterator[Candidate]:
    """Yield all candidates for the experiment `base`, each once and always in the same order. `samples`: number of training samples;
    `prices`: instance types without a price are left out, except the experiment's own; `least_mb`: function from a batch size to the memory
    of the smallest function for it, which is tried besides MEMORY_MB and the experiment's own size; `alone`: yield only candidates with one
    worker.
    """
    seen = set[Candidate]()
    for name in ("single",) if alone else architectures():
        architecture = load(name)
        for share in list_shares(base, architecture, samples=samples):
            for candidate in _candidates_of_share(base, architecture, share, prices, least_mb):
                if candidate not in seen:
                    seen.add(candidate)
                    yield candidate


# --- what a worker does ----------------------------------------------------------------------------------------------


def list_shares(base: Experiment, architecture: Architecture, *, samples: int) -> Iterator[Share]:
    """Yield the ways to divide the work of `base` among the workers of an architecture, for each number of workers that the architecture
    can have: first those with the experiment's own updates, then others, whose accuracy is unknown. `samples`: number of training samples.
    """
    own = load(base.architecture).resolve(base)
    exact = "equals_reference" in architecture.claims
    for workers in sorted({*WORKERS, base.workers}):
        if (workers == 1) is not architecture.alone and not (workers == 1 and has_minibatch_map(architecture)):
            continue  # one worker has nobody to exchange anything with
        if _sums_gradients(own):
            for share in _shares_with_own_updates(own, workers, samples):
                yield replace(share, updates=OWN if exact else UNKNOWN)
            yield from _shares_with_other_updates(own, architecture, workers, samples)
        elif workers == own.workers and _ends_alike(own, architecture):
            asked, batch = own.exchange, own.training.batch_size
            assert asked.every is not None
            yield Share(workers, batch, asked.every, own.data.limit, OWN, asked.what, asked.compression)
        else:
            for share in _shares_with_own_updates(_make_synchronous(own), workers, samples):
                yield replace(share, updates=UNKNOWN)


def _sums_gradients(own: Experiment) -> bool:
    """Return whether each update of the experiment is simply the mean of its samples' gradients, so that it does not matter which worker
    computes which.
    """
    exact = "equals_reference" in load(own.architecture).claims
    plain = own.exchange.what == "gradients" and own.exchange.compression == "none" and own.p2p.mode == "synchronous"
    return exact and plain and own.aggregation.rule == "mean" and own.faults.attack == "none"


def _ends_alike(own: Experiment, architecture: Architecture) -> bool:
    """Return whether `architecture`, with the same workers and minibatches, trains exactly the same model, bit for bit, as the experiment's
    own architecture. True for the experiment's own architecture in any case.
    """
    mine, asked = load(own.architecture), own.exchange
    if architecture.name == mine.name:
        return True
    exact = all("equals_reference" in each.claims for each in (architecture, mine))
    plain = own.p2p.mode == "synchronous" and own.aggregation.rule == "mean" and own.faults.attack == "none"
    return exact and plain and asked.compression in architecture.exchanges.get(asked.what, ())


def _make_synchronous(own: Experiment) -> Experiment:
    """Return the experiment unchanged if its workers exchange gradients; otherwise a copy whose workers exchange gradients after every
    minibatch, for comparison.
    """
    return own if own.exchange.what == "gradients" else replace(own, exchange=Exchange(every=1))


def _shares_with_own_updates(own: Experiment, workers: int, samples: int) -> Iterator[Share]:
    """Yield the ways in which `workers` workers can make the experiment's own updates: the same number of updates, each from the same
    number of samples, with different minibatch sizes; nothing if the samples cannot be divided so. `own`: the experiment; `samples`: number
    of training samples.
    """
    training, drop, every = own.training, own.data.drop_last, own.exchange.every
    own_count = count_minibatches(samples, own.workers, training.batch_size, drop_last=drop)
    if own_count is None or every is None:
        return
    if every == "epoch":
        for batch in sorted({training.batch_size * 2 // split for split in SPLITS}):
            if batch >= min(MIN_BATCH, training.batch_size) and count_minibatches(
                samples, workers, batch, drop_last=drop
            ):
                yield Share(workers, batch, "epoch", own.data.limit)
        return
    of_update, rounds = own.workers * training.batch_size * every, ceil(own_count / every)
    each, rest = divmod(of_update, workers)
    if rest:
        return
    for split in SPLITS:
        if each % split or (each // split < MIN_BATCH and each // split < training.batch_size):
            continue
        count = count_minibatches(samples, workers, each // split, drop_last=drop)
        if count is not None and ceil(count / split) == rounds:
            yield Share(workers, each // split, split, own.data.limit)
        elif drop and rounds * of_update <= samples:
            # So many samples make as many updates, of the same size, without a rest.
            yield Share(workers, each // split, split, rounds * of_update)


def _shares_with_other_updates(
    own: Experiment, architecture: Architecture, workers: int, samples: int
) -> Iterator[Share]:
    """Yield ways to share the work that use the experiment's minibatches but make other updates: workers that train models of their own and
    average them; and, with the experiment's number of workers, an outer optimizer or compressed gradients. Yields nothing for one worker,
    or if the workers would not get the same number of minibatches. `own`: the experiment; `samples`: number of training samples.
    """
    batch, limit = own.training.batch_size, own.data.limit
    known = (
        own.training.model in MODEL_SIZES and own.data.dataset in DATA
    )  # whose matrices powersgd's bytes follow from
    count = count_minibatches(samples, workers, batch, drop_last=own.data.drop_last)
    if workers == 1 or not count:
        return
    for what in ("model", "delta"):
        if what not in architecture.exchanges or (what == "delta" and workers != own.workers):
            continue
        for rounds in (each for each in LOCAL_ROUNDS if count // each > 1):
            yield Share(workers, batch, "epoch" if rounds == 1 else count // rounds, limit, UNKNOWN, what)
    if workers != own.workers or own.exchange.every is None:
        return
    for compression, codec in CODECS.items():
        asked = replace(own.exchange, compression=compression)
        refused = any("compression" in problem for problem in architecture.checks(replace(own, exchange=asked)))
        had = compression in architecture.exchanges.get("gradients", ()) and (known or not codec.needs_shapes)
        if had and not refused and compression != "none":
            yield Share(workers, batch, own.exchange.every, limit, UNKNOWN, compression=compression)


# --- what it does it with --------------------------------------------------------------------------------------------


def _candidates_of_share(
    base: Experiment, architecture: Architecture, share: Share, prices: Prices, least_mb: LeastMemory
) -> Iterator[Candidate]:
    """Yield the candidates that do the given share of work, for every platform, instance type, store and function size that fits the
    architecture. `base`: the experiment; `least_mb`: as for `list_candidates`.
    """
    begun = Candidate(architecture.name, **asdict(share))
    for on in _list_platforms(architecture):
        form = begun._replace(on=on)
        for placed in _vary_instances(base, form.form, form, prices):
            for stored in _vary_stores(base, form.form, placed):
                yield from _vary_sizes(base, form.form, stored, least_mb)


def _list_platforms(architecture: Architecture) -> tuple[str, ...]:
    """Return the platforms on which the architecture can run, such as "function" and "gpu"; ("",) if it offers no choice."""
    if architecture.form is None or architecture.settings is None:
        return ("",)
    return get_args(get_type_hints(architecture.settings)["on"])


@cache
def _load_form(name: str, on: str) -> Architecture:
    """Return the architecture called `name` as it runs on the platform `on`, or unchanged if `on` is ""."""
    architecture = load(name)
    if not on or architecture.settings is None:
        return architecture
    return architecture.resolve_form(
        Experiment(name="form", architecture=name).with_settings(architecture.settings(on=on))
    )


@cache
def _has_minibatch_map(name: str, on: str) -> bool:
    """Return whether the architecture called `name` computes the minibatches of a round side by side on the platform `on`."""
    return has_minibatch_map(_load_form(name, on))


def _vary_instances(
    base: Experiment, architecture: Architecture, begun: Candidate, prices: Prices
) -> Iterator[Candidate]:
    """Yield copies of the candidate `begun`, one for each instance type that has a price, and for the experiment's own type; one more
    for spot if it has a GPU and a spot price. If the architecture's workers are functions, yield the candidate unchanged.
    """
    if architecture.program is None:
        yield begun
        return
    asked = architecture.program.instances(experiment_of(base, begun))
    for instance in sorted({*list_instance_types(prices, gpu=asked.gpu), asked.instance_type}):
        yield begun._replace(instance=instance)
        if asked.gpu and f"ec2.{instance}.spot" in prices.items:
            yield begun._replace(instance=instance, spot=True)


def list_instance_types(prices: Prices, *, gpu: bool) -> list[str]:
    """Return the EC2 instance types that have an on-demand price, in alphabetical order: those with a GPU if `gpu`, otherwise those
    without.
    """
    types = {item.removeprefix("ec2.") for item in prices.items if item.startswith("ec2.") and item.count(".") == 2}
    return sorted(each for each in types if each.startswith("g") is gpu)


def _vary_stores(base: Experiment, architecture: Architecture, placed: Candidate) -> Iterator[Candidate]:
    """Yield copies of the candidate `placed`: one that stores tensors in S3 if the architecture can, one for each type of database host
    (that of `base`, m7g.large, c7g.large), and if each worker has a host of its own, one more of each whose functions compute instead of
    the database. If the architecture has no store for tensors, yield the candidate unchanged.
    """
    if architecture.tensor_hosts == "none":
        yield placed
        return
    if architecture.tensor_hosts == "shared" and architecture.state != "database" and not uses_bus(architecture):
        yield placed._replace(channel="s3")
    for host in dict.fromkeys((base.database.instance_type, "m7g.large", "c7g.large")):
        yield placed._replace(host=host)
        if architecture.tensor_hosts == "per_worker":
            yield placed._replace(host=host, compute="fetch")


def _vary_sizes(
    base: Experiment, architecture: Architecture, stored: Candidate, least_mb: LeastMemory
) -> Iterator[Candidate]:
    """Yield copies of the candidate `stored`, one for each combination of function memory, threads and minibatches per invocation, and of
    the memory of functions that do not compute, if the architecture has such functions and computes minibatches side by side. If no
    function computes, yield one copy, with the threads of its instance.

    `least_mb`: function from a batch size to one more memory size to try besides MEMORY_MB and the experiment's own; smaller sizes are
    yielded too.
    """
    computing = [step for step in steps(architecture) if step.needs_torch(base)]
    if not computing:
        known = figures.load_instances().get(stored.instance, UNKNOWN_INSTANCE)
        yield stored._replace(threads=threads_of(base) if stored.gpu else known.vcpus)
        return
    parallel = has_minibatch_map(architecture)
    light = len(steps(architecture)) > len(computing) and parallel
    own = base.functions.memory_mb.get("default", MEMORY_MB[0])
    for memory_mb in sorted({*MEMORY_MB, own, least_mb(stored.batch_size)}):
        for threads in sorted({1, threads_of(base), ceil(vcpus(memory_mb) - 0.02)}):
            for light_mb in LIGHT_MB if light else LIGHT_MB[-1:]:
                for per_invocation in MINIBATCHES_PER_INVOCATION[-1:] if parallel else MINIBATCHES_PER_INVOCATION:
                    yield stored._replace(
                        memory_mb=memory_mb, threads=threads, light_mb=light_mb, per_invocation=per_invocation
                    )


# --- as an experiment ------------------------------------------------------------------------------------------------


def experiment_of(base: Experiment, candidate: Candidate) -> Experiment:
    """Return the candidate as an experiment that can be run: a copy of `base` with the candidate's architecture, workers, machines and
    sizes, and without a baseline. It is not validated.
    """
    memory_mb = {"default": candidate.memory_mb} if candidate.memory_mb else Functions().memory_mb
    functions = replace(base.functions, memory_mb=memory_mb)
    gpu, p2p = base.gpu, base.p2p
    settings = load(candidate.architecture).settings
    if candidate.instance and candidate.architecture == "gpu":
        gpu = replace(
            gpu, instances=candidate.workers, gpus_per_instance=1, instance_type=candidate.instance, spot=candidate.spot
        )
    elif candidate.instance and not candidate.on:
        p2p = replace(p2p, instance_type=candidate.instance)
    made = replace(
        base,
        architecture=candidate.architecture,
        baseline="none",
        workers=candidate.workers,
        training=replace(base.training, batch_size=candidate.batch_size, threads=candidate.threads),
        data=replace(base.data, limit=candidate.limit),
        exchange=_exchange_settings(base.exchange, candidate),
        storage=replace(base.storage, channel=candidate.channel),
        database=replace(
            base.database,
            compute=candidate.compute,
            instance_type=candidate.host or base.database.instance_type,
        ),
        functions=functions,
        gpu=gpu,
        p2p=p2p,
    )
    if candidate.on and settings is not None:
        typed = {"instance_type": candidate.instance, "spot": candidate.spot} if candidate.instance else {}
        made = made.with_settings(settings(on=candidate.on, **typed))
    if candidate.light_mb == LIGHT_MB[-1]:
        return made
    light = [step.name for step in steps(candidate.form) if not step.needs_torch(made)]
    sized = {"default": candidate.memory_mb} | dict.fromkeys(light, candidate.light_mb)
    return replace(made, functions=replace(functions, memory_mb=sized))


def _exchange_settings(asked: Exchange, candidate: Candidate) -> Exchange:
    """Return the exchange settings of the candidate's experiment. The other settings of `asked`, the experiment's own exchange, are kept
    only if the candidate exchanges the same thing with the same compression.
    """
    same = (asked.what, asked.compression) == (candidate.what, candidate.compression)
    return replace(
        asked if same else Exchange(what=candidate.what, compression=candidate.compression),
        every=candidate.every,
        minibatches_per_invocation=candidate.per_invocation,
    )

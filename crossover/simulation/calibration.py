"""Calibration: how fast services, functions, instances and GPUs are, measured by others, documented or assumed; and sentences about the
assumptions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from math import exp, inf, sqrt
from typing import Any, NamedTuple

from crossover.experiment import Experiment
from crossover.simulation import figures
from crossover.simulation.figures import UNKNOWN_INSTANCE, InstanceType
from crossover.simulation.gpu_steps import Precision, card_of
from crossover.simulation.measured_steps import MEASURED_SIGMA, MeasuredSteps
from crossover.simulation.workload import Workload

# --- services ---------------------------------------------------------------------------------------------------------

VCPU_MB = 1_769  # of a function's memory: one vCPU (AWS Lambda, "Configuring memory")


@cache
def vcpus(memory_mb: float) -> float:
    """Return how many vCPUs a Lambda function of `memory_mb` MB can use: in proportion to its memory, but not more than the number of vCPUs
    that it sees.
    """
    seen = next((count for most_mb, count in figures.load_function_vcpus() if memory_mb <= most_mb), inf)
    return min(seen, memory_mb / VCPU_MB)


@dataclass(frozen=True, kw_only=True)
class TokenBucket:
    """A network limit as a token bucket, separate for each direction: `burst_bytes` at once, then `floor_bytes_s` per second.

    `by_memory`: pairs (MB, bytes per second) of a rule by which the floor grows with a function's memory, linear between them.
    """

    burst_bytes: float
    floor_bytes_s: float
    by_memory: Sequence[tuple[float, float]] = ()

    def floor_at(self, memory_mb: float) -> float:
        """Return the bytes per second that a function of `memory_mb` MB can sustain after the burst: `floor_bytes_s`, or by the rule
        `by_memory` if there is one, which stays constant outside its pairs.
        """
        if not self.by_memory:
            return self.floor_bytes_s
        below, *above = self.by_memory
        for known in above:
            if memory_mb <= known[0]:
                share = max(0.0, memory_mb - below[0]) / (known[0] - below[0])
                return below[1] + share * (known[1] - below[1])
            below = known
        return below[1]


@dataclass(frozen=True, slots=True)
class Direction:
    """Speed of reads or of writes to a service as one client sees it. A request takes `latency_s`; the first `burst_bytes` bytes move at
    `bytes_s` bytes per second (the slowest of connection, processor and host), the rest at no more than `floor_bytes_s`.
    """

    latency_s: float
    bytes_s: float = inf  # the slowest of connection, processor and host
    burst_bytes: float = inf
    floor_bytes_s: float = inf

    def seconds(self, bytes_: float, requests: int = 1) -> float:
        """Return the seconds that `requests` requests take one after another if they move `bytes_` bytes in all. Assumes a full burst and
        no other clients.
        """
        seconds = bytes_ / self.bytes_s
        if bytes_ > self.burst_bytes:
            seconds = max(seconds, (bytes_ - self.burst_bytes) / self.floor_bytes_s)
        return requests * self.latency_s + seconds


@dataclass(frozen=True, slots=True)
class ServiceClient:
    """Speed of a service as one client sees it: `read` for reads, `write` for writes."""

    read: Direction
    write: Direction


@dataclass(frozen=True, kw_only=True)
class Service:
    """Speed of a store or of the bus. A request takes `latency_s`, and the time for its bytes at the slowest of three: the client's
    connection (`client_bytes_s`), the client's processor (`cpu_s_byte` seconds of a whole vCPU per byte), the host's link (`host_bytes_s`
    in each direction, shared by its clients).

    The figures of reads also hold for writes, unless a `write_` field is set. `latency_sigma`: spread of a request's logarithm; `slowdown`:
    factor on transfer times that measured readers needed beyond connection and network.
    """

    latency_s: float  # mean of a request without a body
    client_bytes_s: float = inf  # one connection's way to it
    host_bytes_s: float = inf  # what all clients of one host share, in each direction
    latency_sigma: float = 0.0  # of a request's logarithm
    cpu_s_byte: float = 0.0  # the client's processor, in seconds of a whole vCPU
    slowdown: float = 1.0  # of transfers: what measured readers needed beyond connection and network
    write_latency_s: float | None = None
    write_latency_sigma: float | None = None
    write_client_bytes_s: float | None = None
    write_cpu_s_byte: float | None = None

    def slow_down(self, factor: float) -> "Service":
        """Return this service with requests that take `factor` times as long: latency, connection and the floor of the client's network
        slow down, but the limits of the client's processor and of the host's link do not change.
        """
        writes = self.write_latency_s
        return replace(
            self,
            latency_s=factor * self.latency_s,
            write_latency_s=None if writes is None else factor * writes,
            slowdown=factor * self.slowdown,
        )

    def for_client(self, *, vcpus: float = 1.0, burst_bytes: float = inf, floor_bytes_s: float = inf) -> ServiceClient:
        """Return the speed of this service as one client sees it.

        `vcpus`: vCPUs of the client, whose one thread uses at most one; `burst_bytes`, `floor_bytes_s`: the token
        bucket of the client's network. Without a burst (0), the floor limits all bytes.
        """

        def direction(latency_s: float, client_bytes_s: float, cpu_s_byte: float) -> Direction:
            """Return the speed of reads or of writes for this client: the slowest of its connection, its host and its processor. The
            parameters are the service's figures for that direction; `cpu_s_byte`: seconds of one vCPU for a byte.
            """
            processor = min(vcpus, 1.0) / cpu_s_byte if cpu_s_byte else inf
            rate = min(client_bytes_s / self.slowdown, self.host_bytes_s, processor)
            floor = floor_bytes_s / self.slowdown
            return (
                Direction(latency_s, rate, burst_bytes, floor)
                if burst_bytes
                else Direction(latency_s, min(rate, floor))
            )

        return ServiceClient(
            direction(self.latency_s, self.client_bytes_s, self.cpu_s_byte),
            direction(
                _first_known(self.write_latency_s, self.latency_s),
                _first_known(self.write_client_bytes_s, self.client_bytes_s),
                _first_known(self.write_cpu_s_byte, self.cpu_s_byte),
            ),
        )


def _first_known(own: float | None, reading: float) -> float:
    """Return the figure of writes (`own`); if it is None, return that of reads (`reading`) instead."""
    return reading if own is None else own


# --- calibration ------------------------------------------------------------------------------------------------------
# How fast what a run uses is: functions, instances, GPUs, stores, the bus, Step Functions. Every projected second comes from here.
#
# `AWS` has figures that others measured on real accounts, that AWS documents, or that are assumed, as config/calibration/ says of each.
# `ASSUMED` has figures from before anything was measured: fits of the papers' deployments start from it. `measured.py` replaces the speed
# of computing by that of recorded runs.

MEASURED = {
    "memory_mb": "functions of {:,.0f} MB",
    "object_bytes": "objects of {:,.0f} bytes",
    "functions": "{:,.0f} functions at once",
    "branches": "a Map of {:,.0f} branches",
}
MEASURED_THREADS = 2
SIGMAS = ("compute_sigma", "request_sigma", "host_sigma", "task_sigma", "cold_sigma")  # of stragglers
BACKWARD = 2  # the backward pass computes twice what the forward pass does

# Seconds of one CIFAR-10 sample's gradient at batch 512, one thread, float32: processor time of `compute` in the records of
#   crossover run config/spirt-cifar10.yaml --on inline --set training.model=... --set training.epochs=1 --set data.limit=...
# on a shared machine of the AVX-512 class. Only their ratio reaches a projection of the papers' rows: its level is fitted.
REFERENCE_SAMPLE_S: Mapping[str, float] = {"mobilenet": 0.01073, "resnet18_cifar": 0.0306}

# How sure the speed of computing on processors is, in sigmas of its logarithm; assumed. By multiply-accumulates: two models that were
# measured took 0.6 and 2.6 times what theirs say.
UNMEASURED_SIGMA = 0.6
RATIO_SIGMA = 0.2  # by a ratio to a known model that was measured on another processor

# Lambda ends a longer INIT, which begins anew within the first invocation: the second one alone is billed.
# Sources: Lambda Developer Guide, "Lambda execution environment lifecycle"; L. van Donkersgoed, "When is the Lambda Init Phase Free, and
# when is it Billed?" (2022), of images, whose INIT was billed then as that of zips has been since August 2025.
INIT_LIMIT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """All speeds, delays and random spreads that a simulation needs and that do not follow from the experiment's sizes. A default without a
    source is an assumption.

    Units are in the names: `_s` seconds, `_bytes_s` bytes per second, `_s_byte` seconds per byte, `_sigma` the spread of a factor's
    logarithm.

    Computing: `sample_s`: seconds of one sample's gradient on the reference vCPU, by model; `mac_s`: the same per multiply-accumulate, for
    other models; `function_speed`, `instance_speed`: speed of a vCPU relative to the reference; `*_batch_s`: constant seconds per
    minibatch; `parallel_*`: part of a step that threads share, measured with two, and the assumed range beyond; `arithmetic_*`,
    `database_*`: averages and updates of vectors in functions and in the database.

    Services and delays: `objects`, `tensors`, `bus`: services as functions see them, `instance_objects`, `instance_bus` as instances do;
    `network`, `vpc_network`: network limits of functions outside and inside a VPC, None for none; `task_s` to `child_s`: delays of Step
    Functions, cold starts and invocations; `stack_s` to `broker_s`: seconds of creating resources; `concurrency`: the account's quota of
    functions at once, None for no limit.

    `measured`: (least, most) that measurements cover, by quantity; `elsewhere`: caveats by subject; `basis`: sentences on where the figures
    come from.
    """

    name: str
    basis: tuple[str, ...] = ()  # where the figures come from, for people

    # Computing: seconds of one sample's gradient on the reference vCPU (float32, one thread); by multiply-accumulates where the
    # model is not listed.
    sample_s: Mapping[str, float] = field(default_factory=dict)
    mac_s: float = 3.0e-11
    function_speed: float = 1.0  # of a function's vCPU, in reference vCPUs
    instance_speed: float = 1.0  # of an instance's
    function_batch_s: float = 0.0  # per minibatch, whatever its size: what a framework does around computing
    instance_batch_s: float = 0.0
    gpu_batch_s: float = 0.0
    gpu_pace: float = 1.0  # times as long as gpu_steps.py says, of every GPU
    # Of a step, what several threads share (Amdahl's law): measured with two. Beyond them it is between `least` and `most`, assumed: each
    # repetition draws one, `parallel_beyond`.
    parallel_share: float = 1.0
    parallel_least: float = 1.0
    parallel_most: float = 1.0
    parallel_beyond: float | None = None
    evaluate_share: float = 1 / (1 + BACKWARD)  # of a gradient's time: forward only
    arithmetic_bytes_s: float = (
        2.0e9  # vector arithmetic on a whole vCPU, by bytes of the vectors that go in and come out
    )
    arithmetic_exponent: float = 0.0  # with a part of a vCPU: its share to this power; 0: memory does not matter
    database_bytes_s: float = 1.5e9  # the same inside the database
    database_batch_s: float = 0.0  # per vector, whatever its length

    # Functions and state machines. States other than tasks take no time.
    task_s: float  # from the end of a task to the start of the next, whose function is warm
    payload_s_byte: float  # in addition, for each byte of the event
    branch_s: float  # from the start of a Map's branch to the next one's
    distributed_s: float  # a Distributed Map, beyond an inline one
    sandbox_s: float  # before INIT, where no environment is there
    init_s: float  # INIT of a function without torch
    init_torch_s: float
    inits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # measured, of functions without packages
    direct_s: float = 0.0  # a function invoked directly; measured, and used by no architecture yet
    ramp_at_once: float = inf  # new environments of a function, and how many more a second
    ramp_per_s: float = inf
    keep_warm_s: float = 300.0  # how long an idle environment stays
    torch_step_s: float = 0.01  # of a step, outside what is listed: learner, connections
    plain_step_s: float = 0.005
    child_s: float = 0.25  # a child execution's start and the return of its result
    stack_s: float = 120.0  # to create a stack
    hosts_s: float = 180.0  # and its database hosts
    network_s: float = 240.0  # and the network of the project's first experiment that has one
    broker_s: float = 600.0  # and its broker: 8 to 12 minutes, reported by others
    concurrency: int | None = 1_000  # the account's; None: raised as far as needed

    # Networks: of functions outside a VPC and inside, of instances by type (vCPUs, bytes per second for ever)
    network: TokenBucket | None = None
    vpc_network: TokenBucket | None = None
    instances: Mapping[str, InstanceType] = field(default_factory=dict)

    # Services
    objects: Service
    tensors: Service
    bus: Service
    instance_objects: Service
    instance_bus: Service
    stores: Mapping[str, Service] = field(default_factory=dict)  # measured, and used by no architecture yet
    client_cpu_s: float = 0.0  # a function that makes its S3 client in each invocation: seconds of a whole vCPU
    mailbox_s: float = 0.0  # a peer's own work on a message, besides the bus
    supervisor_s: float = 0.01  # MLLess: per step, the supervisor's own work
    significant: float = 0.1  # MLLess: share of the coordinates that pass the filter

    # Spread: factors on seconds, lognormal. Of each invocation, with mean 1; of a session's requests and of the clocks, with median 1.
    compute_sigma: float = 0.08
    request_sigma: float = 0.15
    host_sigma: float = 0.0  # of an environment's computing, through a run
    session_sigma: float = 0.2
    task_sigma: float = 0.0
    cold_sigma: float = 0.0  # of sandbox and INIT
    # Standard deviation of the logarithm of the computing speed, constant through a run. A GPU's is its card's, times a draw's level.
    level_sigma: float = 0.0
    compared: str = ""  # the model of `sample_s` whose seconds come from a ratio that was measured on another processor
    gpu_level: float = 0.0
    gpu_measured: MeasuredSteps | None = None  # of one card, instead of the rule

    # From the least to the most that fits have seen: memory_mb, object_bytes, functions, branches; and what was seen elsewhere alone.
    measured: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    elsewhere: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def with_uncertainty_of(self, model: str) -> "Calibration":
        """Return this calibration with `level_sigma`, the uncertainty of the computing speed on processors, set for the model named
        `model`: 0 if `sample_s` has a measured time of the model, RATIO_SIGMA if it was only compared with another model's, otherwise
        UNMEASURED_SIGMA.
        """
        known = RATIO_SIGMA if model == self.compared else 0.0
        return replace(self, level_sigma=known if model in self.sample_s else UNMEASURED_SIGMA)

    def slow_computing(self, processors: float, gpus: float) -> "Calibration":
        """Return this calibration with gradients that take `processors` times as long on processors, and with training steps and vector
        arithmetic that take `gpus` times as long on GPUs. Vector arithmetic on processors keeps its speed.
        """
        return replace(
            self,
            sample_s={name: seconds * processors for name, seconds in self.sample_s.items()},
            mac_s=self.mac_s * processors,
            function_batch_s=self.function_batch_s * processors,  # for a small model most of the measured time
            instance_batch_s=self.instance_batch_s * processors,
            gpu_pace=self.gpu_pace * gpus,
        )

    def gradient_s(self, workload: Workload, samples: int, *, threads: float, speed: float, batch_s: float) -> float:
        """Return the seconds in which a processor computes the gradient of one minibatch of `samples` samples of `workload`; 0 if there are
        no samples.

        `threads`: number of vCPUs, or a part of one; `speed`: speed of each, in reference vCPUs; `batch_s`: constant seconds per minibatch.
        """
        if not samples:
            return 0.0
        return batch_s + samples * self.sample_gradient_s(workload) / (self.speed_up(threads) * speed)

    def speed_up(self, threads: float) -> float:
        """Return the speed of `threads` vCPUs relative to one whole vCPU, by Amdahl's law: with the measured share up to MEASURED_THREADS,
        beyond them with `parallel_beyond` if it is set. Less than one vCPU is proportionally slower.
        """
        if threads <= 1:
            return threads
        two = _speed_up_by_amdahl(self.parallel_share, min(threads, MEASURED_THREADS))
        if threads <= MEASURED_THREADS:
            return two
        share = self.parallel_share if self.parallel_beyond is None else self.parallel_beyond
        return two * _speed_up_by_amdahl(share, threads) / _speed_up_by_amdahl(share, MEASURED_THREADS)

    def sample_gradient_s(self, workload: Workload) -> float:
        """Return the seconds of one sample's gradient of the workload's model on the reference vCPU: from the model's measured time if
        there is one (for a model scaled to another size, the original's times the workload's factor `times`), otherwise from its
        multiply-accumulates. Smaller images (`training_share`) take less.
        """
        known = self.sample_s.get(workload.scaled_from or workload.model)
        whole = (1 + BACKWARD) * workload.macs * self.mac_s if known is None else known * workload.times
        return workload.training_share * whole

    def function_gradient_s(self, experiment: Experiment, workload: Workload, samples: int, *, memory_mb: int) -> float:
        """Return the seconds in which a Lambda function of `memory_mb` MB computes the gradient of one minibatch of
        `samples` samples of `workload`, with as many threads as the experiment and the memory allow.
        """
        threads = min(threads_of(experiment), vcpus(memory_mb))
        return self.gradient_s(
            workload, samples, threads=threads, speed=self.function_speed, batch_s=self.function_batch_s
        )

    def instance_gradient_s(
        self, experiment: Experiment, workload: Workload, samples: int, *, instance_type: str
    ) -> float:
        """Return the seconds in which the processor of an EC2 instance (`instance_type`) computes the gradient of one minibatch of
        `samples` samples of `workload`, with as many threads as the experiment and the instance allow. A type that is not in `instances`
        counts as one with 2 vCPUs.
        """
        known = self.instances.get(instance_type, UNKNOWN_INSTANCE)
        threads = min(threads_of(experiment), known.vcpus)
        return self.gradient_s(
            workload, samples, threads=threads, speed=self.instance_speed, batch_s=self.instance_batch_s
        )

    def gpu_gradient_s(
        self, workload: Workload, samples: int, *, instance_type: str, precision: Precision = "fp32"
    ) -> float:
        """Return the seconds of a training step of `samples` samples on the GPU of an EC2 instance (`instance_type`); 0 if there are no
        samples. Uses the user's own measurement of that card (`gpu_measured`) if there is one in this `precision`.

        Raises NoProjection if the card is not known or lacks the precision.
        """
        if not samples:
            return 0.0
        card, counts = card_of(instance_type), workload.step.scale(workload.training_share, fixed=False)
        share = self.instances.get(instance_type, UNKNOWN_INSTANCE).gpu_share
        own = self.gpu_measured
        if own is not None and (own.card, own.precision) == (card.name, precision):
            seconds, sigma = own.step_s(samples, share=workload.training_share), MEASURED_SIGMA
            return self.gpu_pace * exp(self.gpu_level * sigma) * seconds / share
        unsure = exp(self.gpu_level * card.sigma(counts))
        seconds = card.step_s(counts, samples, parameters=workload.parameters, precision=precision)
        return self.gpu_batch_s + self.gpu_pace * unsure * seconds / share

    def cold_start_parts_s(self, *, torch: bool, factor: float) -> tuple[float, float]:
        """Return the seconds of a cold start as (not billed, before the handler; billed INIT). An INIT longer than INIT_LIMIT_S begins
        anew; only the second one is billed. `torch`: whether the function imports torch; `factor`: random factor of this start.
        """
        init_s = factor * (self.init_torch_s if torch else self.init_s)
        return factor * self.sandbox_s + cold_start_s(init_s) - init_s, init_s

    def arithmetic_s(self, bytes_: float, *, memory_mb: float = inf) -> float:
        """Return the seconds in which one thread does vector arithmetic, in a function of `memory_mb` MB, or by default on an instance.
        `bytes_`: bytes of all vectors that are read and written.
        """
        share: float = min(1.0, vcpus(memory_mb)) ** self.arithmetic_exponent
        return bytes_ / (self.arithmetic_bytes_s * share)

    def gpu_arithmetic_s(self, bytes_: float, *, instance_type: str) -> float:
        """Return the seconds of vector arithmetic in the memory of an instance's GPU, at the bandwidth of its data sheet (assumed).
        `bytes_`: bytes of all vectors that are read and written. Raises NoProjection if the card is not known.
        """
        share = self.instances.get(instance_type, UNKNOWN_INSTANCE).gpu_share
        return self.gpu_pace * bytes_ / (card_of(instance_type).bytes_s * share)

    def client(self, service: Service, *, memory_mb: float, in_vpc: bool) -> ServiceClient:
        """Return the speed of a service as a function of `memory_mb` MB sees it. `in_vpc`: whether the function is in a VPC. Without
        measured figures of that network, only the function's vCPUs limit the speed.
        """
        network = self.vpc_network if in_vpc else self.network
        if network is None:
            return service.for_client(vcpus=vcpus(memory_mb))
        floor_bytes_s = network.floor_at(memory_mb)
        return service.for_client(vcpus=vcpus(memory_mb), burst_bytes=network.burst_bytes, floor_bytes_s=floor_bytes_s)

    def base_s(self, bytes_: float, *, memory_mb: float, in_vpc: bool) -> float:
        """Return the seconds in which a fresh environment of a function of `memory_mb` MB reads base weights of
        `bytes_` bytes and checks their digest.

        `in_vpc`: whether the function is in a VPC, whose network has limits of its own.
        """
        read = self.client(self.objects, memory_mb=memory_mb, in_vpc=in_vpc).read
        return read.seconds(bytes_) + self.arithmetic_s(bytes_, memory_mb=memory_mb)

    def limit_by_host(self, service: Service, instance_type: str) -> Service:
        """Return the service with the documented network bandwidth of an instance of type `instance_type` as the limit that all its clients
        share; unchanged if that is not known.
        """
        known = self.instances.get(instance_type)
        return service if known is None or known.bytes_s is None else replace(service, host_bytes_s=known.bytes_s)

    def without_stragglers(self) -> "Calibration":
        """Return this calibration with the spreads named in SIGMAS set to 0, so that there are no stragglers. The spread between sessions
        and the uncertainty of the computing speed stay.
        """
        return replace(self, **dict.fromkeys(SIGMAS, 0.0))  # type: ignore[arg-type]  # numbers

    def without_sharing(self) -> "Calibration":
        """Return this calibration with unlimited network bandwidth of the hosts, so that no client waits for the transfers of others."""
        return replace(
            self,
            tensors=replace(self.tensors, host_bytes_s=inf),
            bus=replace(self.bus, host_bytes_s=inf),
            instances={name: replace(each, bytes_s=None) for name, each in self.instances.items()},
        )

    def list_extrapolations(self, **figures: float) -> tuple[str, ...]:
        """Return one sentence for each of `figures` that lies outside the range covered by measurements; a figure whose name has no range
        is never outside. The keywords are those of `measured`: memory_mb, object_bytes, functions, branches.
        """
        found = []
        for name, value in figures.items():
            least, most = self.measured.get(name, (0.0, inf))
            words = MEASURED.get(name, name)
            if value > most:
                found.append(
                    f"{words.format(value)}: {value / most:.1f} times the most that was measured ({most:,.0f})"
                )
            elif value < least:
                found.append(f"{words.format(value)}: {least / value:.1f} times less than was measured ({least:,.0f})")
        return tuple(found)

    def with_facts(self, *facts: str, **changes: Any) -> "Calibration":
        """Return this calibration with the fields named in `changes` replaced. `facts`: sentences on the source of the new figures, which
        are appended to `basis`.
        """
        return replace(self, basis=(*self.basis, *facts), **changes)

    def as_json(self) -> dict[str, Any]:
        """Return all fields of this calibration by name, as plain data. An infinite number is None."""
        return {each.name: _to_plain(getattr(self, each.name)) for each in fields(self)}


def threads_of(experiment: Experiment) -> float:
    """Return the experiment's `training.threads` as a number. `auto` is infinite, so that callers take all vCPUs that there are."""
    return inf if experiment.training.threads == "auto" else float(experiment.training.threads)


def _speed_up_by_amdahl(share: float, threads: float) -> float:
    """Return the speed-up of `threads` threads by Amdahl's law. `share`: part of the work that the threads can share."""
    return 1 / (1 - share + share / threads)


def _to_plain(value: Any) -> Any:
    """Return a value as plain data for JSON. Data classes and mappings become dictionaries, tuples lists, infinite numbers None."""
    if is_dataclass(value):
        return {each.name: _to_plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [_to_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _to_plain(each) for name, each in value.items()}
    return None if value == inf else value


def cold_start_s(init_s: float) -> float:
    """Return the seconds from the begin of INIT to the call of the handler, for an INIT of `init_s` seconds. An INIT longer than
    INIT_LIMIT_S is aborted after that time and starts again. `sandbox_s` of a service, the time before INIT, is not included.
    """
    return init_s + (INIT_LIMIT_S if init_s > INIT_LIMIT_S else 0.0)


FREE = Service(latency_s=0.0)
FIGURES = figures.load_figures()
CLOCKS: Mapping[str, Any] = {
    name: FIGURES[""][name]
    for name in ("task_s", "payload_s_byte", "branch_s", "distributed_s", "sandbox_s", "init_s", "init_torch_s")
}
ASSUMED = Calibration(
    name="AWS, uncalibrated",
    basis=(
        "latencies and bandwidths: assumed from AWS's documentation, not measured; functions and state machines in the middle as of AWS",
        "computing: MobileNet and ResNet-18 as measured on one machine's core, others by their multiply-accumulates",
    ),
    sample_s=REFERENCE_SAMPLE_S,
    objects=Service(latency_s=0.025, client_bytes_s=75e6),
    tensors=Service(latency_s=FIGURES["tensors"]["latency_s"], client_bytes_s=75e6, host_bytes_s=1.17e8),
    bus=Service(latency_s=0.005, client_bytes_s=75e6, host_bytes_s=1.25e8),
    instance_objects=Service(latency_s=0.025, client_bytes_s=1e8),
    instance_bus=Service(latency_s=0.005, client_bytes_s=1e8, host_bytes_s=1.25e8),
    # The papers do not say how their workers are started. If all start at once, the figures to fit stay linear in the unknowns.
    **{**CLOCKS, "branch_s": 0.0},
)


def _build_aws() -> Calibration:
    """Return the calibration of AWS: `ASSUMED` with its figures replaced by those of config/calibration/. Raises ConfigError if a file
    there is not valid.
    """
    found = {group: dict(named) for group, named in FIGURES.items() if group != "year_2022"}
    changes: dict[str, Any] = dict(found.pop("", {}))
    changes["inits"] = {
        group.removeprefix("init."): found.pop(group) for group in list(found) if group.startswith("init.")
    }
    for group in ("network", "vpc_network"):
        bucket = found.pop(group)
        changes[group] = TokenBucket(burst_bytes=bucket["burst_bytes"], floor_bytes_s=bucket["floor_bytes_s"])
    stores = {group: found.pop(group) for group in list(found) if group.startswith("stores.")}
    changes["stores"] = {name.removeprefix("stores."): Service(**named) for name, named in stores.items()}
    for group, named in found.items():
        changes[group] = replace(getattr(ASSUMED, group), **named)
    basis = (
        "S3, networks, arithmetic: measured by others on Lambda in 2024 and 2026 (config/calibration/)",
        "state machines, cold starts, hosts, Redis's latency: measured by others from 2020 to 2026 (config/calibration/services/)",
        "the broker, child executions: assumed",
        ASSUMED.basis[1],
    )
    return replace(
        ASSUMED,
        name="AWS",
        basis=basis,
        instances=figures.load_instances(),
        measured=figures.load_measured_ranges(),
        elsewhere=figures.load_caveats(),
        **changes,
    )


AWS = _build_aws()
assert AWS.network is not None
# Outside a VPC the network grows with memory; seen second-hand only.
AWS_2026_08 = AWS.with_facts(
    "functions outside a VPC: 625 Mbps at 2 GB to 3,000 Mbps at 10 GB (the rule of August 2026, seen second-hand)",
    name="aws-2026-08",
    network=replace(AWS.network, by_memory=figures.load_network_2026_08()),
)
AWS_2022 = AWS.with_facts("state machines and sandboxes: as of 2022", name="aws-2022", **FIGURES["year_2022"])
NAMED = {each.name: each for each in (AWS_2026_08, AWS_2022)}
# Figures with which moving and combining data (MOVING), or starting steps (STARTING), takes no time: to see what the rest takes.
MOVING: Mapping[str, Any] = {
    "arithmetic_bytes_s": inf,
    "database_bytes_s": inf,
    "database_batch_s": 0.0,
    "mailbox_s": 0.0,
    "client_cpu_s": 0.0,
    "supervisor_s": 0.0,
    **dict.fromkeys(("objects", "tensors", "bus", "instance_objects", "instance_bus"), FREE),
    "network": None,
    "vpc_network": None,
}
STARTING: Mapping[str, Any] = {
    **dict.fromkeys(CLOCKS, 0.0),
    "torch_step_s": 0.0,
    "plain_step_s": 0.0,
    "child_s": 0.0,
}
# Nothing takes time but computing: what a run cannot be faster than.
PURE_COMPUTE = Calibration(
    name="pure computing",
    basis=("no latency, no overhead, infinite bandwidth",),
    **MOVING,
    **STARTING,
    concurrency=None,
    session_sigma=0.0,
).without_stragglers()


# --- assumptions ------------------------------------------------------------------------------------------------------
# The assumption that decides answers: how fast computing is on AWS, which nobody has measured there; and the factor by which it must be
# wrong to change the answer.

FACTORS = (1.5, 3.0, 10.0)  # that are tried, both ways
TURN_PRECISION = 1.01  # how far apart the last factor with the same answer and the first with another may be

AnswerOf = Callable[[Calibration], str]


class Turn(NamedTuple):
    """A change of the answer to a question, such as which option is cheapest. The answer is still the original one if computing takes
    `before` times as long as assumed, but it is `other` if computing takes `after` times as long.
    """

    before: float
    after: float
    other: str


def find_turns(answer: AnswerOf, paced: Callable[[float], Calibration]) -> list[Turn]:
    """Return the nearest change of the answer if computing is faster than assumed, and then the nearest if it is slower. A direction in
    which none of FACTORS changes the answer is left out, so the list has 0 to 2 items.

    `answer`: function that returns the answer for a calibration; `paced`: function that returns the calibration in which computing takes
    the given factor as long.
    """
    now, found = answer(paced(1.0)), []
    for sign in (-1, 1):
        before = 1.0
        for factor in FACTORS:
            after = factor**sign
            if (other := answer(paced(after))) != now:
                found.append(_narrow_turn(before, after, other, now, lambda at: answer(paced(at))))
                break
            before = after
    return found


def _narrow_turn(before: float, after: float, other: str, now: str, answer: Callable[[float], str]) -> Turn:
    """Return the change of the answer between the factors `before` and `after`, narrowed down by bisection until they differ by less than
    TURN_PRECISION. `now`: answer at `before`; `other`: answer at `after`; `answer`: function that returns the answer for a factor.
    """
    while max(before / after, after / before) > TURN_PRECISION:
        middle = sqrt(before * after)
        said = answer(middle)
        before, after, other = (middle, after, other) if said == now else (before, middle, said)
    return Turn(before, after, other)


def list_assumptions(cloud: Calibration, *, gpus: bool) -> Iterator[tuple[str, Callable[[float], Calibration]]]:
    """Yield each assumption about the speed of computing as (the assumption in words, function that returns the calibration `cloud` with
    that computing taking a given factor as long, so that 2 is half as fast). `gpus`: whether to include the assumption about GPUs.
    """
    yield "a core of this machine for a vCPU of ARM", lambda times: cloud.slow_computing(times, 1.0)
    if gpus:
        yield "the steps that others measured on GPUs", lambda times: cloud.slow_computing(1.0, times)


def describe_assumptions(answer: AnswerOf, cloud: Calibration, *, gpus: bool) -> str:
    """Return one sentence that names the assumptions of the calibration `cloud` about computing, each with the factors at which the answer
    would change. `answer`: function that returns the answer for a calibration; `gpus`: whether GPUs are used.
    """
    parts = [
        f"{what} ({_describe_turns(find_turns(answer, paced))})" for what, paced in list_assumptions(cloud, gpus=gpus)
    ]
    return f"It depends on {' and on '.join(parts)}."


def _describe_turns(found: list[Turn]) -> str:
    """Return the changes of the answer as text, such as `1.50x slower, it would be gpu`; if there are none, a sentence that the answer
    stays.
    """
    if not found:
        return f"off by {FACTORS[-1]:g}x either way, the answer is the same"
    return "; ".join(
        f"{1 / each.after:.2f}x quicker, it would be {each.other}"
        if each.after < 1
        else f"{each.after:.2f}x slower, it would be {each.other}"
        for each in found
    )

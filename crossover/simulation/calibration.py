"""How fast what a run uses is: functions, instances, GPUs, stores, the bus, Step Functions. Every projected second comes from here.

`AWS` is what strangers measured on real accounts, what AWS documents, and what is assumed, told apart in config/calibration/. `ASSUMED` is
what stood before anything was measured: the papers' deployments are fitted on it. `measured.py` takes computing from a run's own records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from math import inf
from typing import Any

from crossover.experiment import Experiment
from crossover.simulation import figures
from crossover.simulation.figures import UNKNOWN_INSTANCE, InstanceType
from crossover.simulation.services import Service, ServiceClient, TokenBucket, vcpus
from crossover.simulation.workload import Workload

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

# How sure the speed of computing is, in sigmas of its logarithm; assumed. By multiply-accumulates: two models that were measured took 0.6
# and 2.6 times what theirs say. A share of a GPU's peak: half to twice of it from p5 to p95; what was measured on processors does not tell.
BY_COUNT, ON_GPU = 0.6, 0.42

# Lambda ends a longer INIT, which begins anew within the first invocation: the second one alone is billed.
# Sources: Lambda Developer Guide, "Lambda execution environment lifecycle"; L. van Donkersgoed, "When is the Lambda Init Phase Free, and
# when is it Billed?" (2022), of images, whose INIT was billed then as that of zips has been since August 2025.
INIT_LIMIT_S = 10.0
# GPU peak in float32, multiply-accumulates per second: half of NVIDIA's data sheets' operations (T4, A10G, L4).
GPU_PEAK_MACS_S = {"g4dn": 4.05e12, "g5": 15.6e12, "g6": 15.1e12}


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """All seconds that do not follow from an experiment's sizes. A default without a source is assumed."""

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
    gpu_efficiency: float = 0.3  # share of the peak that training reaches
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

    # Functions and state machines. A state that is no task takes nothing, and has no figure.
    task_s: float  # from the end of a task to the start of the next, whose function is warm
    payload_s_byte: float  # more, for each byte of the state
    branch_s: float  # from the start of a Map's branch to the next one's
    distributed_s: float  # a Distributed Map, beyond an inline one
    sandbox_s: float  # before INIT, where no environment is there
    cold_s: float  # INIT of a function without torch
    cold_torch_s: float
    inits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # measured, of functions without packages
    direct_s: float = 0.0  # a function invoked directly; measured, and used by no architecture yet
    ramp_at_once: float = inf  # new environments of a function, and how many more a second
    ramp_per_s: float = inf
    keep_warm_s: float = 300.0  # how long an idle environment stays
    torch_step_s: float = 0.01  # of a step, outside what is listed: learner, connections
    plain_step_s: float = 0.005
    child_s: float = 0.25  # a child execution's start and the return of its result
    stack_s: float = 120.0  # until a stack stands that was not there
    hosts_s: float = 180.0  # and its database hosts
    broker_s: float = 1_080.0  # and network and broker, of the project's first stack that has them: told in issue threads (docs/aws.md)
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
    # How sure the speed of computing is: of its logarithm, the same through a run; of a GPU's, which nobody has measured, apart.
    level_sigma: float = 0.0
    gpu_sigma: float = 0.0

    # From the least to the most that fits have seen: memory_mb, object_bytes, functions, branches; and what was seen elsewhere alone.
    measured: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    elsewhere: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def unsure_of(self, model: str) -> "Calibration":
        """With how sure it is of the model's speed: of one that was measured, only a GPU's is not known."""
        known = model in self.sample_s
        return replace(
            self, level_sigma=0.0 if known else BY_COUNT, gpu_sigma=ON_GPU if model in REFERENCE_SAMPLE_S else BY_COUNT
        )

    def paced(self, processors: float, gpus: float) -> "Calibration":
        """Where a model's computing takes so many times as long: on processors, and on GPUs."""
        return replace(
            self,
            sample_s={name: seconds * processors for name, seconds in self.sample_s.items()},
            mac_s=self.mac_s * processors,
            function_batch_s=self.function_batch_s * processors,  # of a small model most of what a probe measured
            instance_batch_s=self.instance_batch_s * processors,
            gpu_efficiency=self.gpu_efficiency / gpus,
        )

    def gradient_s(self, workload: Workload, samples: int, *, threads: float, speed: float, batch_s: float) -> float:
        """One minibatch on a processor: `threads` vCPUs (or a part of one) of `speed`."""
        if not samples:
            return 0.0
        return batch_s + samples * self.of_sample(workload) / (self.speed_up(threads) * speed)

    def speed_up(self, threads: float) -> float:
        """Of so many vCPUs, or a part of one, over a whole one."""
        if threads <= 1:
            return threads
        two = _amdahl(self.parallel_share, min(threads, MEASURED_THREADS))
        if threads <= MEASURED_THREADS:
            return two
        share = self.parallel_share if self.parallel_beyond is None else self.parallel_beyond
        return two * _amdahl(share, threads) / _amdahl(share, MEASURED_THREADS)

    def of_sample(self, workload: Workload) -> float:
        """Seconds of one sample's gradient on the reference vCPU."""
        whole = self.sample_s.get(workload.model, (1 + BACKWARD) * workload.macs * self.mac_s)
        return workload.training_share * whole

    def in_function(self, experiment: Experiment, workload: Workload, samples: int, *, memory_mb: int) -> float:
        threads = min(threads_of(experiment), vcpus(memory_mb))
        return self.gradient_s(
            workload, samples, threads=threads, speed=self.function_speed, batch_s=self.function_batch_s
        )

    def on_instance(self, experiment: Experiment, workload: Workload, samples: int, *, instance_type: str) -> float:
        known = self.instances.get(instance_type, UNKNOWN_INSTANCE)
        threads = min(threads_of(experiment), known.vcpus)
        return self.gradient_s(
            workload, samples, threads=threads, speed=self.instance_speed, batch_s=self.instance_batch_s
        )

    def on_gpu(self, workload: Workload, samples: int, *, instance_type: str) -> float:
        family = instance_type.split(".")[0]
        macs = samples * (1 + BACKWARD) * workload.macs * workload.training_share
        if not samples:
            return 0.0
        return self.gpu_batch_s + macs / (self.gpu_efficiency * GPU_PEAK_MACS_S.get(family, GPU_PEAK_MACS_S["g4dn"]))

    def starts_cold(self, *, torch: bool, factor: float) -> tuple[float, float]:
        """Seconds until the handler is called, besides the second figure: those of INIT, which are billed."""
        init_s = factor * (self.cold_torch_s if torch else self.cold_s)
        return factor * self.sandbox_s + cold_start_s(init_s) - init_s, init_s

    def arithmetic_s(self, bytes_: float, *, memory_mb: float = inf) -> float:
        """Vector arithmetic by one thread of a function of that memory, or of an instance."""
        share: float = min(1.0, vcpus(memory_mb)) ** self.arithmetic_exponent
        return bytes_ / (self.arithmetic_bytes_s * share)

    def client(self, service: Service, *, memory_mb: float, in_vpc: bool) -> ServiceClient:
        """The service as a function of that memory sees it."""
        network = self.vpc_network if in_vpc else self.network
        if network is None:
            return service.at(vcpus=vcpus(memory_mb))
        floor_bytes_s = network.floor_at(memory_mb)
        return service.at(vcpus=vcpus(memory_mb), burst_bytes=network.burst_bytes, floor_bytes_s=floor_bytes_s)

    def base_s(self, bytes_: float, *, memory_mb: float, in_vpc: bool) -> float:
        """What a function's fresh environment takes to read a base of so many bytes, and to know it by its digest."""
        read = self.client(self.objects, memory_mb=memory_mb, in_vpc=in_vpc).read
        return read.seconds(bytes_) + self.arithmetic_s(bytes_, memory_mb=memory_mb)

    def on_host(self, service: Service, instance_type: str) -> Service:
        """The service on a host of that type, whose documented network all its clients share."""
        known = self.instances.get(instance_type)
        return service if known is None or known.bytes_s is None else replace(service, host_bytes_s=known.bytes_s)

    def calm(self) -> "Calibration":
        """Without stragglers."""
        return replace(self, **dict.fromkeys(SIGMAS, 0.0))  # type: ignore[arg-type]  # numbers

    def unshared(self) -> "Calibration":
        """Where nobody waits for another's transfers: hosts' links have room for all at once."""
        return replace(
            self,
            tensors=replace(self.tensors, host_bytes_s=inf),
            bus=replace(self.bus, host_bytes_s=inf),
            instances={name: replace(each, bytes_s=None) for name, each in self.instances.items()},
        )

    def outside(self, **figures: float) -> tuple[str, ...]:
        """What of `figures` (named as in `measured`) lies beyond what the fits have seen, and how far."""
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
        """With other figures, and said where they come from."""
        return replace(self, basis=(*self.basis, *facts), **changes)

    def as_json(self) -> dict[str, Any]:
        """Every figure; an infinite bandwidth is null."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}


def threads_of(experiment: Experiment) -> float:
    """`auto` is what there is."""
    return inf if experiment.training.threads == "auto" else float(experiment.training.threads)


def _amdahl(share: float, threads: float) -> float:
    return 1 / (1 - share + share / threads)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return None if value == inf else value


def cold_start_s(init_s: float) -> float:
    """Seconds until the handler is called, of which `init_s` are billed."""
    return init_s + (INIT_LIMIT_S if init_s > INIT_LIMIT_S else 0.0)


FREE = Service(latency_s=0.0)
FIGURES = figures.figures()
CLOCKS: Mapping[str, Any] = {
    name: FIGURES[""][name]
    for name in ("task_s", "payload_s_byte", "branch_s", "distributed_s", "sandbox_s", "cold_s", "cold_torch_s")
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
    # The papers do not say what starts their workers: at once, and fits of what they then take stay straight lines.
    **{**CLOCKS, "branch_s": 0.0},
)


def _aws() -> Calibration:
    """`ASSUMED` with the figures of config/calibration/ in their places."""
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
        instances=figures.instances(),
        measured=figures.measured(),
        elsewhere=figures.elsewhere(),
        **changes,
    )


AWS = _aws()
assert AWS.network is not None
# Outside a VPC the network grows with memory; seen second-hand only.
AWS_2026_08 = AWS.with_facts(
    "functions outside a VPC: 625 Mbps at 2 GB to 3,000 Mbps at 10 GB (the rule of August 2026, seen second-hand)",
    name="aws-2026-08",
    network=replace(AWS.network, by_memory=figures.network_2026_08()),
)
AWS_2022 = AWS.with_facts("state machines and sandboxes: as of 2022", name="aws-2022", **FIGURES["year_2022"])
NAMED = {each.name: each for each in (AWS_2026_08, AWS_2022)}
# What moving data and vectors takes, and combining them; and what it takes until something works on them: left out to see what is left.
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
).calm()

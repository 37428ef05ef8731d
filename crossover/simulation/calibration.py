"""How fast what a run uses is: functions, instances, GPUs, stores, the bus, Step Functions. Every projected second comes from here.

`AWS` is what stands without any measurement: documented or assumed, and labelled so. `measured.py` takes computing from a run's own
records, `published.py` fits what the papers' rows that are not held out say of their deployments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from math import inf
from typing import Any

from crossover.experiment import Experiment
from crossover.simulation.workload import Workload

VCPU_MB = 1_769  # of a function's memory: one vCPU (AWS Lambda, "Configuring memory")
MOST_MEMORY_MB = 10_240
BACKWARD = 2  # the backward pass computes twice what the forward pass does

# Seconds of one CIFAR-10 sample's gradient at batch 512, one thread, float32: processor time of `compute` in the records of
#   crossover run config/spirt-cifar10.yaml --on inline --set training.model=... --set training.epochs=1 --set data.limit=...
# on a shared machine of the AVX-512 class. Only their ratio reaches a projection of the papers' rows: its level is fitted.
REFERENCE_SAMPLE_S: Mapping[str, float] = {"mobilenet": 0.01073, "resnet18_cifar": 0.0306}

# vCPUs by instance type (EC2 instance types pages); others are taken for two.
VCPUS = {"t2.small": 1, "t2.medium": 2, "t2.large": 2, "t4g.medium": 2, "m7g.large": 2, "r7g.large": 2}
# GPU peak in float32, multiply-accumulates per second: half of NVIDIA's data sheets' operations (T4, A10G, L4).
GPU_PEAK_MACS_S = {"g4dn": 4.05e12, "g5": 15.6e12, "g6": 15.1e12}


@dataclass(frozen=True, kw_only=True)
class Service:
    """A store or the bus. A request takes `latency_s` and its bytes over the slower of the client's way and the host's."""

    latency_s: float
    client_bytes_s: float = inf  # one client's own way to it
    host_bytes_s: float = inf  # what all clients of one host share, in each direction

    def seconds(self, bytes_: float, *, requests: int = 1) -> float:
        """Of `requests` one after another that move `bytes_` in all, without anybody else."""
        return requests * self.latency_s + bytes_ / min(self.client_bytes_s, self.host_bytes_s)

    def slowed(self, factor: float) -> "Service":
        """In a session whose requests take `factor` times as long; the host's link, which the instance type promises, stays."""
        return replace(self, latency_s=factor * self.latency_s, client_bytes_s=self.client_bytes_s / factor)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """All seconds that do not follow from an experiment's sizes."""

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
    evaluate_share: float = 1 / (1 + BACKWARD)  # of a gradient's time: forward only
    arithmetic_bytes_s: float = 2.0e9  # vector arithmetic on a processor, by bytes read and written
    database_bytes_s: float = 1.5e9  # the same inside the database
    database_batch_s: float = 0.0  # per vector, whatever its length

    # Functions and state machines
    invoke_s: float = 0.015  # from the state machine to a warm function's handler
    cold_s: float = 0.9  # INIT of a function without torch
    cold_torch_s: float = 4.5
    keep_warm_s: float = 300.0  # how long an idle environment stays
    torch_step_s: float = 0.01  # of a step, outside what is listed: learner, connections
    plain_step_s: float = 0.005
    transition_s: float = 0.03
    child_s: float = 0.25  # a child execution's start and the return of its result
    concurrency: int | None = 1_000  # the account's; None: raised as far as needed

    # Services
    objects: Service = Service(latency_s=0.025, client_bytes_s=75e6)
    tensors: Service = Service(latency_s=0.001, client_bytes_s=75e6, host_bytes_s=1.17e8)
    bus: Service = Service(latency_s=0.005, client_bytes_s=75e6, host_bytes_s=1.25e8)
    instance_objects: Service = Service(latency_s=0.025, client_bytes_s=1e8)
    instance_bus: Service = Service(latency_s=0.005, client_bytes_s=1e8, host_bytes_s=1.25e8)
    mailbox_s: float = 0.0  # a peer's own work on a message, besides the bus
    supervisor_s: float = 0.01  # MLLess: per step, the supervisor's own work
    significant: float = 0.1  # MLLess: share of the coordinates that pass the filter

    # Spread: factors on seconds, lognormal with mean 1. Per invocation, and of requests per session: what all functions of a run share.
    compute_sigma: float = 0.08
    request_sigma: float = 0.15
    session_sigma: float = 0.2  # assumed

    def gradient_s(self, workload: Workload, samples: int, *, threads: float, speed: float, batch_s: float) -> float:
        """One minibatch on a processor: `threads` vCPUs (or a part of one) of `speed`."""
        if not samples:
            return 0.0
        return batch_s + samples * self.of_sample(workload) / (threads * speed)

    def of_sample(self, workload: Workload) -> float:
        """Seconds of one sample's gradient on the reference vCPU."""
        return self.sample_s.get(workload.model, (1 + BACKWARD) * workload.macs * self.mac_s)

    def in_function(self, experiment: Experiment, workload: Workload, samples: int, *, memory_mb: int) -> float:
        threads = min(float(experiment.training.threads), memory_mb / VCPU_MB)
        return self.gradient_s(
            workload, samples, threads=threads, speed=self.function_speed, batch_s=self.function_batch_s
        )

    def on_instance(self, experiment: Experiment, workload: Workload, samples: int) -> float:
        threads = min(experiment.training.threads, VCPUS.get(experiment.p2p.instance_type, 2))
        return self.gradient_s(
            workload, samples, threads=threads, speed=self.instance_speed, batch_s=self.instance_batch_s
        )

    def on_gpu(self, experiment: Experiment, workload: Workload, samples: int) -> float:
        family = experiment.gpu.instance_type.split(".")[0]
        macs = samples * (1 + BACKWARD) * workload.macs
        if not samples:
            return 0.0
        return self.gpu_batch_s + macs / (self.gpu_efficiency * GPU_PEAK_MACS_S.get(family, GPU_PEAK_MACS_S["g4dn"]))

    def with_facts(self, *facts: str, **changes: Any) -> "Calibration":
        """With other figures, and said where they come from."""
        return replace(self, basis=(*self.basis, *facts), **changes)

    def as_json(self) -> dict[str, Any]:
        """Every figure; an infinite bandwidth is null."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    return None if value == inf else value


FREE = Service(latency_s=0.0)
AWS = Calibration(
    name="AWS, uncalibrated",
    basis=(
        "latencies, bandwidths, cold starts and transition times: assumed from AWS's documentation, not measured",
        "computing: MobileNet and ResNet-18 as measured on one machine's core, others by their multiply-accumulates",
    ),
    sample_s=REFERENCE_SAMPLE_S,
)
# Nothing takes time but computing: what a run cannot be faster than.
PURE_COMPUTE = Calibration(
    name="pure computing",
    basis=("no latency, no overhead, infinite bandwidth",),
    arithmetic_bytes_s=inf,
    database_bytes_s=inf,
    invoke_s=0.0,
    cold_s=0.0,
    cold_torch_s=0.0,
    torch_step_s=0.0,
    plain_step_s=0.0,
    transition_s=0.0,
    child_s=0.0,
    concurrency=None,
    objects=FREE,
    tensors=FREE,
    bus=FREE,
    instance_objects=FREE,
    instance_bus=FREE,
    supervisor_s=0.0,
    compute_sigma=0.0,
    request_sigma=0.0,
    session_sigma=0.0,
)

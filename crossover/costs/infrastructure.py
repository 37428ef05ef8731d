"""What a run keeps running besides its functions: hosts, broker, endpoint, secrets.

Derived from the architecture's tree, so that it is said once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from crossover.architecture import Architecture, architecture_of, instances, steps
from crossover.architecture.infrastructure import database_hosts, talks
from crossover.experiment import Experiment

BOOT_S = 60.0  # until a program on a fresh instance starts: assumed, billed and not seen in its records
DATABASE = "tensor database"  # the purpose of Redis hosts
GPU_BOOT_S = 300.0  # likewise with the larger image, whose volume is read from its snapshot as it is touched


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """EC2 instances of one type, billed from their start. `setting`: the field of the YAML that says the type; `busy`: vCPUs of one that
    compute all the time.
    """

    purpose: str
    instance_type: str
    count: int
    busy: float = 0.0
    volume_gb: int = instances.DATABASE_GB
    boot_s: float = 0.0
    spot: bool = False
    gpu: bool = False
    setting: str = "database.instance_type"


@dataclass(frozen=True, kw_only=True)
class Infrastructure:
    """Everything that is billed by the hour while a run lasts, and the functions' memory by step."""

    fleets: tuple[Fleet, ...] = ()
    broker_instance_type: str | None = None
    interface_endpoints: int = 0
    secrets: int = 0
    memory_mb: Mapping[str, int] = field(default_factory=dict)


def of(experiment: Experiment, architecture: Architecture | None = None) -> Infrastructure:
    """The infrastructure that `experiment` deploys. Raises ConfigError for an architecture that does not exist."""
    architecture = architecture or architecture_of(experiment)
    found = steps(architecture)
    bus, hosts = talks(architecture), database_hosts(experiment, architecture)
    databases = Fleet(purpose=DATABASE, instance_type=experiment.database.instance_type, count=hosts)
    return Infrastructure(
        fleets=(*([databases] if hosts else []), *_programs(experiment, architecture)),
        broker_instance_type=experiment.network.broker_instance_type if bus else None,
        # Only functions inside the VPC need the endpoint to read their secrets.
        interface_endpoints=int(hosts > 0 or any("bus" in step.uses for step in found)),
        secrets=int(hosts > 0) + int(bus),
        memory_mb={
            step.name: experiment.functions.memory_of(step.name, torch=step.needs_torch(experiment)) for step in found
        },
    )


def _programs(experiment: Experiment, architecture: Architecture) -> list[Fleet]:
    if architecture.program is None:
        return []
    asked = architecture.program.instances(experiment)
    return [
        Fleet(
            purpose=asked.purpose,
            instance_type=asked.instance_type,
            count=asked.count,
            busy=asked.busy,
            volume_gb=asked.volume_gb,
            boot_s=GPU_BOOT_S if asked.gpu else BOOT_S,
            spot=asked.spot,
            gpu=asked.gpu,
            setting=asked.setting,
        )
    ]

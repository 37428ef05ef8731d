"""What is known of EC2 instances before one is started: the processor of a type, what a run's programs ask for, and root volumes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

# In GB: the stacks make them, bills price them.
DATABASE_GB = 30  # Redis hosts; gp3 gives 125 MB/s at any size, which every write reaches before it is acknowledged
PEER_GB = 20  # torch and its packages take a quarter of it
GPU_GB = 100  # the Deep Learning image asks for it


def processor(instance_type: str) -> str:
    """`arm64` for Graviton (a `g` behind the generation: m7g, c7gn, t4g), else `amd64`: Debian's names. An image and a tensor module are
    made for one of them.
    """
    return "arm64" if re.match(r"[a-z]+\d+[a-z]*g[a-z]*\.", instance_type) else "amd64"


# AWS's Deep Learning image with PyTorch in the version that functions have, so that no boot fetches gigabytes. On
# Ubuntu 24.04, whose Python is 3.12: that of 22.04 is 3.10, and programs need 3.11. Source: its release notes.
GPU_IMAGE = "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.10-ubuntu-24.04/latest/ami-id"


def image_parameter(instance_type: str, *, gpu: bool) -> str:
    """The public SSM parameter that names the newest image."""
    return GPU_IMAGE if gpu else f"/aws/service/debian/release/13/latest/{processor(instance_type)}"


# Burstable types: vCPUs, and the share of each that the hourly price pays for. Source: Amazon EC2, Burstable performance instances.
_OF_T2 = {"nano": (1, 0.05), "micro": (1, 0.10), "small": (1, 0.20), "medium": (2, 0.20)}
_OF_T2 |= {"large": (2, 0.30), "xlarge": (4, 0.225), "2xlarge": (8, 0.17)}
_LATER = {"nano": (2, 0.05), "micro": (2, 0.10), "small": (2, 0.20), "medium": (2, 0.20)}
_LATER |= {"large": (2, 0.30), "xlarge": (4, 0.40), "2xlarge": (8, 0.40)}
BURSTABLE = {"t2": _OF_T2, "t3": _LATER, "t3a": _LATER, "t4g": _LATER}


def is_burstable(instance_type: str) -> bool:
    return instance_type.split(".")[0] in BURSTABLE


def vcpus_beyond_the_baseline(instance_type: str, busy: float) -> float:
    """Of `busy` vCPUs, those that are paid for by the hour on top of the instance; 0 for types that do not burst."""
    family, _, size = instance_type.partition(".")
    vcpus, share = BURSTABLE.get(family, {}).get(size, (0, 0.0))
    return max(0.0, min(busy, vcpus) - vcpus * share)


@dataclass(frozen=True, kw_only=True)
class Instances:
    """What a run's programs run on. `purpose`: what a bill calls them; `setting`: the field of the YAML that says their type; `busy`: the
    vCPUs of one that computing keeps busy from the run's start to its end, 0 where functions compute.
    """

    purpose: str
    setting: str
    instance_type: str
    count: int
    busy: float = 0.0
    gpu: bool = False
    spot: bool = False

    @property
    def volume_gb(self) -> int:
        return GPU_GB if self.gpu else PEER_GB


# Families with an NVIDIA GPU, by AWS's naming: g and p with a generation, but g4ad, which has AMD's. Source: Amazon EC2, Accelerated
# computing instance types.
_NVIDIA = re.compile(r"(?!g4ad\.)(g\d|gr\d|p\d)[a-z0-9-]*\.")
# GPUs that the image's open driver does not serve (before Turing, but for V100, which it refuses too), and ARM, for which it is not made.
# Source: NVIDIA, open GPU kernel modules, supported GPUs.
_UNBOOTABLE = re.compile(r"(g2|g3s?|g5g|p2|p3(dn)?)\.")


def needs_a_gpu(asked: Instances) -> Iterator[str]:
    """What is wrong with a type that a GPU is asked of: without one, the CPU would compute in silence."""
    if asked.gpu and not _NVIDIA.match(asked.instance_type):
        yield (
            f"{asked.setting}: {asked.instance_type} has no NVIDIA GPU; expected a type of a family that has, "
            "for example g4dn.xlarge, g5.xlarge or g6.xlarge"
        )
    elif asked.gpu and _UNBOOTABLE.match(asked.instance_type):
        yield (
            f"{asked.setting}: {asked.instance_type} cannot boot the image with PyTorch, whose driver serves x86 instances with GPUs from "
            "Turing on; expected for example g4dn.xlarge, g5.xlarge or g6.xlarge"
        )


def computing(threads: int | str) -> float:
    """The vCPUs that a program keeps busy which computes gradients itself: as many as `training.threads`; all there are with auto."""
    return float(threads) if isinstance(threads, int) else inf

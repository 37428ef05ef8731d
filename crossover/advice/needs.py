"""What a candidate cannot do without: what is on hand, memory for activations and vectors, workers that share the data."""

from collections.abc import Collection
from dataclasses import dataclass
from math import ceil

from crossover.advice.candidates import Candidate
from crossover.experiment import MOST_MEMORY_MB
from crossover.simulation import figures

ON_HAND = ("lambda", "ec2", "gpu", "spot")
NEW_ACCOUNT_MB = 3_008  # of a function, until an account has been granted more

# Peaks of this project's own steps, in Linux with glibc: what is freed stays with the process and fragments (learning/memory.py).
RUNTIME_MB = 300  # torch, boto3 and the interpreter: 226 to 276 measured
HELD_VECTORS = 6  # model, gradient, average, momentum, one that comes in and one that goes out
OF_KEPT = 2.5  # of a step's activations: MobileNet's 512 keep 820 MB and peaked at 1.7 to 2.3 GB
OF_EVALUATION = 3.5  # of the widest layer's 256 samples: 443 MB for 128
STEP_MB = 64  # between two sizes of function that are told apart
HOST_SHARE = 0.7  # of a database host's memory that vectors may fill


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What bounds every candidate: bytes of a vector, of one sample's activations, of an evaluation's forward pass, of what no vector holds
    of the model.
    """

    vector_bytes: int
    kept_bytes: float
    evaluation_bytes: int
    fixed_bytes: int = 0

    def step_mb(self, batch_size: int) -> float:
        """What a process that computes gradients of so many samples needs, at its peak."""
        computing = max(OF_KEPT * batch_size * self.kept_bytes, OF_EVALUATION * self.evaluation_bytes)
        return RUNTIME_MB + (HELD_VECTORS * self.vector_bytes + self.fixed_bytes + computing) / 2**20

    def least_mb(self, batch_size: int) -> int:
        """The smallest function that has so much; the largest there is where none has."""
        return min(MOST_MEMORY_MB, STEP_MB * ceil(self.step_mb(batch_size) / STEP_MB))


def problem(candidate: Candidate, sizes: Sizes, on_hand: Collection[str]) -> tuple[str, str]:
    """(what kind of reason, the reason in words) why the candidate cannot be; two empty ones where it can."""
    lacking = missing(candidate, on_hand)
    if lacking:
        return "not on hand", f"needs {lacking}, which is not on hand"
    needed = sizes.step_mb(candidate.batch_size)
    where, given = _given(candidate)
    if needed > given:
        return (
            "memory",
            f"a gradient of {candidate.batch_size:,} samples needs {needed:,.0f} MB at its peak, and {where} has {given:,.0f}",
        )
    return _of_host(candidate, sizes)


def missing(candidate: Candidate, on_hand: Collection[str]) -> str:
    """What of ON_HAND the candidate needs and the user has not; empty where there is nothing."""
    needs = [
        *(["lambda"] if candidate.memory_mb else []),
        *(["gpu"] if candidate.gpu else []),
        *(["ec2"] if (candidate.instance and not candidate.gpu) or candidate.host else []),
        *(["spot"] if candidate.spot else []),
    ]
    return next((each for each in needs if each not in on_hand), "")


def _given(candidate: Candidate) -> tuple[str, float]:
    """Where gradients are computed, and its memory in MB."""
    if candidate.memory_mb:
        return f"the function of {candidate.memory_mb:,} MB", float(candidate.memory_mb)
    known = figures.instances().get(candidate.instance)
    if known is None or known.memory_gb is None:
        return candidate.instance, float("inf")
    return candidate.instance, 1_024 * (known.gpu_gb or known.memory_gb)


def _of_host(candidate: Candidate, sizes: Sizes) -> tuple[str, str]:
    """Whether a database host holds the vectors of two rounds; of SPIRT, a worker's gradients and everybody's averages."""
    known = figures.instances().get(candidate.host)
    if known is None or known.memory_gb is None:
        return "", ""
    every = 64 if candidate.every == "epoch" else candidate.every
    vectors = 2 * (2 * candidate.workers + (every if candidate.memory_mb else 0) + HELD_VECTORS)
    needed, given = vectors * sizes.vector_bytes / 2**30, HOST_SHARE * known.memory_gb
    if needed <= given:
        return "", ""
    return (
        "memory",
        f"a database host holds up to {needed:,.1f} GB of vectors, and {candidate.host} has {known.memory_gb:g}",
    )


def quota(candidate: Candidate) -> str:
    """What a new account must ask for first; empty where it need not."""
    if candidate.gpu:
        return f"a new account may start no {candidate.instance}: ask for a quota first (crossover doctor names it)"
    if candidate.memory_mb > NEW_ACCOUNT_MB:
        return f"functions of more than {NEW_ACCOUNT_MB:,} MB need an account that was granted them (at most {MOST_MEMORY_MB:,})"
    if candidate.memory_mb and candidate.workers > 10:
        return "a new account runs ten functions at once: ask for more first (crossover doctor names it)"
    return ""

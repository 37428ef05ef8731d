"""A calibration's figures as dated data: config/calibration/documented.yaml by hand, fitted.yaml by `crossover project --fit FOLDER`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from crossover.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "config" / "calibration"
DOCUMENTED, FITTED = FOLDER / "documented.yaml", FOLDER / "fitted.yaml"
FORMAT, BITS = 1, 8


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """What EC2 documents of a type. `bytes_s`: its network for ever; `memory_gb`, `gpu_gb`: in GiB. None where that is not said."""

    vcpus: int
    bytes_s: float | None = None
    memory_gb: float | None = None
    gpu_gb: float | None = None


UNKNOWN_INSTANCE = InstanceType(vcpus=2)


@cache
def _read(path: Path) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        if plain["format"] != FORMAT:
            raise ValueError(f"format {plain['format']!r} is unknown; this version reads {FORMAT}")
        for each in plain["figures"]:
            if not each["source"] or not isinstance(each["value"], int | float):
                raise ValueError(f"{each['figure']}: expected a number and its source")
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as problem:
        raise ConfigError(f"{path.name}: not a calibration: {problem}") from problem
    return plain


def figures() -> Mapping[str, Mapping[str, float]]:
    """By service or network, then by field; what belongs to none stands under "". What was fitted goes before what is documented."""
    found: dict[str, dict[str, float]] = {}
    for path in (DOCUMENTED, FITTED):
        for each in _read(path)["figures"]:
            group, _, name = each["figure"].rpartition(".")
            found.setdefault(group, {})[name] = float(each["value"])
    return found


@cache
def instances() -> Mapping[str, InstanceType]:
    """By type."""
    return {
        name: InstanceType(
            vcpus=each["vcpus"],
            bytes_s=each["gbps"] * 1e9 / BITS if "gbps" in each else None,
            memory_gb=each.get("memory_gb"),
            gpu_gb=each.get("gpu_gb"),
        )
        for name, each in _read(DOCUMENTED)["instances"]["types"].items()
    }


@cache
def function_vcpus() -> tuple[tuple[int, int], ...]:
    """Up to so much memory (MB), so many vCPUs."""
    return tuple((memory_mb, count) for memory_mb, count in _read(DOCUMENTED)["function_vcpus"]["up_to_mb"])


def network_2026_08() -> tuple[tuple[float, float], ...]:
    """Memory (MB) and bytes per second, of functions outside a VPC."""
    listed = _read(DOCUMENTED)["network_2026_08"]["gbps_by_memory_mb"]
    return tuple((float(memory_mb), gbps * 1e9 / BITS) for memory_mb, gbps in listed)


def elsewhere() -> Mapping[str, tuple[str, ...]]:
    """What the fits have seen of other processors, runtimes or years alone: by what uses it, "functions" or "databases"."""
    return {name: tuple(words) for name, words in _read(FITTED)["elsewhere"].items()}


def measured() -> Mapping[str, tuple[float, float]]:
    """What the fits have seen, from the least to the most: "memory_mb", "object_bytes", "functions", "branches"."""
    return {name: (least, most) for name, (least, most) in _read(FITTED)["measured"].items()}


@cache
def as_fast(instance: str) -> str:
    """The first of the types that have as many vCPUs and the same network: nothing else of one without a GPU is simulated."""
    known = instances()
    alike = known.get(instance)
    return next(
        (name for name, each in known.items() if alike and (each.vcpus, each.bytes_s) == (alike.vcpus, alike.bytes_s)),
        instance,
    )

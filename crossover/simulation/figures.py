"""Figures of the calibration as dated data: config/calibration/documented.yaml, written by hand, and fitted.yaml, written by `python -m lab
fit FOLDER`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import yaml

from crossover.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "config" / "calibration"
GPUS = FOLDER / "gpus.yaml"
DOCUMENTED, FITTED = FOLDER / "documented.yaml", FOLDER / "fitted.yaml"
FORMAT, BITS = 1, 8


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """Documented size of an EC2 instance type. `vcpus`: number of its vCPUs; `bytes_s`: sustained network bandwidth in bytes per second;
    `memory_gb`, `gpu_gb`: memory in GiB of the instance and of its GPU; None if not documented. `gpu_share`: part of a GPU card that the
    instance has.
    """

    vcpus: int
    bytes_s: float | None = None
    memory_gb: float | None = None
    gpu_gb: float | None = None
    gpu_share: float = 1.0


UNKNOWN_INSTANCE = InstanceType(vcpus=2)


@cache
def _read_figures(path: Path) -> dict[str, Any]:
    """Return the content of a calibration file; cached, so that a later change of the file is not seen. Raises ConfigError if the file is
    not a calibration, or if a figure has no number or no source.
    """
    plain = dict(_read_yaml(path))
    try:
        for each in plain["figures"]:
            if not each["source"] or not isinstance(each["value"], int | float):
                raise ValueError(f"{each['figure']}: expected a number and its source")
    except (KeyError, TypeError, ValueError) as problem:
        raise ConfigError(f"{path.name}: not a calibration: {problem}") from problem
    return plain


def load_figures() -> Mapping[str, Mapping[str, float]]:
    """Return all figures of the calibration files as {service or network: {field: value}}. Figures that belong to no service are under "".
    A fitted figure replaces the documented one of the same name. Raises ConfigError if a file cannot be read or is no calibration.
    """
    found: dict[str, dict[str, float]] = {}
    for path in (DOCUMENTED, FITTED):
        for each in _read_figures(path)["figures"]:
            group, _, name = each["figure"].rpartition(".")
            found.setdefault(group, {})[name] = float(each["value"])
    return found


@cache
def load_instances() -> Mapping[str, InstanceType]:
    """Return the EC2 instance types that documented.yaml lists, by name. Read at the first call; every caller gets the same mapping, which
    must not be changed. Raises ConfigError if the file cannot be read or is no calibration.
    """
    return {
        name: InstanceType(
            vcpus=each["vcpus"],
            bytes_s=each["gbps"] * 1e9 / BITS if "gbps" in each else None,
            memory_gb=each.get("memory_gb"),
            gpu_gb=each.get("gpu_gb"),
            gpu_share=each.get("gpu_share", 1.0),
        )
        for name, each in _read_figures(DOCUMENTED)["instances"]["types"].items()
    }


@dataclass(frozen=True, kw_only=True)
class SpotMarket:
    """Observed market of spot instances of one type in one zone. `lost_per_hour`: interruptions per hour for which an instance is held;
    `wait_s`: mean seconds until another instance is to be had.
    """

    lost_per_hour: float
    wait_s: float


MOST_LOST_PER_HOUR = 60.0


@cache
def load_spot_markets(path: Path = DOCUMENTED) -> tuple[SpotMarket, ...]:
    """Return the spot markets from which projections draw at random, as documented.yaml lists them; cached. Raises ConfigError if the list
    is empty, if an entry is malformed, or if a rate is above one interruption a minute.
    """
    field, found = f"{path.name}: spot.lost_per_hour_and_wait_h", []
    for pair in _read_figures(path)["spot"]["lost_per_hour_and_wait_h"]:
        given = isinstance(pair, list) and len(pair) == 2 and all(type(each) in (int, float) for each in pair)
        if not given or not 0 <= pair[0] <= MOST_LOST_PER_HOUR or not 0 <= pair[1] < inf:
            raise ConfigError(
                f"{field}: {pair!r} is not allowed; expected [losses of an instance an hour, hours until there is another], losses from "
                f"0 to {MOST_LOST_PER_HOUR:g} (one a minute)"
            )
        found.append(SpotMarket(lost_per_hour=float(pair[0]), wait_s=3_600.0 * pair[1]))
    if not found:
        raise ConfigError(f"{field}: is empty; expected at least one pair")
    return tuple(found)


@cache
def load_function_vcpus() -> tuple[tuple[int, int], ...]:
    """Return pairs (memory in MB, vCPUs), ascending: a Lambda function with at most that memory sees that many vCPUs. Raises ConfigError if
    the file cannot be read or is no calibration.
    """
    return tuple((memory_mb, count) for memory_mb, count in _read_figures(DOCUMENTED)["function_vcpus"]["up_to_mb"])


def load_network_2026_08() -> tuple[tuple[float, float], ...]:
    """Return pairs (memory in MB, bytes per second): the network bandwidth of functions outside a VPC by the rule of August 2026. Raises
    ConfigError if the file cannot be read or is no calibration.
    """
    listed = _read_figures(DOCUMENTED)["network_2026_08"]["gbps_by_memory_mb"]
    return tuple((float(memory_mb), gbps * 1e9 / BITS) for memory_mb, gbps in listed)


def load_caveats() -> Mapping[str, tuple[str, ...]]:
    """Return caveats of the fits, by subject ("functions" or "databases"): sentences that say which measurements come from other
    processors, runtimes or years. Raises ConfigError if the file cannot be read or is no calibration.
    """
    return {name: tuple(words) for name, words in _read_figures(FITTED)["elsewhere"].items()}


def load_measured_ranges() -> Mapping[str, tuple[float, float]]:
    """Return (smallest, largest) value that the fitted measurements cover, by quantity: "memory_mb", "object_bytes", "functions" and
    "branches". Raises ConfigError if the file cannot be read or is no calibration.
    """
    return {name: (least, most) for name, (least, most) in _read_figures(FITTED)["measured"].items()}


@cache
def find_equivalent_type(instance: str) -> str:
    """Return the first known instance type with as many vCPUs and the same network bandwidth as `instance`, which may be `instance` itself;
    also `instance` if it is not known. The simulator cannot tell the two apart, so their simulations can be shared.

    `instance`: name of a type without a GPU.
    """
    known = load_instances()
    alike = known.get(instance)
    return next(
        (name for name, each in known.items() if alike and (each.vcpus, each.bytes_s) == (alike.vcpus, alike.bytes_s)),
        instance,
    )


@cache
def load_gpus() -> Mapping[str, Mapping[str, Any]]:
    """Return the GPU cards of config/calibration/gpus.yaml as plain data, by the card's name. Read at the first call; every caller gets the
    same mapping, which must not be changed. Raises ConfigError if the file cannot be read.
    """
    return {name: dict(each) for name, each in _read_yaml(GPUS)["cards"].items()}


def _read_yaml(path: Path) -> Mapping[str, Any]:
    """Return the content of a YAML file. Raises ConfigError if the file cannot be read, is not YAML, or its `format` is not FORMAT."""
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        plain: Mapping[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - both are safe
        if plain["format"] != FORMAT:
            raise ValueError(f"format {plain['format']!r} is unknown; this version reads {FORMAT}")
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as problem:
        raise ConfigError(f"{path.name}: not a calibration: {problem}") from problem
    return plain

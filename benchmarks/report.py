"""Output of every benchmark: measured values against their goals, as benchmarks/out/<name>.json."""

import json
import operator
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent / "out"
_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value of a benchmark. `value`: in `unit`, "" for a pure number; `goal`: a comparison such as "<= 1.4", or None. A value
    that misses its goal is reported like all others.
    """

    name: str
    value: float
    unit: str
    goal: str | None = None

    @property
    def holds(self) -> bool | None:
        """True if the goal is met, False if not; None if there is no goal."""
        if self.goal is None:
            return None
        comparison, _, bound = self.goal.partition(" ")
        return _HOLDS[comparison](self.value, float(bound))


def write(name: str, figures: Sequence[Figure], *, out: Path = OUT) -> Path:
    """Write `figures`, with the command and the machine, to the file `out`/<name>.json, replacing an earlier one; print one line per
    figure, and return the file's path. `name`: name of the benchmark. A missed goal raises nothing.
    """
    plain = [
        {"name": f.name, "value": _round(f.value), "unit": f.unit, "goal": f.goal, "holds": f.holds} for f in figures
    ]
    command = " ".join(["python -m", f"benchmarks.{name}", *sys.argv[1:]])
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps({"command": command, "machine": describe_machine(), "figures": plain}, indent=2) + "\n")
    for each in plain:
        told = "" if each["goal"] is None else f"goal {each['goal']}: {'met' if each['holds'] else 'MISSED'}"
        print(f"{each['name']:<78} {each['value']:>10} {each['unit']:<6} {told}")
    return path


def describe_machine() -> dict[str, Any]:
    """Return properties of this machine on which figures depend, by name: processor, cores, memory, versions, load. No names of hosts or
    users are included.
    """
    about: dict[str, Any] = {
        "processor": _read_processor_name(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),  # above the cores: others were working, trust ratios only
    }
    if "torch" in sys.modules:
        about["torch"] = sys.modules["torch"].__version__
    return about


def _read_processor_name() -> str:
    """Return the name of this machine's processor; its architecture if the system gives no name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _round(value: float) -> float:
    """Return the value rounded to four significant digits."""
    return float(f"{value:.4g}")

"""Room on the disks that a run writes to, looked at before it begins: not after the training."""

import shutil
import tempfile
from pathlib import Path

from crossover.errors import ConfigError
from crossover.local.rabbitmq_server import FREE_MB
from crossover.running.preparing import Prepared

_SERVERS_MB = 100  # code, logs, and what databases and brokers write of a small model
_FILES_MB = 50  # of the run's folder: records, report, and a small model
# Of a member: two checkpoints of model and two vectors of the optimizer, while newer ones are copied.
_KEPT_VECTORS = 2 * 3 * 2


def check_servers(out: Path, *, talks: bool) -> None:
    """For servers in the folder for temporary files, and for results in `out`. `talks`: a broker is among them. Raises ConfigError."""
    broker = f", {FREE_MB} MB of it so that RabbitMQ takes messages" if talks else ""
    _check(Path(tempfile.gettempdir()), _SERVERS_MB + talks * FREE_MB, f"by the servers{broker}", "set TMPDIR to a")
    _check_results(out, _FILES_MB)


def check(prepared: Prepared, out: Path) -> None:
    """For the run's folder, with what is kept there while it lasts. Raises ConfigError."""
    facts, members = prepared.facts, prepared.experiment.workers if prepared.architecture.state == "checkpoints" else 1
    vectors_mb = 4 * (1 + _KEPT_VECTORS * members) * (facts["parameters"] + facts["buffers"]) / 1e6
    _check_results(out, _FILES_MB + vectors_mb * prepared.architecture.trains)


def _check_results(out: Path, needed_mb: float) -> None:
    _check(out, needed_mb, "by the results, and checkpoints until they stand", "give --out a")


def _check(folder: Path, needed_mb: float, what_for: str, otherwise: str) -> None:
    disk = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if (free_mb := shutil.disk_usage(disk).free // 10**6) < needed_mb:
        raise ConfigError(
            f"{folder}: {needed_mb:,.0f} MB are needed there {what_for}; {free_mb:,.0f} MB are free: make room, or {otherwise} "
            "folder on another disk"
        )

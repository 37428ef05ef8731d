"""Room on the disks that the servers of the cloud on one machine, and its results, lie on: looked at before anything is started."""

import shutil
import tempfile
from pathlib import Path

from crossover.errors import UserError

BROKER_MB = 200  # with less free where it lives, our rabbitmq-server takes no messages
_SERVERS_MB = 100  # code, logs, and what databases and brokers write of a small model
_RESULTS_MB = 50  # records, report and the model, or what a failed run goes on with


def check(out: Path, *, talks: bool) -> None:
    """Room for results in `out`, and for servers in the folder for temporary files; `talks`: a broker is among them. Raises UserError."""
    broker = f", {BROKER_MB} MB of it so that RabbitMQ takes messages" if talks else ""
    servers = (
        Path(tempfile.gettempdir()),
        _SERVERS_MB + talks * BROKER_MB,
        f"by the servers{broker}",
        "set TMPDIR to a",
    )
    for folder, needed_mb, what_for, otherwise in (servers, (out, _RESULTS_MB, "by the results", "give --out a")):
        disk = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        if (free_mb := shutil.disk_usage(disk).free // 10**6) < needed_mb:
            raise UserError(
                f"{folder}: {needed_mb} MB are needed there {what_for}; {free_mb} MB are free: make room, or {otherwise} "
                "folder on another disk"
            )

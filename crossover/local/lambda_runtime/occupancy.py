"""What a process occupies, from /proc."""

import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid: int) -> int:
    """Resident bytes, shared pages included; 0 when the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def peak_mb(pid: int) -> int:
    """The most it was ever resident, MB rounded up; 0 when the process is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return -(-int(line.split()[1]) // 1024)
    except OSError:
        pass
    return 0

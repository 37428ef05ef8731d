"""What a process and its children listen on, from /proc: whoever is on this machine can come by there."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LISTENS, _UNCONNECTED = "0A", "07"  # include/net/tcp_states.h: TCP_LISTEN, TCP_CLOSE (a datagram socket that is bound)
_ACCEPTS, _DATAGRAMS = 0x10000, "0002"  # include/uapi/linux/net.h: __SO_ACCEPTCON; include/linux/net.h: SOCK_DGRAM
_LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


@dataclass(frozen=True)
class Listening:
    """A socket that takes connections or datagrams, and the process that has it open. `address`: a port, or the path of a unix socket (@
    for an abstract name); `beyond`: whether it can be reached from beyond the loopback interface.
    """

    inode: str
    pid: int
    family: str  # tcp | udp | unix | unix datagrams
    address: str
    beyond: bool  # the loopback interface


def find_listening_sockets(pids: Iterable[int]) -> list[Listening]:
    """Return the listening sockets of these processes; a process that has ended has none."""
    sockets = {each.inode: each for each in (*_internet(), *_unix())}
    found = []
    for pid in pids:
        for inode in _sockets_of(pid) & sockets.keys():
            each = sockets[inode]
            found.append(Listening(inode, pid, each.family, each.address, each.beyond))
    return found


def _sockets_of(pid: int) -> set[str]:
    """Return the inode numbers of the sockets that a process has open."""
    found = set[str]()
    with suppress(OSError):  # it has ended
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                found.update(re.findall(r"^socket:\[(\d+)\]$", os.readlink(each)))
    return found


def _internet() -> Iterator[Listening]:
    """Yield the TCP sockets that listen and the UDP sockets that receive from anyone, on this machine."""
    for table in ("tcp", "tcp6", "udp", "udp6"):
        path = Path("/proc/net", table)
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            _, local, _, state, *_, inode = line.split()[:10]
            host, port = local.split(":")
            if state == (_LISTENS if table.startswith("tcp") else _UNCONNECTED):
                yield Listening(inode, 0, table.removesuffix("6"), str(int(port, 16)), host not in _LOOPBACK)


def _unix() -> Iterator[Listening]:
    """Yield the unix sockets on this machine that accept connections or datagrams."""
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, kind, _, inode, *path = line.split(maxsplit=7)
        datagrams = kind == _DATAGRAMS and bool(path)
        if int(flags, 16) & _ACCEPTS or datagrams:
            yield Listening(inode, 0, "unix datagrams" if datagrams else "unix", path[0] if path else "", False)

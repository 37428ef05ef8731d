"""Free ports on the loopback interface."""

import contextlib
import socket


def free_port() -> int:
    """A port that was free a moment ago. Whoever binds it must expect to lose the race, and choose again."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many different ones; the same holds for each."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]

"""Free ports on the loopback interface."""

import socket


def free_port() -> int:
    """A port that was free a moment ago. Whoever binds it must expect to lose the race, and choose again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

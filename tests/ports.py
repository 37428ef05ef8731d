"""Ports on the loopback interface that no other program gets while a test uses them."""

import socket


def held_port() -> tuple[int, socket.socket]:
    """Return a free port and the socket that keeps it until the socket is closed: bound, and not listening. A connection to the port is
    refused. A server that sets SO_REUSEADDR before it binds, as Redis does, can listen there all the same.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return int(holder.getsockname()[1]), holder

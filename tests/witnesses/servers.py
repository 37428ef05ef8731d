"""Debian 13's Redis, Valkey and RabbitMQ, unpacked below build/witnesses and started by their own loader; nothing is installed.

Programs of another Debian need that Debian's C library. A chroot would hide the folders that a server is given, user namespaces are
forbidden in many containers, and a binary that was changed would no longer be Debian's. So each program gives its name to a script
that calls the program's own loader; where programs start others, as Erlang's do, they find scripts again.

`python -m tests.witnesses.servers NAME` makes one and prints its path, for CROSSOVER_REDIS_SERVER or CROSSOVER_RABBITMQ_SERVER.
"""

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from crossover.errors import MissingTool
from layer import debian

BUILD = Path(__file__).parents[2] / "build" / "witnesses"
_BASE = ("libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libssl3t64", "libzstd1")
_REDIS_LIBRARIES = (*_BASE, "libatomic1", "libjemalloc2", "liblzf1", "libsystemd0", "libcap2")
_ERLANG = (
    *("base", "asn1", "crypto", "public-key", "mnesia", "runtime-tools", "ssl", "eldap", "inets", "os-mon"),
    *("parsetools", "syntax-tools", "tools", "xmerl"),
)
PACKAGES = {
    "redis_8": ("redis-server", "redis-tools", *_REDIS_LIBRARIES),
    "valkey_8": ("valkey-server", "valkey-tools", *_REDIS_LIBRARIES),
    "rabbitmq_4": ("rabbitmq-server", *(f"erlang-{name}" for name in _ERLANG), "libtinfo6", *_BASE),
}
# What Amazon MQ's 4.2 sets otherwise than 4.0: queues that name no type are quorum queues, Khepri keeps the metadata. And nothing
# that RabbitMQ calls deprecated is permitted, because the next release may take it away.
_BROKER = """[{rabbit, [
  {default_queue_type, rabbit_quorum_queue},
  {permit_deprecated_features, #{
    classic_queue_mirroring => false, global_qos => false, management_metrics_collection => false,
    queue_master_locator => false, ram_node_type => false, transient_nonexcl_queues => false}}]}].
"""
_FEATURES = "rabbitmq_4.0.0,khepri_db"


def program(name: str) -> Path:
    """The server of PACKAGES[name]; fetched once. Raises MissingTool where Debian's archive cannot be had."""
    folder = BUILD / name
    server = folder / f"{name.partition('_')[0]}-server"
    if not server.exists():
        root = debian.unpacked(folder / "root", PACKAGES[name], architecture=debian.architecture())
        (_rabbitmq if name.startswith("rabbitmq") else _redis)(root, server)
    return server


def _redis(root: Path, server: Path) -> None:
    _script(server, debian.command(root, root / "usr" / "bin" / server.name))


def _rabbitmq(root: Path, server: Path) -> None:
    """Its Erlang expects to lie in /usr/lib/erlang, so `erl` is told otherwise here."""
    erlang = root / "usr" / "lib" / "erlang"
    for binary in sorted(_programs(erlang)):
        original = binary.with_name(f"{binary.name}.debian")
        original.unlink(missing_ok=True)
        original.hardlink_to(binary)
        _script(binary, debian.command(root, original))
    (programs,) = (path / "bin" for path in erlang.glob("erts-*"))
    surroundings = {"ROOTDIR": erlang, "BINDIR": programs, "EMU": "beam", "PROGNAME": "erl"}
    _script(server.with_name("erl"), [str(programs / "erlexec")], surroundings)
    _script(server.with_name("epmd"), [str(programs / "epmd")])
    settings = server.with_name("advanced.config")
    settings.write_text(_BROKER)
    surroundings = {"RABBITMQ_ADVANCED_CONFIG_FILE": settings, "RABBITMQ_FEATURE_FLAGS": _FEATURES}
    _script(server, [str(root / "usr" / "lib" / "rabbitmq" / "bin" / "rabbitmq-server")], surroundings)


def _programs(folder: Path) -> Iterator[Path]:
    """Compiled ones that are not scripts, links or libraries."""
    for path in folder.rglob("*"):
        if path.suffix in (".so", ".debian") or path.is_symlink() or not path.is_file() or not os.access(path, os.X_OK):
            continue
        with path.open("rb") as file:
            if file.read(4) == b"\x7fELF":
                yield path


def _script(path: Path, command: list[str], environment: dict[str, object] | None = None) -> None:
    """Written last of all under its own name: what is there is whole."""
    set_ = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in (environment or {}).items())
    being_made = path.with_name(f"{path.name}.new")
    being_made.write_text(f'#!/bin/sh\n{set_}exec {shlex.join(command)} "$@"\n')
    being_made.chmod(0o755)
    being_made.rename(path)


if __name__ == "__main__":
    try:
        print(program(sys.argv[1]))
    except MissingTool as error:
        sys.exit(str(error))

"""Debian 13's Redis, Valkey and RabbitMQ, unpacked below build/witnesses and started by their own loader; nothing is installed. Its Redis
also compiled here, from Debian's source, once for each sanitizer.

Programs of another Debian need that Debian's C library. A chroot would hide the folders that a server is given, user namespaces are
forbidden in many containers, and a binary that was changed would no longer be Debian's. So each program gives its name to a script that
calls the program's own loader; where programs start others, as Erlang's do, they find scripts again.

`python -m tests.witnesses.servers NAME` makes one and prints its path, for CROSSOVER_REDIS_SERVER or CROSSOVER_RABBITMQ_SERVER.
"""

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
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
# An allocation that is refused is a command's error; what a server keeps until it ends is no leak. Nothing is suppressed.
_SANITIZERS = {
    "address": {"ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=0"},
    "thread": {"TSAN_OPTIONS": "allocator_may_return_null=1:report_thread_leaks=0"},
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
    """Return the path of a server of PACKAGES, downloaded and unpacked at the first call. Raises MissingTool if Debian's archive is not
    available.
    """
    folder = BUILD / name
    server = folder / f"{name.partition('_')[0]}-server"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w", encoding="utf-8") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # two files' tests may ask for it side by side
        if not server.exists():
            root = debian.fetch_packages(folder / "root", PACKAGES[name], architecture=debian.architecture())
            (_rabbitmq if name.startswith("rabbitmq") else _redis)(root, server)
    return server


def sanitized() -> None:
    """Build redis-server-address and redis-server-thread in build/witnesses/sanitizers. Raises MissingTool if they cannot be built."""
    folder = BUILD / "sanitizers"
    source = debian.fetch_source(folder / "source", "redis")
    for sanitizer, options in _SANITIZERS.items():
        binary = folder / sanitizer / "src" / "redis-server"
        shutil.copytree(source, folder / sanitizer, dirs_exist_ok=True)
        variables = (f"SANITIZER={sanitizer}", "MALLOC=libc", "OPTIMIZATION=-O1", "BUILD_TLS=no")
        command = ["make", "-C", binary.parent, *variables, binary.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingTool(f"Redis could not be compiled with -fsanitize={sanitizer}: {done.stderr[-500:]}")
        _script(folder / f"redis-server-{sanitizer}", [str(binary)], options)


def _redis(root: Path, server: Path) -> None:
    """Write a script at `server` that starts the unpacked Redis or Valkey with its own loader."""
    _script(server, debian.command(root, root / "usr" / "bin" / server.name))


def _rabbitmq(root: Path, server: Path) -> None:
    """Write scripts that start the unpacked RabbitMQ, its control program and its Erlang, and the broker's settings. Each of Erlang's
    compiled programs is replaced by a script that starts it with its own loader.
    """
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
    for name in ("rabbitmqctl", server.name):
        _script(server.with_name(name), [str(root / "usr" / "lib" / "rabbitmq" / "bin" / name)], surroundings)


def _programs(folder: Path) -> Iterator[Path]:
    """Yield the executable ELF files below a folder, no scripts, links or libraries."""
    for path in folder.rglob("*"):
        if path.suffix in (".so", ".debian") or path.is_symlink() or not path.is_file() or not os.access(path, os.X_OK):
            continue
        with path.open("rb") as file:
            if file.read(4) == b"\x7fELF":
                yield path


def _script(path: Path, command: list[str], environment: Mapping[str, object] | None = None) -> None:
    """Write an executable script that runs the command with the given variables; it appears under its name only when it is complete."""
    set_ = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in (environment or {}).items())
    being_made = path.with_name(f"{path.name}.new")
    being_made.write_text(f'#!/bin/sh\n{set_}exec {shlex.join(command)} "$@"\n')
    being_made.chmod(0o755)
    being_made.rename(path)


if __name__ == "__main__":
    try:
        print(program(sys.argv[1]) if sys.argv[1] in PACKAGES else sanitized())
    except MissingTool as error:
        sys.exit(str(error))

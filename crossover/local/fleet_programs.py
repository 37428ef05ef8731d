"""EC2 fleets on one machine: the service that an instance's user data sets up is run as a child process.

The program's code, environment, unit and start are read from the rendered user data of the launch template. An instance whose user data
lacks one of them would idle on AWS; here it is refused with an error that names the line.
"""

import base64
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from crossover.errors import RunFailed
from crossover.local import servers

UNIT = "/etc/systemd/system/crossover.service"
CODE, ENVIRONMENT = "/opt/crossover/code", "/etc/crossover.env"
LOOK_S = 0.1  # seconds between two checks for programs that have ended

_ASSIGNMENT = re.compile(r"^([A-Z_]+)='([^']*)'$", re.MULTILINE)
_RENEWED = re.compile(r"\[ ! -e (\S+) \] \|\| systemctl reset-failed")
_VARIABLE = re.compile(r"\$\{?([A-Z_]+)\}?")


@dataclass(frozen=True, kw_only=True)
class ProgramService:
    """The systemd service that runs a fleet's program, as the user data of an instance sets it up. `code`: s3://bucket/key of the program's
    zip. `command`: the program and its arguments; `environment`: its variables. `restarts`: whether systemd starts it again after a
    failure; `burst`: number of starts: if the program fails after the last one, the instance leaves the fleet, as it does at once if the
    program ends with status 0. `renewed_by`: path of the file by which the program reports progress, after which its starts are counted
    anew; "" for none.
    """

    code: str  # s3://bucket/key of its zip
    command: tuple[str, ...]
    environment: Mapping[str, str]
    restarts: bool  # whether systemd starts it again after a failure
    burst: int  # how often at most, before the instance leaves the fleet
    renewed_by: str = ""  # the file by which the program says that it got somewhere: then it is counted anew


def parse_user_data(user_data: str, *, fleet: str) -> ProgramService:
    """Return the service that an instance's user data (base64 or plain) sets up; a command that is Python becomes this process's Python.
    `fleet`: name for errors. Raises RunFailed if the user data lacks a part without which an instance would do nothing on AWS. The unit's
    variables replace those of the same name in its environment file.
    """
    script = _decode_user_data(user_data)
    facts = dict(_ASSIGNMENT.findall(script))

    def require(pattern: str, what: str) -> re.Match[str]:
        """Return the first match of the regular expression `pattern` in the user data; in it ^ and $ match at every line, and . also
        matches a newline. Raises RunFailed, saying that `what` is missing, if there is no match.
        """
        found = re.search(pattern, script, re.MULTILINE | re.DOTALL)
        if not found:
            raise RunFailed(f"{fleet}: its instances would idle: their user data lacks {what} (cdk/boot/program.sh)")
        return found

    def expand(text: str) -> str:
        """Return `text` with shell variables replaced by the values that the user data sets; others are replaced by ""."""
        return _VARIABLE.sub(lambda match: facts.get(match[1], ""), text)

    text = require(rf"^cat >{UNIT} <<UNIT\n(.*?)\nUNIT$", f"the unit {UNIT}")[1]
    unit = dict(line.partition("=")[::2] for line in expand(text).splitlines() if "=" in line)
    if "ExecStart" not in unit:
        raise RunFailed(f"{fleet}: its instances would idle: the unit in their user data has no ExecStart")
    require(r"^systemctl (?:start|enable --now) crossover\b", "the line that starts the service")
    require(rf"^attempt cloud get \"\$CODE\" {CODE}.zip$", "the line that fetches the code")
    require(rf"^printf .* \"\$ENVIRONMENT\" >{ENVIRONMENT}$", "the line that writes the environment")
    if unit.get("EnvironmentFile") != ENVIRONMENT or unit.get("WorkingDirectory") != CODE:
        raise RunFailed(f"{fleet}: the unit in its user data does not use {ENVIRONMENT} and {CODE}")
    program, *arguments = shlex.split(unit["ExecStart"])
    own = dict(each.partition("=")[::2] for each in shlex.split(unit.get("Environment", "")))
    given = dict(line.partition("=")[::2] for line in facts.get("ENVIRONMENT", "").splitlines() if line)
    return ProgramService(
        code=facts.get("CODE", ""),
        # This interpreter replaces the instance's: it has the packages that the instance's zip lists.
        command=(sys.executable if Path(program).name.startswith("python") else program, *arguments),
        environment={**given, **own},
        restarts=unit.get("Restart", "no") != "no",
        burst=int(unit.get("StartLimitBurst", "5")),
        renewed_by=renewed[1] if (renewed := _RENEWED.search(unit.get("ExecStopPost", ""))) else "",
    )


def _decode_user_data(user_data: str) -> str:
    """Return user data as text: unchanged if it begins with "#!", otherwise decoded from base64. Bytes that are not UTF-8 are replaced.
    Raises ValueError if the base64 is malformed.
    """
    if user_data.lstrip().startswith("#!"):
        return user_data
    return base64.b64decode(user_data).decode(errors="replace")


@dataclass
class LocalInstance:
    """An instance of a fleet, run as a child process. `number`: counted from 0 within its fleet, never used again; `run`: folder that
    stands for its /run; `starts`: number of times that its service was started, counted anew after progress.
    """

    number: int
    run: Path  # replaces its /run
    child: "subprocess.Popen[bytes]"
    starts: int = 1


@dataclass
class LocalFleet:
    """An Auto Scaling group on this machine. `service`: the service of its instances; `folder`: their logs and /run folders; `code`: folder
    of the unpacked program; `role`: name of the IAM role of the programs; `capacity`: number of instances wanted; `instances`: those that
    run, by number; `made`: number of instances started so far.
    """

    name: str
    service: ProgramService
    folder: Path
    code: Path
    role: str
    capacity: int = 0
    instances: dict[int, LocalInstance] = field(default_factory=dict)
    made: int = 0  # instances so far: their numbers


class Fleets:
    """The fleets of all deployed Auto Scaling groups, whose instances are child processes. `resize` starts and stops instances, and adds
    and removes fleets; a thread watches the instances from the first `resize` to `stop`, which ends them all.

    `fetch_code(s3 URL, role)`: returns the folder of a program's code, fetched with the role's permissions. `environment(variables, role)`:
    returns the variables with those that reach this cloud. `on_leave(fleet)`: called when an instance leaves its fleet; it lowers the
    group's capacity.
    """

    def __init__(
        self,
        folder: Path,
        *,
        fetch_code: Callable[[str, str], Path],
        environment: Callable[[Mapping[str, str], str], dict[str, str]],
        on_leave: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Start without fleets. `folder`: receives logs and /run folders; `fetch_code(s3 URL, role)`: returns the folder of a program's
        code; `environment(variables, role)`: completes a program's variables; `on_leave(fleet)`: called when an instance leaves.
        """
        self._on_leave = on_leave
        self._folder, self._fetch_code, self._environment = folder, fetch_code, environment
        self._fleets: dict[str, LocalFleet] = {}
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._watch: threading.Thread | None = None

    def resize(self, name: str, capacity: int, user_data: str, role: str) -> None:
        """Start or stop instances of a fleet until it has `capacity` of them, as Auto Scaling does; the newest are stopped. A new fleet's
        code is fetched first, and a fleet with `capacity` 0 is removed. Raises RunFailed if the user data of a new fleet lacks a part or
        `role` is "".

        `name`: of the group; `user_data`: the instances' boot script, which names program and code; `role`: name of the IAM role with which
        the programs call AWS. Both are read only for a fleet that does not exist yet. Does nothing for such a fleet after `stop`. Each
        stopped instance is waited for, and killed if it still runs after 5 s; `on_leave` is not called for it.
        """
        with self._lock:
            fleet = self._fleets.get(name)
            if fleet is None:
                if capacity == 0 or self._over.is_set():
                    return
                found = parse_user_data(user_data, fleet=name)
                if not role:
                    raise RunFailed(
                        f"{name}: its launch template names no instance profile: its programs could reach nothing"
                    )
                code = self._fetch_code(found.code, role)
                fleet = self._fleets[name] = LocalFleet(name, found, self._folder / name, code, role)
                fleet.folder.mkdir(parents=True, exist_ok=True)
            fleet.capacity = capacity
            for number in sorted(fleet.instances)[capacity:]:
                servers.stop_process(fleet.instances.pop(number).child, grace_s=5.0)
            if capacity == 0:
                del self._fleets[name]
            self._fill(fleet)
            if self._watch is None and capacity:
                self._watch = threading.Thread(target=self._watch_instances, name="fleets", daemon=True)
                self._watch.start()

    def stop(self) -> None:
        """Stop all instances of all fleets. No instance can be started afterwards."""
        with self._lock:  # a later call starts nothing
            self._over.set()
            for name in list(self._fleets):
                self.resize(name, 0, "", "")

    def _fill(self, fleet: LocalFleet) -> None:
        """Start instances until the fleet has as many as its capacity."""
        while len(fleet.instances) < fleet.capacity:
            number, fleet.made = fleet.made, fleet.made + 1
            run = fleet.folder / f"run-{number}"
            fleet.instances[number] = LocalInstance(number, run, self._start(fleet, number, run))

    def _start(self, fleet: LocalFleet, number: int, run: Path) -> "subprocess.Popen[bytes]":
        """Start the fleet's program as instance `number` and return its process, whose output is appended to NUMBER.log in the fleet's
        folder. `run`: folder that stands for the instance's /run; it is emptied first. In the service's variables, %b becomes FLEET-NUMBER,
        and /run/NAME at the beginning becomes `run`.
        """
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        keep = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        unit = {
            name: re.sub(r"^/run/\w+", str(run), value.replace("%b", f"{fleet.name}-{number}"))
            for name, value in fleet.service.environment.items()
        }
        own = self._environment(unit, fleet.role)
        with (fleet.folder / f"{number}.log").open("ab") as log:
            return servers.start_process(
                fleet.service.command,
                environment={**keep, **own, "PYTHONPATH": str(fleet.code)},
                folder=fleet.code,
                output=log,
            )

    def _watch_instances(self) -> None:
        """Check all instances every 0.1 s, by `_check_instance`, until the fleets are stopped. Runs in a thread; stands for systemd and
        Auto Scaling.
        """
        while not self._over.wait(LOOK_S):
            with self._lock:
                for fleet in list(self._fleets.values()):
                    for instance in list(fleet.instances.values()):
                        self._check_instance(fleet, instance)

    def _check_instance(self, fleet: LocalFleet, instance: LocalInstance) -> None:
        """Do nothing if the instance's program runs. If it has failed, start it again if systemd would; if it would not, or the program has
        ended with status 0, remove the instance, lower the fleet's capacity and call `on_leave`. The rest of its process group is killed.
        If the program has written the service's progress file, its starts are counted from 0 again first.
        """
        status = instance.child.poll()
        if status is None:
            return
        servers.stop_process(
            instance.child
        )  # the rest of the service, as systemd does: a program may have one process for each GPU
        if fleet.service.renewed_by and (instance.run / Path(fleet.service.renewed_by).name).exists():
            instance.starts = 0
        if status and fleet.service.restarts and instance.starts < fleet.service.burst:
            instance.starts += 1
            instance.child = self._start(fleet, instance.number, instance.run)
        else:  # leave-fleet: terminated with decrement
            del fleet.instances[instance.number]
            fleet.capacity -= 1
            self._on_leave(fleet.name)

"""Fleets on this machine: the program that the rendered user data would start, nothing else, and nothing without it."""

import json
import os
import re
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from aws_cdk import App, Stack

from cdk.constructs import Buckets, ProgramFleet, SharedNetwork
from crossover.errors import RunFailed
from crossover.experiment import Experiment
from crossover.local.fleet_programs import Fleets, parse_user_data
from peers import p2p_instance
from tests.infrastructure.assemblies import flat, only
from tests.local.parts import eventually
from tests.local.victims import programs

PROGRAM = """
import os, sys, time
from pathlib import Path

def main():
    folder = Path(os.environ["CROSSOVER_FOLDER"])
    (folder / f"{os.getpid()}.started").write_text(" ".join([os.environ["CROSSOVER_FLEET"], os.environ["CROSSOVER_ROLE"], os.getcwd()]))
    (folder / f"{os.getpid()}.instance").write_text(os.environ["CROSSOVER_INSTANCE"])
    if (folder / "progressing").exists():
        Path(os.environ["CROSSOVER_PROGRESS"]).touch()
    while not (folder / "end").exists():
        time.sleep(0.01)
    sys.exit(int((folder / "end").read_text()))
"""


@pytest.fixture(scope="module")
def user_data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the user data that a stack renders for a fleet of peers."""
    app = App(outdir=str(tmp_path_factory.mktemp("fleet")), builtin_cloud_formation_validation=False)
    stack = Stack(app, "crossover-small")
    small = Experiment(name="small", architecture="p2p_instance")
    ProgramFleet(
        stack,
        "Peers",
        module=p2p_instance.PROGRAM.module,
        instances=p2p_instance.PROGRAM.instances(small),
        lifetime=small.lifetime,
        identity={"EXPERIMENT": small.name},
        network=SharedNetwork(stack, "crossover"),
        storage=Buckets(stack, "Storage", bucket_per_worker=False, workers=2),
        environment={"FOLDER": "/somewhere"},
    )
    found = json.loads((Path(app.synth().directory) / "crossover-small.template.json").read_text())
    return flat(only(found, "AWS::EC2::LaunchTemplate")["LaunchTemplateData"]["UserData"])


@pytest.mark.slow
def test_the_service_is_what_the_user_data_says(user_data: str) -> None:
    """Parse the user data of a fleet of peers: command, variables and restarts are those of the stack."""
    found = parse_user_data(user_data, fleet="f")
    assert found.command[1:] == ("-c", "from peers.p2p_instance import main; main()")
    assert found.environment["CROSSOVER_FOLDER"] == "/somewhere"
    assert found.environment["CROSSOVER_FLEET"] == "crossover-small-fleet"
    assert found.environment["CROSSOVER_IDLE_S"] == "900"
    assert found.restarts
    assert found.burst == 4


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (r"^systemctl start crossover$", "the line that starts the service"),
        (r"^ExecStart=.*python.*$", "has no ExecStart"),
        (r"^attempt cloud get \"\$CODE\".*$", "the line that fetches the code"),
        (r"^printf .*crossover\.env$", "the line that writes the environment"),
        (r"^EnvironmentFile=.*$", "does not use /etc/crossover.env"),
        (r"^cat >/etc/systemd/system/crossover\.service.*$", "the unit"),
    ],
)
def test_an_instance_that_would_idle_is_refused(user_data: str, line: str, words: str) -> None:
    """Remove one line that the program needs from the user data: RunFailed names what is missing (`words`), because an instance on AWS
    would do nothing. `line`: regular expression.
    """
    without, count = re.subn(line, "", user_data, flags=re.MULTILINE)
    assert count == 1
    with pytest.raises(RunFailed, match=words):
        parse_user_data(without, fleet="f")


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[Fleets]:
    """Yield fleets that run PROGRAM in the place of the peers' program; they are stopped and must have ended afterwards."""
    code = tmp_path / "code"
    (code / "peers").mkdir(parents=True)
    (code / "peers" / "p2p_instance.py").write_text(PROGRAM)
    with zipfile.ZipFile(tmp_path / "code.zip", "w"):
        pass
    made = Fleets(
        tmp_path / "logs",
        fetch_code=lambda url, role: code,
        environment=lambda given, role: {**given, "CROSSOVER_FOLDER": str(tmp_path), "CROSSOVER_ROLE": role},
    )
    yield made
    made.stop()
    assert programs(made, "f") == []


def read_started(folder: Path) -> list[str]:
    """Return what each program wrote into its `.started` file in the folder, without those that are still empty."""
    texts = [path.read_text() for path in folder.glob("*.started")]
    return [text for text in texts if text]  # a file is there before its content


def test_capacity_starts_and_ends_programs(fleets: Fleets, user_data: str, tmp_path: Path) -> None:
    """Set a fleet's capacity to 0, 2, 1 and 0: as many programs run each time, and all processes are gone at the end."""
    fleets.resize("f", 0, user_data, "reader")
    fleets.resize("f", 2, user_data, "reader")
    eventually(lambda: len(read_started(tmp_path)) == 2, what="both programs have started")
    assert read_started(tmp_path)[0] == f"crossover-small-fleet reader {tmp_path / 'code'}"
    pids = programs(fleets, "f")
    fleets.resize("f", 1, user_data, "reader")
    assert len(programs(fleets, "f")) == 1
    fleets.resize("f", 0, user_data, "reader")
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_after_its_end_nothing_starts(fleets: Fleets, user_data: str, tmp_path: Path) -> None:
    """Resize a fleet after the fleets were stopped: no program starts."""
    fleets.stop()
    fleets.resize("f", 1, user_data, "reader")
    assert programs(fleets, "f") == []


@pytest.mark.slow
def test_progress_renews_the_budget_of_starts(fleets: Fleets, user_data: str, tmp_path: Path) -> None:
    """Let a program fail after each progress: it is started more often than its budget says. Without progress it leaves the fleet."""
    (tmp_path / "progressing").touch()
    (tmp_path / "end").write_text("1")
    fleets.resize("f", 1, user_data, "reader")
    eventually(lambda: len(read_started(tmp_path)) > 6, what="it was started more often than its budget says")
    (tmp_path / "progressing").unlink()
    eventually(
        lambda: not programs(fleets, "f") and not fleets._fleets["f"].instances, what="the program has left the fleet"
    )


def test_an_instance_has_a_name_that_its_program_keeps(fleets: Fleets, user_data: str, tmp_path: Path) -> None:
    """Kill one of two programs: its successor has the instance's name."""
    fleets.resize("f", 2, user_data, "reader")
    eventually(lambda: len(read_started(tmp_path)) == 2, what="both programs have started")
    os.kill(programs(fleets, "f")[0], signal.SIGKILL)
    eventually(lambda: len(read_started(tmp_path)) == 3, what="another program has started")
    names = [path.read_text() for path in tmp_path.glob("*.instance")]
    assert sorted(names.count(name) for name in {*names}) == [1, 2]


def test_a_killed_program_is_started_again(fleets: Fleets, user_data: str, tmp_path: Path) -> None:
    """Kill a fleet's program: another one starts."""
    fleets.resize("f", 1, user_data, "reader")
    eventually(lambda: len(read_started(tmp_path)) == 1, what="the program has started")
    os.kill(programs(fleets, "f")[0], signal.SIGKILL)
    eventually(lambda: len(read_started(tmp_path)) == 2, what="another program has started")


@pytest.mark.parametrize(("status", "starts"), [(0, 1), (1, 4)])
def test_one_that_is_through_leaves_and_one_that_fails_is_tried_a_few_times(
    fleets: Fleets, user_data: str, tmp_path: Path, status: int, starts: int
) -> None:
    """Let a program end with `status`: it is started `starts` times, then leaves the fleet."""
    (tmp_path / "end").write_text(str(status))
    fleets.resize("f", 1, user_data, "reader")
    eventually(
        lambda: len(read_started(tmp_path)) == starts and not programs(fleets, "f"),
        what="the program has left the fleet",
    )


def test_a_fleet_without_an_instance_profile_is_refused(fleets: Fleets, user_data: str) -> None:
    """Resize a fleet without a role: RunFailed, and no program starts."""
    with pytest.raises(RunFailed, match="f: its launch template names no instance profile"):
        fleets.resize("f", 1, user_data, "")
    assert programs(fleets, "f") == []


def test_systemd_starts_a_program_that_is_killed_four_times_an_hour(user_data: str) -> None:
    """Check that the unit in the user data allows four starts an hour, as docs/correctness.md says, and that the local fleets read that
    number.
    """
    unit = re.search(r"\[Unit\](.*?)\[Service\]", user_data, re.DOTALL)
    assert unit is not None
    limits = dict(line.split("=", 1) for line in unit[1].split() if line.startswith("StartLimit"))
    assert limits == {"StartLimitIntervalSec": "1h", "StartLimitBurst": "4"}
    assert parse_user_data(user_data, fleet="peers").burst == 4

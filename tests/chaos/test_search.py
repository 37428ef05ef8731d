"""`python -m tests.chaos.world`: seeds, one schedule as JSON, and what it says of mistakes."""

import json
from pathlib import Path

import pytest

from tests.chaos.world.__main__ import main


def status(*arguments: str) -> int:
    """Run the search with these command-line arguments and return its exit status."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


SMALL = ("--set", "workers=2", "--set", "training.epochs=1", "--processes", "1")


def test_seeds_are_tried_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Search seeds 0 to 3: the summary counts 4 schedules and no findings."""
    assert status("config/all-reduce.yaml", *SMALL, "--seeds", "0-3") == 0

    said = capsys.readouterr().out
    assert "[measured-local] 4 schedules" in said and "0 with findings" in said


def test_a_schedule_of_ones_own_is_told_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a schedule from a JSON file: its fault is printed in words, and also written to the history file."""
    schedule, history = tmp_path / "schedule.json", tmp_path / "history.txt"
    schedule.write_text(json.dumps([{"kind": "kill", "role": "train 1", "request": 7, "side": "after"}]))

    assert (
        status(
            "config/all-reduce.yaml",
            *SMALL,
            "--seeds",
            "3",
            "--faults",
            str(schedule),
            "--history",
            str(history),
        )
        == 0
    )

    assert "train 1, request 7, after its effect: its process is killed" in capsys.readouterr().out
    assert "--- train 1, request 7" in history.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("config/all-reduce.yaml", "--seeds", "9-3"), "--seeds: '9-3'; expected one number or two"),
        (("config/all-reduce.yaml", "--seeds", "-1"), "--seeds: '-1'"),
        (("config/all-reduce.yaml", "--seeds", "99999999999"), "below 4294967296"),
        (("config/all-reduce.yaml", "--faults", "nowhere.json"), "expected a list of faults as JSON"),
    ],
)
def test_mistakes_are_refused_in_words(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that wrong arguments end with status 2 and a message that contains `said`."""
    assert status(*arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ("p2p-instance", ("exchange.compression=qsgd",)),  # the reference computes with whole gradients
        ("p2p-instance", ("p2p.mode=asynchronous", "p2p.min_gradients=1")),  # what is combined depends on who is late
        ("all-reduce", ("lifetime.budget_usd=5",)),
    ],
)
def test_settings_without_a_reference_are_judged_by_the_other_promises(
    config: str, settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Search seeds of experiments whose model cannot be compared with the reference: no other promise is broken."""
    sets = [word for setting in settings for word in ("--set", setting)]

    assert status(f"config/{config}.yaml", *SMALL, *sets, "--seeds", "0-3") == 0
    assert "0 with findings" in capsys.readouterr().out


def test_a_run_that_fails_undisturbed_is_not_disturbed(capsys: pytest.CaptureFixture[str]) -> None:
    """Search an experiment that cannot run in the virtual world: the command ends with status 2 and says so."""
    two = ("--set", "gpu.instances=2", "--set", "gpu.exchange=distributed")

    assert status("config/gpu.yaml", *SMALL, *two, "--seeds", "0-3") == 2
    assert "undisturbed, the run fails already" in capsys.readouterr().err


def test_what_cannot_happen_to_an_architecture_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Give an architecture of functions a fault of programs: the command ends with status 2 and names the fault."""
    schedule = tmp_path / "schedule.json"
    schedule.write_text(json.dumps([{"kind": "taken", "role": "program 0", "at_s": 3.0}]))

    assert status("config/all-reduce.yaml", *SMALL, "--faults", str(schedule)) == 2
    assert "fault 1: kind: 'taken' cannot happen to this experiment" in capsys.readouterr().err

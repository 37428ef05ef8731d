"""What a study's trials have cost: every attempt counts, also of a trial that fails."""

from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from crossover.errors import RunFailed
from crossover.experiment import Experiment
from crossover.reports import folder
from crossover.reports.folder import RunFolder
from crossover.running.monitor import OnProgress
from crossover.study.runner import Conductor
from crossover.study.trials import InlineTrials, TrialFactory
from tests.unit.reports.example_run import spirt
from tests.unit.study.test_money import make_grid_trials, study

EXAMPLE = spirt(workers=2, epochs=2)
USD = EXAMPLE.result()["cost"]["full_usd"]


class Machine:
    """A machine whose trials end as `attempts` say, one after another: "" for success, else the failure's message."""

    def __init__(self, *attempts: str) -> None:
        """Keep the outcomes of the attempts."""
        self.attempts = list(attempts)

    def __enter__(self) -> Self:
        """Return this machine."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: nothing was started."""

    def run(self, experiment: Experiment, out: Path, watch: OnProgress) -> RunFolder:
        """Write the trial's folder with the next attempt's outcome, moving an earlier one aside. Raises RunFailed if it is a failure."""
        failure = self.attempts.pop(0)
        folder.move_aside(out)
        result = EXAMPLE.result(failure=failure or None)
        found = folder.write(out, result=result, records=EXAMPLE.records, model=None)
        if failure:
            raise RunFailed(failure)
        return found

    def release(self, experiment: Experiment) -> None:
        """Do nothing: there are no stacks."""

    def idle_usd(self) -> float:
        """Return 0: nothing is deployed."""
        return 0.0

    def project_idle_usd(self, experiment: Experiment, *, seconds: float) -> float:
        """Return 0: nothing is deployed."""
        return 0.0


def test_what_a_killed_trial_had_kept_goes_once_it_is_found_finished(tmp_path: Path) -> None:
    """Data that an interrupted trial left for resuming are deleted once the trial is found finished, and the trial is not made again."""
    of = study(tmp_path, name="lone")
    trials = make_grid_trials(of, TrialFactory(of, travels=False))
    kept = tmp_path / "out" / "runs" / trials[0].name / "unfinished"
    for _ in range(2):
        conductor = Conductor(study=of, out=tmp_path / "out", machine=InlineTrials())
        conductor.carry_out(trials, total=1)
        assert [row.outcome for row in conductor.outcome.found.values()] == ["finished"]
        assert not kept.exists() and kept.parent.is_dir()
        kept.mkdir()
        (kept / "where").write_text("inline")
    assert len(list((tmp_path / "out/runs").rglob("result.json"))) == 1


def conducted(tmp_path: Path, *attempts: str) -> Conductor:
    """Return the conductor of a study of one trial whose attempts went like this."""
    of = study(tmp_path, name="lone")
    conductor = Conductor(study=of, out=tmp_path / "out", machine=Machine(*attempts))
    conductor.carry_out(make_grid_trials(of, TrialFactory(of, travels=False)), total=1)
    return conductor


def test_the_dollars_of_an_earlier_attempt_are_counted(tmp_path: Path) -> None:
    """A trial's dollars include those of an attempt that failed before."""
    conductor = conducted(tmp_path, "a server did not start", "")
    (row,) = conductor.outcome.found.values()
    assert USD > 0 and row.usd == pytest.approx(2 * USD)
    assert conductor.spent_usd() == pytest.approx(2 * USD)


def test_the_dollars_of_a_trial_that_fails_are_counted(tmp_path: Path) -> None:
    """A study's spent dollars include both attempts of a trial that failed."""
    conductor = conducted(tmp_path, "a server did not start", "nor did it again")
    assert not conductor.outcome.found and conductor.outcome.failed
    assert conductor.spent_usd() == pytest.approx(2 * USD)


def test_a_resumed_study_counts_what_was_spent_before(tmp_path: Path) -> None:
    """A resumed study counts what it spent before against its budget, and starts no trial beyond it."""
    failed = conducted(tmp_path, "a server did not start", "nor did it again")
    again = Conductor(study=failed.study, out=failed.out, machine=Machine(), budget_usd=2 * USD)
    assert again.carry_out(make_grid_trials(failed.study, TrialFactory(failed.study, travels=False)), total=1) == []
    assert again.spent_usd() == pytest.approx(2 * USD) and again.outcome.missing


@pytest.mark.parametrize(
    "damaged", ["", "{", "[]", "{}", '{"cost": null}', '{"cost": {"full_usd": "two"}}', '{"cost": {"full_usd": NaN}}']
)
def test_a_damaged_result_is_a_trial_that_is_not_finished(tmp_path: Path, damaged: str) -> None:
    """A study with a damaged result.json is resumed: the trial is run again, and a line says that the file's dollars are not counted."""
    of, said = study(tmp_path, name="lone"), list[str]()
    trials = make_grid_trials(of, TrialFactory(of, travels=False))
    file = tmp_path / "out" / "runs" / trials[0].name / folder.RESULT
    file.parent.mkdir(parents=True)
    file.write_text(damaged)
    conductor = Conductor(study=of, out=tmp_path / "out", machine=Machine(""), tell=said.append)
    (row,) = conductor.carry_out(trials, total=1)
    assert row.outcome == "finished" and conductor.spent_usd() == pytest.approx(USD)
    assert said[0] == f"{file}: damaged, so the dollars of this run are unknown and count as 0"

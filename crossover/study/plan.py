"""What a study is going to do: told before anything is begun, then carried out into a folder."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.reports.page import Plot
from crossover.simulation import own_steps
from crossover.study import conduct, forecast, report
from crossover.study.conduct import Conductor, TrialRow
from crossover.study.file import Study
from crossover.study.machines import InThisProcess, OnThisMachine, TrialMachine
from crossover.study.runner import Announce
from crossover.study.trials import MOST, Accepting, StudyTrial, of_grid
from crossover.validation import check_deployment

if TYPE_CHECKING:
    from crossover.study.search import Searching


class StudyPlan:
    """Trials that `run` would accept, and what they would take. `tell` has the latter before anything else is said. Raises ConfigError with
    all faults of all trials.
    """

    def __init__(self, study: Study, *, where: str, tell: Announce) -> None:
        self.study = study
        self._searching: Searching | None = None
        travels = where != "inline"
        check = _deployable if where == "aws" else lambda experiment: None
        self._accepting, self._grid = Accepting(study, travels=travels, check=check), list[StudyTrial]()
        if study.search:
            from crossover.study import search  # Optuna

            self._searching = search.Searching(study)
        elif study.count <= MOST:
            self._grid = of_grid(study, self._accepting)
        drawn = self._searching.drawn(forecast.DRAWN) if self._searching else ()
        self.forecast = forecast.of_study(study, travels=travels, drawn=drawn)
        for line in self.forecast.lines:
            tell(line)
        if study.count > MOST:
            raise ConfigError(
                f"study {study.name}: {study.count:,} trials; it may have {MOST:,} at most: shorten its lists"
            )

    def trials(self, rows: Mapping[str, TrialRow], missing: dict[str, str]) -> Iterable[StudyTrial]:
        """In their order; a search looks into `rows` what has come of those before, and says in `missing` which were refused."""
        return self._searching.trials(self._accepting, rows, missing) if self._searching else self._grid

    def pictures(self) -> Sequence[Plot]:
        """Of the search, once it is over."""
        from crossover.study.search import pictures

        return pictures(self._searching) if self._searching else ()


def machine_of(where: str, out: Path, *, tell: Announce) -> TrialMachine:
    """For inline, local or aws; `out`: the study's folder."""
    if where == "aws":
        from crossover.study.on_aws import OnTheAccount

        return OnTheAccount(out, tell=tell)
    return InThisProcess() if where == "inline" else OnThisMachine()


def _deployable(experiment: Experiment) -> None:
    check_deployment(experiment)
    own_steps.check_fits(experiment)


@dataclass(frozen=True, kw_only=True)
class StudyEnd:
    """What became of it: rows of its trials, its tables, and which trials failed twice."""

    rows: Sequence[TrialRow]
    tables: report.StudyTables
    failed: Sequence[str]


def carry_out(
    plan: StudyPlan,
    out: Path,
    *,
    where: str,
    budget_usd: float | None,
    resume: bool,
    tell: Announce,
) -> StudyEnd:
    """All trials into `out`, and their tables."""
    study = plan.study
    conduct.begin(study, out, where=where, resume=resume)
    machine = machine_of(where, out, tell=tell)
    conductor = Conductor(study=study, out=out, machine=machine, budget_usd=budget_usd, where=where, tell=tell)
    rows = conductor.carry_out(plan.trials(conductor.outcome.found, conductor.outcome.missing), total=study.count)
    missing, pictures = conductor.outcome.missing, plan.pictures() if study.search else ()
    tables = report.write(study, rows, missing, out, spent_usd=conductor.spent_usd(), drawn=pictures)
    return StudyEnd(rows=rows, tables=tables, failed=conductor.outcome.failed)

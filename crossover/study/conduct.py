"""A study from its file to its tables: which trial comes next, what it may cost, and what became of it.

All that a second command needs lies in the folder: `study.json` says which study it is, `runs/<trial>` what has become of each trial. What
is finished is kept, what was under way goes on, what never began begins.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crossover.errors import ConfigError, NoProjection, UserError
from crossover.experiment import Metric
from crossover.reports import display, folder, race
from crossover.reports.folder import RunFolder
from crossover.running.preparing import versions
from crossover.simulation.processors import fixed
from crossover.study import forecast
from crossover.study.file import MEASURES, Study, Varied
from crossover.study.machines import ENDED, TrialMachine
from crossover.study.runner import Announce, CarriedOut, carry_out, finished, is_of
from crossover.study.trials import StudyTrial

FORMAT = 1  # of study.json, and of a bundle
STATE, RUNS = "study.json", "runs"
DECISIVE = ("crossover", "torch")  # versions that one study must not mix


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One trial as the tables see it, without the run's records. `measures`: by MEASURES, None where it has none. `usd`: all of its
    attempts' dollars. `reason`: why it does not count; empty of one that does.
    """

    trial: str
    varied: Varied
    seed: int
    label: str
    cost_label: str
    outcome: str
    reason: str
    seconds: float
    usd: float
    measures: Mapping[str, float | None]
    curve: Sequence[tuple[int, float]]
    metric: Metric
    code: str
    data: str


def row_of(trial: StudyTrial, run: RunFolder) -> TrialRow:
    """Of a run that has ended, well or not."""
    result = run.result
    entry = race.entry(result, trial.name, trial.experiment.training.target)
    measures = {name: getattr(entry, name) for name in MEASURES}
    return TrialRow(
        trial=trial.name,
        varied=trial.varied,
        seed=trial.experiment.seed,
        label=entry.label,
        cost_label=entry.cost_label,
        outcome=entry.outcome,
        reason=result.get("failure") or "; ".join(result.get("incomplete") or ()),
        seconds=entry.duration_s,
        usd=dollars(run.path),
        measures=measures,
        curve=[(each["epoch"], each["val_metric"]) for each in result["epochs"] if each["val_metric"] is not None],
        metric=entry.metric,
        code=str((result.get("code") or {}).get("digest", "")),
        data=str((result.get("data") or {}).get("fingerprint", "")),
    )


def dollars(path: Path) -> float:
    """Of all runs in a trial's folder: its own and earlier attempts'. A run that was gone on with says them once."""
    found = [path / folder.RESULT, *path.glob(f"*/{folder.RESULT}")]
    return sum(float(json.loads(each.read_bytes())["cost"]["full_usd"]) for each in found if each.is_file())


@dataclass(kw_only=True)
class Conductor:
    """Carries a study's trials out in the folder `out`, on a machine, within a budget."""

    study: Study
    out: Path
    machine: TrialMachine
    budget_usd: float | None = None
    where: str = "inline"
    tell: Announce = lambda line: None
    outcome: CarriedOut[TrialRow] = field(default_factory=CarriedOut[TrialRow])
    _usd: dict[str, float] = field(default_factory=dict)  # by trial

    def carry_out(self, trials: Iterable[StudyTrial], *, total: int) -> list[TrialRow]:
        """Every trial in its order; rows of all that has become a run, in the same."""
        for each in (self.out / RUNS).glob("*"):
            self._usd[each.name] = dollars(each)
        with self.machine:
            named = ((trial.name, trial) for trial in self._leaving(trials))
            carry_out(
                named,
                total=total,
                kept=self._kept,
                refused=self._refused,
                run=self._run,
                tell=self.tell,
                into=self.outcome,
            )
        return list(self.outcome.found.values())

    def _leaving(self, trials: Iterable[StudyTrial]) -> Iterator[StudyTrial]:
        """After the last trial of a stack that goes: of a search's, whose next trials nobody knows, at its end."""
        to_come = Counter(trial.stack for trial in trials) if isinstance(trials, Sequence) else None
        standing = dict[str, StudyTrial]()
        for trial in trials:
            standing[trial.stack] = trial
            yield trial
            if to_come:
                to_come[trial.stack] -= 1
                if not to_come[trial.stack]:
                    self.machine.leave(standing.pop(trial.stack).experiment)
        for trial in standing.values():
            self.machine.leave(trial.experiment)

    def spent_usd(self) -> float:
        """All trials' dollars so far, and those of stacks besides."""
        return sum(self._usd.values()) + self.machine.standing_usd()

    def _left(self) -> float | None:
        return None if self.budget_usd is None else self.budget_usd - self.spent_usd()

    def _folder(self, trial: StudyTrial) -> Path:
        return self.out / RUNS / trial.name

    def _kept(self, trial: StudyTrial) -> TrialRow | None:
        cores = None if self.where == "aws" else os.cpu_count()
        experiment = fixed(trial.experiment, cores=cores)
        run = finished(self._folder(trial), experiment)
        if run is None:
            run = stopped(self._folder(trial), limit_usd=experiment.lifetime.budget_usd)
            run = run if run and is_of(run, experiment) else None
        return None if run is None else row_of(trial, run)

    def _refused(self, trial: StudyTrial) -> str:
        left = self._left()
        if left is None:
            return ""
        try:
            p95 = forecast.of_trial(trial).band("usd").p95 + self._beside(trial)
        except NoProjection as unknown:
            return f"no projection to hold against the budget: {unknown}"
        if p95 <= left:
            return ""
        return f"not begun: up to {display.usd(p95)} (p95, projected), and {display.usd(max(0.0, left))} of the budget is left"

    def _beside(self, trial: StudyTrial) -> float:
        """What stands meanwhile. Raises NoProjection."""
        return self.machine.beside_usd(trial.experiment, seconds=forecast.of_trial(trial).band("seconds").p95)

    def _run(self, trial: StudyTrial) -> TrialRow:
        lifetime, path = trial.experiment.lifetime, self._folder(trial)
        left = self._left()
        within = None if left is None else left - self._beside(trial)
        limits = [each for each in (lifetime.budget_usd, within) if each is not None]
        # Of a run that goes on, its own count holds what it spent before: that is counted twice here, and the cap only holds sooner.
        own = replace(lifetime, budget_usd=min(limits)) if limits else lifetime
        try:
            run = self.machine.run(replace(trial.experiment, lifetime=own), path, trial.watch)
        except ENDED as why:
            self.tell(f"{trial.name}: {why}")
            run = folder.read(path)
        finally:
            self._usd[trial.name] = dollars(path)
        return row_of(trial, run)


def stopped(path: Path, *, limit_usd: float | None) -> RunFolder | None:
    """A run that ended early and would again: a search has stopped it, or the budget of its own file."""
    try:
        run = folder.read(path)
    except (UserError, OSError):
        return None
    why = str(run.result.get("failure"))
    spent = limit_usd is not None and why.startswith("stopped at $") and f"lifetime.budget_usd is {limit_usd:g}" in why
    return run if spent or why.startswith("pruned") else None


# --- which study lies in a folder -------------------------------------------------------------------------------------


def begin(study: Study, out: Path, *, where: str, resume: bool) -> None:
    """Write down whose folder `out` is. Raises ConfigError where it is another's, or of another version; where it is not to be resumed."""
    state = {
        "format": FORMAT,
        "study": study.plain,
        "where": where,
        "versions": {name: versions()[name] for name in DECISIVE},
    }
    path = out / STATE
    if path.is_file():
        check_state(json.loads(path.read_text(encoding="utf-8")), state, path)
        if not resume:
            raise ConfigError(
                f"--out {out}: holds this study already; --resume goes on with it, or give another folder"
            )
        return
    if resume:
        raise ConfigError(
            f"--resume: {path} is not there, so nothing was begun; leave --resume away, or give its --out"
        )
    if out.exists() and (not out.is_dir() or any(not each.name.startswith(f".{STATE}") for each in out.iterdir())):
        raise ConfigError(f"--out {out}: holds other files; expected a new or empty folder, or one of an earlier study")
    out.mkdir(parents=True, exist_ok=True)
    folder.write_atomically(path, json.dumps(state, indent=1).encode() + b"\n")


def check_state(there: Any, here: Mapping[str, Any], path: Path) -> None:
    """Raises ConfigError naming what differs."""
    if not isinstance(there, dict) or there.get("format") != FORMAT:
        told = there.get("format") if isinstance(there, dict) else there
        raise ConfigError(
            f"{path}: format {told!r} is unknown, this version reads {FORMAT}; go on with the version that wrote it"
        )
    then, now = there["versions"], here["versions"]
    if other := [f"{name} {then.get(name)}, here {now[name]}" for name in now if then.get(name) != now[name]]:
        raise ConfigError(
            f"{path}: a study of another version ({'; '.join(other)}): its trials would not be alike; begin it in another --out"
        )
    if there["where"] != here["where"]:
        raise ConfigError(f"{path}: was begun --on {there['where']}; go on with it there")
    mine, other_study = json.loads(json.dumps(here["study"])), there["study"]
    if differing := [name for name in mine.keys() | other_study.keys() if mine.get(name) != other_study.get(name)]:
        raise ConfigError(
            f"{path}: was begun with another {', '.join(sorted(differing))}; put it back, or begin in another --out"
        )

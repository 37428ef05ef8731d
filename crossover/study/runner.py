"""The execution of a study's trials under one budget, with a forecast before each."""

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any, Generic, TypeVar

from crossover import user_code
from crossover.advice.own_speed import adopt_kept_speed
from crossover.advice.question import COUNTED_SETTINGS, make_sizes_function
from crossover.errors import ConfigError, CrossoverError, DataError, NoProjection, OwnCodeError, UserError
from crossover.experiment import Experiment, Metric, Training, from_plain
from crossover.reports import comparison, display, folder
from crossover.reports.display import Band, band_of
from crossover.reports.folder import RunFolder
from crossover.running import resume as keeping
from crossover.running.preparing import collect_versions
from crossover.simulation import AWS
from crossover.simulation.processors import fix_threads
from crossover.simulation.repetitions import REPETITIONS, Projection, project
from crossover.simulation.workload import Workload
from crossover.stores.encoding import find_misfits
from crossover.study.file import MEASURES, Study, Varied
from crossover.study.trials import EARLY_ENDS, StudyTrial, TrialFactory, TrialMachine
from crossover.workflow.architecture import architecture_of

# --- forecast ---------------------------------------------------------------------------------------------------------

SAMPLED_SETTINGS = 24  # settings simulated as a sample if there are more


def project_trial(trial: StudyTrial) -> Projection:
    """Return the projection of a trial on AWS, by REPETITIONS simulations. Trials that differ only in seed, name or budget share one
    projection; the last 64 projections are cached. Raises NoProjection if the simulator does not know its architecture, model or data, or
    if a user's model or data cannot be used; ConfigError as `simulate` does.
    """
    experiment = trial.experiment
    alike = replace(experiment, seed=1, name="any", lifetime=replace(experiment.lifetime, budget_usd=None))
    own = ":" in experiment.training.model or ":" in experiment.data.dataset
    return _project(json.dumps(alike.to_plain()), _count_own_work(alike) if own else None)


@lru_cache(maxsize=64)
def _project(resolved: str, workload: Workload | None) -> Projection:
    """Return the projection on AWS of the experiment that `resolved` holds as JSON text of its plain data. The last 64 results are
    cached. `workload`: sizes of the user's model or data, None for those that come with the project.
    """
    experiment = from_plain(json.loads(resolved))
    cloud = AWS if workload is None else adopt_kept_speed(AWS, experiment, workload)
    return project(experiment, cloud, workload=workload, repetitions=REPETITIONS)


# Settings of `training` on which the sizes of a model and its data depend, besides the epochs of one whose images grow.
SIZED_BY = ("model", "loss", "metric", "precision", *COUNTED_SETTINGS)


def _count_own_work(experiment: Experiment) -> Workload:
    """Return the sizes of an experiment with a user's model or data, which are loaded and counted once for all trials with them. Raises
    NoProjection if they cannot be used.
    """
    of = experiment.training
    training = Training(
        epochs=of.epochs if of.image_size.begin is not None else 1, **{name: getattr(of, name) for name in SIZED_BY}
    )
    base = Experiment(name="sizes", architecture="single", training=training, data=replace(experiment.data, limit=None))
    return _load_sizes(json.dumps(base.to_plain()), user_code.list_folders())(experiment)


@lru_cache(maxsize=8)
def _load_sizes(resolved: str, folders: tuple[Path, ...]) -> Callable[[Experiment], Workload]:
    """Return a function that takes an experiment with the model and data of the one that `resolved` holds as JSON text, and returns its
    sizes; the last 8 are cached. `folders`: where user code is found. Raises NoProjection if the model or the data cannot be used.
    """
    try:
        return make_sizes_function(from_plain(json.loads(resolved)))
    except (OwnCodeError, ConfigError) as unusable:
        raise NoProjection(str(unusable)) from unusable


@dataclass(frozen=True, kw_only=True)
class StudyForecast:
    """The projected time and cost of a study on AWS. `trials`: number of trials; `seconds`, `usd`: of all trials one after another (p5,
    p50, p95); `cheapest_p95`, `dearest_p95`: p95 in dollars of the cheapest and the most expensive trial; `at_once`: number of trials that
    fit at the same time into AWS's default quota of concurrent executions; `drawn`: number of settings simulated as a sample, 0 if all
    were; `problems`: reasons why AWS would not run some; `unknown`: why there is no projection, in which case all figures are 0, "" if
    there is one.
    """

    trials: int
    seconds: Band
    usd: Band
    cheapest_p95: float
    dearest_p95: float
    at_once: int
    drawn: int
    problems: tuple[str, ...] = ()
    unknown: str = ""

    @property
    def lines(self) -> list[str]:
        """The forecast as lines of text, shown before anything is started."""
        if self.unknown:
            return [f"{display.count(self.trials, 'trial')}; no projection: {self.unknown}"]
        of = f" (estimated from {self.drawn} random settings)" if self.drawn else ""
        return [
            f"[projected] {display.count(self.trials, 'trial')} on AWS{of}, by simulation: "
            f"{display.band(display.seconds, *self.seconds)} one after another; "
            f"{display.band(display.usd, *self.usd)} (total AWS bill without deployment and idle time)",
            f"[projected] most expensive trial: {display.usd(self.dearest_p95)} (p95{', of those settings' if self.drawn else ''}); AWS's "
            f"default quota of {AWS.concurrency or 0:,} concurrent executions allows {display.count(self.at_once, 'trial')} at once",
            *(f"AWS would not run this: {problem}" for problem in self.problems),
        ]


def forecast_study(study: Study, *, travels: bool, drawn: Sequence[Varied] = ()) -> StudyForecast:
    """Return the forecast of a study, by simulating all its settings, or a random sample of SAMPLED_SETTINGS if there are more. `travels`:
    whether user code is bundled to run elsewhere; `drawn`: settings to simulate instead, for a search. If one cannot be projected, the
    forecast says why and has no figures. Raises ConfigError if a simulated setting is not valid.
    """
    rng, sizes = random.Random(study.order), [len(values) for values in study.grid.values()]
    whole = study.settings <= SAMPLED_SETTINGS
    numbers = range(study.settings) if whole else rng.sample(range(study.settings), SAMPLED_SETTINGS)
    accepting = TrialFactory(study, travels=travels)
    return _forecast_settings(study, accepting, drawn or [_build_setting(study, sizes, number) for number in numbers])


def _build_setting(study: Study, sizes: Sequence[int], number: int) -> Varied:
    """Return the setting with index `number` in the order of `list_settings`, without building those before it. `sizes`: lengths of the
    grid's lists.
    """
    found = {}
    for (name, values), size in zip(reversed(list(study.grid.items())), reversed(sizes), strict=True):
        number, at = divmod(number, size)
        found[name] = values[at]
    return dict(reversed(found.items()))


def _forecast_settings(study: Study, accepting: TrialFactory, drawn: Sequence[Varied]) -> StudyForecast:
    """Return the forecast of a study by simulating the settings `drawn`. If one cannot be projected, the forecast contains only the reason.
    `accepting`: makes the trials of a setting.
    """
    try:
        found = [project_trial(accepting.make_trials(varied)[0]) for varied in drawn]
    except NoProjection as unknown:
        nothing = Band(0, 0, 0)
        return StudyForecast(
            trials=study.count,
            seconds=nothing,
            usd=nothing,
            cheapest_p95=0,
            dearest_p95=0,
            at_once=0,
            drawn=0,
            unknown=str(unknown),
        )
    times = study.count / len(found)

    def total(figure: str) -> Band:
        """Return the p5, p50 and p95 of a figure's sum over all trials of the study: in each draw the sum over the simulated settings,
        multiplied by trials per setting. `figure`: field of an outcome.
        """
        draws = zip(*([getattr(each, figure) for each in one.outcomes] for one in found), strict=True)
        return band_of([times * sum(draw) for draw in draws])

    p95 = [one.band("usd").p95 for one in found]
    return StudyForecast(
        trials=study.count,
        seconds=total("seconds"),
        usd=total("usd"),
        cheapest_p95=min(p95),
        dearest_p95=max(p95),
        at_once=max(1, (AWS.concurrency or 0) // max(1, *(one.run.concurrency for one in found))),
        drawn=0 if len(found) == study.settings and not study.search else len(found),
        problems=tuple(dict.fromkeys(problem for one in found for problem in one.problems)),
    )


def check_budget(found: StudyForecast, budget_usd: float) -> None:
    """Raise ConfigError if the budget (dollars) does not cover the cheapest trial's p95, or if there is no projection to compare with. If
    only a sample of the settings was simulated, the budget is not compared, because other trials may be cheaper.
    """
    if found.unknown:
        raise ConfigError(
            f"--budget {budget_usd:g}: a trial starts only if its projected p95 fits, but there is no projection: {found.unknown}"
        )
    if not found.drawn and budget_usd < found.cheapest_p95:
        raise ConfigError(
            f"--budget {budget_usd:g}: the cheapest trial may cost {display.usd(found.cheapest_p95)} (p95, projected on AWS), so no trial "
            "would start; raise the budget or make the experiment smaller"
        )


# --- runner -----------------------------------------------------------------------------------------------------------
# One run after another: finished runs are kept, impossible ones reported, failed ones tried once more and then left out.

NOT_COMPARED = ("project", "owner", "name", "lifetime", "recipe")  # what does not change a figure
Announce = Callable[[str], None]
T = TypeVar("T")
R = TypeVar("R")


@dataclass(kw_only=True)
class StudyOutcomes(Generic[R]):
    """The results of `run_items`. `found`: results by key of the item; `missing`: by key, why an item has no result; `failed`: keys of the
    items that failed twice.
    """

    found: dict[str, R] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def run_items(
    wanted: Iterable[tuple[str, T]],
    *,
    total: int,
    kept: Callable[[T], R | None],
    refused: Callable[[T], str],
    run: Callable[[T], R],
    tell: Announce,
    into: StudyOutcomes[R] | None = None,
) -> StudyOutcomes[R]:
    """Run items one after another, at most twice each, and return their results; an item that fails twice is left out and the next one
    follows.

    A failure is a CrossoverError or OSError; other exceptions of `run`, and all of `kept` and `refused`, end the whole call. `wanted`:
    pairs (key, item); an iterator may read the results so far from `into`, the object to which results are added. `total`: number of items,
    for progress lines. `kept`: function that returns the result that an earlier command left, or None; `refused`: function that returns why
    an item is not run, or ""; `run`: function that makes the result; `tell`: called with one line about each item.
    """
    outcome = StudyOutcomes[R]() if into is None else into
    for number, (key, each) in enumerate(wanted, start=1):
        line, began = f"{number}/{total} {key}", time.monotonic()
        if (found := kept(each)) is not None:
            outcome.found[key] = found
            tell(f"{line}: kept")
            continue
        if reason := refused(each):
            outcome.missing[key] = reason
            tell(f"{line}: not run: {reason}")
            continue
        for last in (False, True):
            try:
                outcome.found[key] = run(each)
                tell(f"{line}: {time.monotonic() - began:.0f} s")
                break
            except (CrossoverError, OSError) as error:  # a busy machine may not start a server in time
                tell(f"{line}: failed{'' if last else ', trying once more'}: {to_one_line(error)}")
                if last:
                    outcome.missing[key] = f"it failed here: {to_one_line(error)}"
                    outcome.failed.append(key)
    return outcome


def find_finished_run(path: Path, experiment: Experiment) -> RunFolder | None:
    """Return the run in the folder `path` if it is finished, complete and was made with exactly this experiment's settings; otherwise None,
    also if there is no readable run.
    """
    try:
        run = folder.read(path)
    except (UserError, DataError, OSError):
        return None
    if run.result.get("outcome") != "finished" or run.result.get("incomplete"):
        return None
    return run if is_run_of(run, experiment) else None


def is_run_of(run: RunFolder, experiment: Experiment) -> bool:
    """Return whether the run was made with this experiment's settings (code is not compared), ignoring name, project, owner, recipe,
    lifetime and the folder of the data.
    """
    asked = architecture_of(experiment).resolve(experiment)  # with the architecture's defaults, as the run recorded it
    made = _to_comparable(
        folder.experiment_of(run.result)
    )  # may have sections of other architectures, which earlier versions wrote
    return all(made[name] == value for name, value in _to_comparable(asked).items())


def _to_comparable(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment as plain data without the fields that change no figure: name, project, owner, recipe, lifetime and the folder of
    the data.
    """
    plain: Mapping[str, Any] = experiment.to_plain()
    kept = {name: value for name, value in plain.items() if name not in NOT_COMPARED}
    kept["data"] = {name: value for name, value in plain["data"].items() if name != "directory"}
    return kept


def to_one_line(error: Exception) -> str:
    """Return an exception's message in one line, cut to 200 characters; its class name if it has no message."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


# --- conduct ----------------------------------------------------------------------------------------------------------
# A study from its file to its tables: which trial is next, what it may cost, and its result.
#
# A second command needs only the folder: `study.json` says which study it is, `runs/<trial>` holds the state of each trial. Finished trials
# are kept, interrupted ones are resumed, the others are started.

FORMAT = 1  # of study.json, and of a bundle
STATE, RUNS = "study.json", "runs"
STATE_SHAPE = {"study": {}, "where": ("inline", "local", "aws"), "versions": {str: str}}  # of FORMAT
DECISIVE_VERSIONS = ("crossover", "torch")  # versions that one study must not mix


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One trial as the tables need it, without the run's records. `trial`: its name; `varied`, `seed`: its setting and seed; `label`,
    `cost_label`: origin of its figures and of its dollars, such as measured-local; `outcome`: finished or failed; `reason`: why it failed
    or is incomplete, and so does not count, "" if it counts; `seconds`: duration of its last attempt; `usd`: dollars of all its attempts;
    `measures`: values by the names of MEASURES, None if it has no such figure; `curve`: (epoch, validation metric); `code`, `data`: digests
    of the code and of the data set.
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


def make_row(trial: StudyTrial, run: RunFolder) -> TrialRow:
    """Return the table row of a trial whose run has ended, finished or failed. Reads the dollars of earlier attempts from the run's
    folder.
    """
    result = run.result
    entry = comparison.race_entry(result, trial.name, trial.experiment.training.target)
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
        usd=sum_dollars(run.path),
        measures=measures,
        curve=[(each["epoch"], each["val_metric"]) for each in result["epochs"] if each["val_metric"] is not None],
        metric=entry.metric,
        code=str((result.get("code") or {}).get("digest", "")),
        data=str((result.get("data") or {}).get("fingerprint", "")),
    )


def sum_dollars(path: Path, *, tell: Announce = lambda line: None) -> float:
    """Return the total AWS bill, in dollars, of all attempts in a trial's folder `path`: the sum over its result.json and those in its
    subfolders, where earlier attempts lie. 0 if there are none. A resumed run has only one result.json. A damaged file counts as 0, and
    `tell` is called with one line about it.
    """
    found = [path / folder.RESULT, *path.glob(f"*/{folder.RESULT}")]
    dollars = {each: _read_dollars(each) for each in found if each.is_file()}
    for each in [file for file, usd in dollars.items() if usd is None]:
        tell(f"{each}: damaged, so the dollars of this run are unknown and count as 0")
    return sum(usd for usd in dollars.values() if usd is not None)


def _read_dollars(file: Path) -> float | None:
    """Return the total AWS bill, in dollars, that a result.json contains; None if the file is damaged."""
    try:
        usd = json.loads(file.read_bytes())["cost"]["full_usd"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return float(usd) if type(usd) in (int, float) and isfinite(usd) else None


@dataclass(kw_only=True)
class Conductor:
    """The execution of a study's trials in the folder `out`, within one budget. `machine`: runs the trials; `budget_usd`: limit for all
    trials together, None for no limit; `where`: inline, local or aws; `tell`: called with one line about each trial; `outcome`: results so
    far.
    """

    study: Study
    out: Path
    machine: TrialMachine
    budget_usd: float | None = None
    where: str = "inline"
    tell: Announce = lambda line: None
    outcome: StudyOutcomes[TrialRow] = field(default_factory=StudyOutcomes[TrialRow])
    _usd: dict[str, float] = field(default_factory=dict)  # by trial

    def carry_out(self, trials: Iterable[StudyTrial], *, total: int) -> list[TrialRow]:
        """Run every trial in order, or keep its earlier result, and return the rows of all trials that have a run. Trials that do not fit
        into the budget, or fail twice, are left out; `outcome` says why. Stacks are destroyed after their last trial. `total`: number of
        trials, for progress lines. Enters the context of `machine`, and leaves it at the end.
        """
        for each in (self.out / RUNS).glob("*"):
            self._usd[each.name] = sum_dollars(each, tell=self.tell)
        with self.machine:
            named = ((trial.name, trial) for trial in self._yield_then_release(trials))
            run_items(
                named,
                total=total,
                kept=self._find_kept,
                refused=self._explain_refusal,
                run=self._run,
                tell=self.tell,
                into=self.outcome,
            )
        return list(self.outcome.found.values())

    def _yield_then_release(self, trials: Iterable[StudyTrial]) -> Iterator[StudyTrial]:
        """Yield the trials; after the last trial of a stack, destroy the stack. If the trials are not known in advance, as in a search, all
        stacks are destroyed at the end. If the caller stops before the end, the stacks that still have trials stay.
        """
        to_come = Counter(trial.stack for trial in trials) if isinstance(trials, Sequence) else None
        standing = dict[str, StudyTrial]()
        for trial in trials:
            standing[trial.stack] = trial
            yield trial
            if to_come:
                to_come[trial.stack] -= 1
                if not to_come[trial.stack]:
                    self.machine.release(standing.pop(trial.stack).experiment)
        for trial in standing.values():
            self.machine.release(trial.experiment)

    def spent_usd(self) -> float:
        """Return the dollars spent so far on all attempts of all trials, those of earlier commands included, and on stacks while no trial
        ran on them.
        """
        return sum(self._usd.values()) + self.machine.idle_usd()

    def _find_budget_left(self) -> float | None:
        """Return the dollars that are left of the budget, which may be negative; None if there is no budget."""
        return None if self.budget_usd is None else self.budget_usd - self.spent_usd()

    def _folder(self, trial: StudyTrial) -> Path:
        """Return the trial's folder."""
        return self.out / RUNS / trial.name

    def _find_kept(self, trial: StudyTrial) -> TrialRow | None:
        """Return the row of a trial whose run an earlier command finished, or ended for a reason that would end it again (pruned, or its
        own budget); None if there is no such run. Deletes resume data that a finished run left.
        """
        cores = None if self.where == "aws" else os.cpu_count()
        experiment = fix_threads(trial.experiment, cores=cores)
        run = find_finished_run(self._folder(trial), experiment)
        if run is None:
            run = find_stopped_run(self._folder(trial), limit_usd=experiment.lifetime.budget_usd)
            run = run if run and is_run_of(run, experiment) else None
        else:
            keeping.discard_resume_data(self._folder(trial))  # left if it was killed before it could delete it
        return None if run is None else make_row(trial, run)

    def _explain_refusal(self, trial: StudyTrial) -> str:
        """Return why the trial is not started: its projected p95 in dollars exceeds the rest of the budget, or it cannot be projected. ""
        if it may start, always so without a budget.
        """
        left = self._find_budget_left()
        if left is None:
            return ""
        try:
            p95 = project_trial(trial).band("usd").p95 + self._project_idle_usd(trial)
        except NoProjection as unknown:
            return f"no projection to compare with the budget: {unknown}"
        if p95 <= left:
            return ""
        return f"not started: it may cost {display.usd(p95)} (p95, projected), and {display.usd(max(0.0, left))} of the budget is left"

    def _project_idle_usd(self, trial: StudyTrial) -> float:
        """Return the projected dollars that stacks cost because of the trial, without the run itself: for p95 of its projected seconds, and
        for deploying its own stack. 0 if it does not run on AWS. Raises NoProjection if the trial cannot be projected.
        """
        return self.machine.project_idle_usd(trial.experiment, seconds=project_trial(trial).band("seconds").p95)

    def _run(self, trial: StudyTrial) -> TrialRow:
        """Run the trial with what is left of the budget as its own limit, and return its row, also if the budget or pruning ended it early.
        Raises the exception of a run that failed; its dollars count nevertheless.
        """
        lifetime, path = trial.experiment.lifetime, self._folder(trial)
        left = self._find_budget_left()
        within = None if left is None else left - self._project_idle_usd(trial)
        limits = [each for each in (lifetime.budget_usd, within) if each is not None]
        # A resumed run counts its earlier dollars itself: they are counted twice here, so the cap only applies earlier.
        own = replace(lifetime, budget_usd=min(limits)) if limits else lifetime
        try:
            run = self.machine.run(replace(trial.experiment, lifetime=own), path, trial.watch)
        except EARLY_ENDS as why:
            self.tell(f"{trial.name}: {why}")
            run = folder.read(path)
        finally:
            self._usd[trial.name] = sum_dollars(path)
        return make_row(trial, run)


def find_stopped_run(path: Path, *, limit_usd: float | None) -> RunFolder | None:
    """Return the run in the folder `path` if it was pruned, or if its own budget of `limit_usd` dollars ended it: if it were run again, it
    would end early again. Otherwise return None, also if there is no readable run.
    """
    try:
        run = folder.read(path)
    except (UserError, OSError):
        return None
    why = str(run.result.get("failure"))
    spent = limit_usd is not None and why.startswith("stopped at $") and f"lifetime.budget_usd is {limit_usd:g}" in why
    return run if spent or why.startswith("pruned") else None


# --- the study of a folder --------------------------------------------------------------------------------------------


def begin_study(study: Study, out: Path, *, where: str, resume: bool) -> None:
    """Create the folder `out` with study.json, which records the study that it holds, or check an existing one. `where`: inline, local or
    aws; `resume`: whether an earlier study in the folder is to be continued. Raises ConfigError if the folder holds another study, another
    version's or other files, or if `resume` does not match the folder's content.
    """
    state = {
        "format": FORMAT,
        "study": study.plain,
        "where": where,
        "versions": {name: collect_versions()[name] for name in DECISIVE_VERSIONS},
    }
    path = out / STATE
    if path.is_file():
        try:
            there = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"{path}: is damaged, it is not JSON ({error}); restore it, or use another --out"
            ) from None
        check_state(there, state, path)
        if not resume:
            raise ConfigError(
                f"--out {out}: this folder holds the study already; add --resume to continue it, or give another folder"
            )
        return
    if resume:
        raise ConfigError(
            f"--resume: {path} does not exist, so there is no study to resume; leave out --resume, or give the study's --out"
        )
    if out.exists() and (not out.is_dir() or any(not each.name.startswith(f".{STATE}") for each in out.iterdir())):
        raise ConfigError(
            f"--out {out}: this folder holds other files; expected a new or empty folder, or one of an earlier study"
        )
    out.mkdir(parents=True, exist_ok=True)
    folder.write_atomically(path, json.dumps(state, indent=1).encode() + b"\n")


def check_state(there: Any, here: Mapping[str, Any], path: Path) -> None:
    """Raise ConfigError if the recorded study (`there`, content of study.json) is damaged, or differs from the present one (`here`) in
    format, versions, place or settings. `path`: path of study.json, for messages.
    """
    if not isinstance(there, dict) or there.get("format") != FORMAT:
        told = there.get("format") if isinstance(there, dict) else there
        raise ConfigError(
            f"{path}: format {told!r} is unknown, this version reads {FORMAT}; continue with the version that wrote it"
        )
    for wrong in find_misfits(there, STATE_SHAPE):
        raise ConfigError(f"{path}: is damaged: {wrong.removeprefix('.')}; restore it, or use another --out")
    then, now = there["versions"], here["versions"]
    if other := [f"{name} {then.get(name)}, here {now[name]}" for name in now if then.get(name) != now[name]]:
        raise ConfigError(
            f"{path}: the study was started with other versions ({'; '.join(other)}), so new trials are not comparable; use another --out"
        )
    if there["where"] != here["where"]:
        raise ConfigError(f"{path}: the study was started with --on {there['where']}; resume it with that option")
    mine, other_study = json.loads(json.dumps(here["study"])), there["study"]
    if differing := [name for name in mine.keys() | other_study.keys() if mine.get(name) != other_study.get(name)]:
        raise ConfigError(
            f"{path}: the study file has changed ({', '.join(sorted(differing))}); undo the change, or use another --out"
        )

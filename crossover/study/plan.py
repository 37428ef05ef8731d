"""The plan of a study's trials, and trials on stacks deployed on AWS."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import yaml

from crossover.errors import ConfigError, UserError
from crossover.experiment import Experiment, from_plain
from crossover.reports import folder
from crossover.reports.folder import RunFolder
from crossover.reports.pages import Plot
from crossover.running import account, running_costs
from crossover.running.account import DeployedStack, check_credentials, explain_aws_errors
from crossover.running.deployed import run_aws
from crossover.running.deploying import check_before_deploying, deploy_previewed
from crossover.running.monitor import OnProgress, renewing_session
from crossover.running.removal import delete_experiment, delete_shared
from crossover.simulation import processors
from crossover.study import report, runner
from crossover.study.file import Study
from crossover.study.runner import Announce, Conductor, TrialRow
from crossover.study.trials import (
    MAX_TRIALS,
    InlineTrials,
    LocalTrials,
    StudyTrial,
    TrialFactory,
    TrialMachine,
    make_grid_trials,
)
from crossover.validation import check_deployment, validate
from crossover.workflow.infrastructure import shared_stacks

if TYPE_CHECKING:
    from crossover.study.search import OptunaSearch


# --- on aws -----------------------------------------------------------------------------------------------------------

STACKS = "stacks.json"
HOUR_S = 3_600.0
DEPLOYING_S = 1_200.0  # the longest time that a stack exists before and after a run


class AwsTrials(InlineTrials):
    """The machine that runs trials in the AWS account, a context manager. A stack is deployed before the first trial of this command that
    needs it; `release` destroys it. stacks.json in the study's folder `out` records when each existed. `tell`: called with one line about
    each step; `session`: boto3 session, by default from the environment.
    """

    def __init__(self, out: Path, *, tell: Announce, session: Any = None) -> None:
        """Read the record of the study's stacks from stacks.json in the folder `out`, if there is one. Nothing is asked of AWS yet. `tell`:
        called with one line about each step; `session`: boto3 session, by default from the environment.
        """
        self._out, self._tell = out, tell
        self._session = session
        self._ready = set[str]()  # of this command
        # By stack: its ARN, when it existed from and to (unix seconds, to None: it exists), when it expires, seconds of its runs.
        path = out / STACKS
        self._stacks: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.is_file() else {}

    def __enter__(self) -> "AwsTrials":
        """Check the AWS credentials, record in stacks.json which stacks of earlier commands no longer exist, and return this object. Raises
        UserError without valid credentials.
        """
        check_credentials()
        self._session = self._session or renewing_session()[0]
        for each in self._stacks.values():
            self._close_if_gone(each)
        self._write()
        return self

    def _find_stack(self, experiment: Experiment) -> DeployedStack | None:
        """Return the experiment's deployed stack; None if it does not exist."""
        return account.find_stack(self._session, f"{experiment.project}-{experiment.name}")

    def _close_if_gone(self, known: dict[str, Any]) -> None:
        """Record the end of a stack that no longer exists or was replaced, because it expired or somebody deleted it. The time is not
        known, so the latest possible one is recorded: its expiry, or now if that is earlier. Does nothing if the end is recorded already.
        `known`: the stack's entry of stacks.json, which is changed but not written.
        """
        if not has_no_end(known):
            return
        there = self._find_stack(from_plain(known["experiment"]))
        if there is None or known["id"] not in ("", there.id):
            known["stood"][-1][1] = min(time.time(), known["until"] or time.time())

    def run(self, experiment: Experiment, out: Path, watch: OnProgress) -> RunFolder:
        """Run a trial on its stack, with the results in the folder `out`, and return the run. Deploys the stack before its first trial of
        this command, and adds the run's seconds to stacks.json, even if it fails. If a run of the trial is in progress on AWS, it is
        followed to its end. `watch`: called after every epoch. Raises UserError if a stack of that name exists that this study did not
        deploy; botocore's errors become UserError or CrossoverError.
        """
        if experiment.name not in self._ready:
            self._deploy(experiment)
        with explain_aws_errors():
            try:
                return run_aws(experiment, out, watch)
            finally:
                ran_s = sum(
                    float(json.loads(each.read_bytes())["duration_s"]) for each in out.glob(f"**/{folder.RESULT}")
                )
                self._stacks[experiment.name]["ran_s"][out.name] = ran_s
                self._write()

    def _deploy(self, experiment: Experiment) -> None:
        """Deploy the experiment's stack without asking, even if it exists: that takes seconds if it is up to date, and restarts its time to
        live. Writes its YAML file into the study's folder, and records the stack, and shared stacks that are created with it, in
        stacks.json. Raises UserError if a stack of that name exists that this study did not deploy.
        """
        config = self._out / f"{experiment.name}.yaml"
        lifetime = {**experiment.to_plain()["lifetime"], "budget_usd": None}  # each trial sets its own when it runs
        fields = {**experiment.to_plain(), "recipe": "none", "lifetime": lifetime}
        folder.write_atomically(config, yaml.safe_dump(fields, sort_keys=False).encode())
        deployed = validate(fields)
        with explain_aws_errors():
            self._refuse_foreign_stack(experiment)
            check_before_deploying(deployed, config=config, tell=self._tell)
            shared = [f"{experiment.project}-{part}" for part in shared_stacks(deployed)]
            there = {name for name in shared if account.find_stack(self._session, name)}
            known = self._stacks.setdefault(experiment.name, {"stood": [], "ran_s": {}, "shared": []})
            known |= {"experiment": deployed.to_plain()}
            if not has_no_end(known):
                known["stood"].append([time.time(), None])
                known |= {"id": "", "until": None}
            known["shared"] = sorted({*known["shared"], *(name for name in shared if name not in there)})
            self._write()
            deploy_previewed(config, deployed, ask=False, tell=self._tell)
            if made := self._find_stack(deployed):
                known |= {"id": made.id, "until": made.expires_at.timestamp() if made.expires_at else None}
                self._write()
        self._ready.add(experiment.name)

    def _refuse_foreign_stack(self, experiment: Experiment) -> None:
        """Raise UserError if a stack of the trial's name exists that this study did not deploy, or that replaced this study's. Records
        first, without writing stacks.json, that the study's own stack has ended if it is gone.
        """
        if known := self._stacks.get(experiment.name):
            self._close_if_gone(known)
        there = self._find_stack(experiment)
        if there and not (known and has_no_end(known)):
            raise UserError(
                f"the stack {there.name} exists and does not belong to this study; it was not changed. Rename the study "
                "or destroy that stack with its own YAML file"
            )

    def release(self, experiment: Experiment) -> None:
        """Destroy the experiment's stack, even if an earlier command of this study deployed it; do nothing if it does not exist, or if this
        study did not deploy it. After the study's last stack, also destroy the shared stacks (network, broker) if this study deployed all
        of them and no other experiment depends on them.
        """
        known = self._stacks.get(experiment.name)
        if known is None or not has_no_end(known):
            return
        deployed = from_plain(known["experiment"])
        self._close_if_gone(known)
        if has_no_end(known):
            delete_experiment(self._session, deployed)
            known["stood"][-1][1] = time.time()
        self._ready.discard(experiment.name)
        self._write()
        ours = {name for each in self._stacks.values() for name in each["shared"]}
        there = {
            name
            for part in account.SHARED_KINDS
            if account.find_stack(self._session, name := f"{deployed.project}-{part}")
        }
        if not any(map(has_no_end, self._stacks.values())) and there and there <= ours:
            try:
                delete_shared(self._session, deployed)
            except UserError as needed:  # other experiments depend on them
                self._tell(f"stays: {needed}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Report, if the block ended with an error, each stack that still exists, because it costs money, with the commands to continue or
        delete it. Destroys nothing, and passes the error on.
        """
        for name, each in self._stacks.items():
            if error is not None and has_no_end(each):
                config = self._out / f"{name}.yaml"
                self._tell(
                    f"stack {name} still exists and costs money; --resume continues the study, `crossover destroy {config}` deletes it"
                )

    def idle_usd(self) -> float:
        """Return the dollars so far for the time in which stacks existed but ran no trial, at each stack's hourly cost. The cost of shared
        stacks is counted once per stack.
        """
        found = 0.0
        for each in self._stacks.values():
            stood_s = sum((ended or time.time()) - began for began, ended in each["stood"]) - sum(
                each["ran_s"].values()
            )
            found += compute_hourly_usd(from_plain(each["experiment"])) * max(0.0, stood_s) / HOUR_S
        return found

    def project_idle_usd(self, experiment: Experiment, *, seconds: float) -> float:
        """Return the projected dollars for all other stacks while the experiment runs for `seconds` seconds, and for its own stack while it
        is deployed and destroyed. Its own stack during the run is not included, because the run's bill has it.
        """
        others = [each for name, each in self._stacks.items() if has_no_end(each) and name != experiment.name]
        hour = sum(compute_hourly_usd(from_plain(each["experiment"])) for each in others)
        return (hour * (seconds + DEPLOYING_S) + compute_hourly_usd(experiment) * DEPLOYING_S) / HOUR_S

    def _write(self) -> None:
        """Write the record of all stacks to stacks.json."""
        folder.write_atomically(self._out / STACKS, json.dumps(self._stacks, indent=1).encode() + b"\n")


def has_no_end(known: Mapping[str, Any]) -> bool:
    """Return whether a stack still exists according to `known`, its entry of stacks.json: its last period has no end. AWS is not asked."""
    return bool(known["stood"]) and known["stood"][-1][1] is None


def compute_hourly_usd(experiment: Experiment) -> float:
    """Return the dollars per hour that the deployed experiment costs while nothing runs."""
    return running_costs.sum_usd(running_costs.list_hourly_costs(experiment))


# --- plan -------------------------------------------------------------------------------------------------------------
# The plan of a study: reported before anything is started, then run into a folder.


class StudyPlan:
    """The trials of a study, all validated, with a forecast of their time and cost in `forecast`. `where`: inline, local or aws; `tell`:
    called with each line of the forecast. Raises ConfigError that lists all faults of all trials, or, after the forecast was reported, if
    there are more than MAX_TRIALS trials.
    """

    def __init__(self, study: Study, *, where: str, tell: Announce) -> None:
        """Make and validate the trials, simulate their forecast, and report it. `where`: inline, local or aws; `tell`: called with each
        line of the forecast. For a search, no trials are made yet. Raises ConfigError for any fault.
        """
        self.study = study
        self._searching: OptunaSearch | None = None
        travels = where != "inline"
        check = _check_deployable if where == "aws" else lambda experiment: None
        self._factory, self._grid = TrialFactory(study, travels=travels, check=check), list[StudyTrial]()
        if study.search:
            from crossover.study import search  # Optuna

            self._searching = search.OptunaSearch(study)
        elif study.count <= MAX_TRIALS:
            self._grid = make_grid_trials(study, self._factory)
        drawn = self._searching.draw_settings(runner.SAMPLED_SETTINGS) if self._searching else ()
        self.forecast = runner.forecast_study(study, travels=travels, drawn=drawn)
        for line in self.forecast.lines:
            tell(line)
        if study.count > MAX_TRIALS:
            raise ConfigError(
                f"study {study.name}: {study.count:,} trials; at most {MAX_TRIALS:,} are allowed, so shorten its lists"
            )

    def trials(self, rows: Mapping[str, TrialRow], missing: dict[str, str]) -> Iterable[StudyTrial]:
        """Return the trials in order: all at once for a grid, one after another for a search, whose settings follow from the results in
        `rows` (by name of the trial). `missing` gets the reason for each trial of a search whose setting is not valid. Of a search, `rows`
        must have the results of all yielded trials before the next one is requested.
        """
        return self._searching.trials(self._factory, rows, missing) if self._searching else self._grid

    def pictures(self) -> Sequence[Plot]:
        """Return plots of the search, after all its trials have run; an empty sequence if the study has no search."""
        from crossover.study.search import draw_search

        return draw_search(self._searching) if self._searching else ()


def make_machine(where: str, out: Path, *, tell: Announce) -> TrialMachine:
    """Return the context manager that runs trials: AwsTrials, InlineTrials or LocalTrials. `where`: inline, local or aws; `out`: the
    study's folder; `tell`: called with one line about each step. The last two matter only on AWS.
    """
    if where == "aws":
        return AwsTrials(out, tell=tell)
    return InlineTrials() if where == "inline" else LocalTrials()


def _check_deployable(experiment: Experiment) -> None:
    """Raise ConfigError if the experiment cannot be deployed on AWS, or if one function cannot compute all local steps of a round within
    its time limit.
    """
    check_deployment(experiment)
    processors.check_fits(experiment)


@dataclass(frozen=True, kw_only=True)
class StudyEnd:
    """The result of a study. `rows`: trials that have a run, whether it finished or ended early; `tables`: its tables; `failed`: names of
    the trials that failed twice.
    """

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
    """Run all trials of `plan` in the folder `out`, write their tables there, and return the results. Trials that an earlier command
    finished are kept; those that fail twice or do not fit into the budget are left out, which is no error. `where`: inline, local or aws;
    `budget_usd`: limit in dollars for all trials together, None for no limit; `resume`: continue the study that `out` holds; `tell`: called
    with one line about each step. Raises ConfigError if `out` holds other files, or if `resume` does not match its content.
    """
    study = plan.study
    runner.begin_study(study, out, where=where, resume=resume)
    machine = make_machine(where, out, tell=tell)
    conductor = Conductor(study=study, out=out, machine=machine, budget_usd=budget_usd, where=where, tell=tell)
    rows = conductor.carry_out(plan.trials(conductor.outcome.found, conductor.outcome.missing), total=study.count)
    missing, failed = conductor.outcome.missing, conductor.outcome.failed
    pictures = plan.pictures() if study.search else ()
    tables = report.write(study, rows, missing, out, spent_usd=conductor.spent_usd(), failed=failed, drawn=pictures)
    return StudyEnd(rows=rows, tables=tables, failed=failed)

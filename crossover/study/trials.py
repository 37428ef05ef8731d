"""Trials of a study: their settings, their names, and the machines that run them."""

import hashlib
import json
import os
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from crossover import bundling, user_code
from crossover.errors import ConfigError, UserError
from crossover.experiment import Experiment, flatten_fields
from crossover.reports.folder import RunFolder
from crossover.reports.spending import BudgetReached
from crossover.running import inline
from crossover.running.deployed import run_on_cloud, synthesize_assembly
from crossover.running.monitor import OnProgress
from crossover.running.resume import Unfinished
from crossover.study.file import Study, Varied
from crossover.validation import documents, validate

# --- trials -----------------------------------------------------------------------------------------------------------

MAX_TRIALS = 10_000  # more are refused, after the forecast of their cost
MAX_NAME_LENGTH = 150  # characters of a setting in a folder's name
NAMED_TRIALS = 3  # trials that an error message names
NO_BASELINE = (
    "baseline: not supported in a study, which neither forecasts nor limits the cost of a baseline's runs; leave it out, and add the "
    "baseline's settings to the grid"
)
# Fields that only a run reads, not a stack: trials that differ in these alone share a stack.
is_field_of_run = re.compile(
    r"seed|faults\..*|training\.(epochs|learning_rate|momentum|nesterov|weight_decay|label_smoothing|schedule|warm_up|plateau_\w+"
    r"|early_stopping|target|metric\..*)"
).fullmatch


@dataclass(frozen=True, kw_only=True)
class StudyTrial:
    """One run of a study: a setting with one seed. `name`: name of its folder; `varied`: its setting, as values by dotted field;
    `experiment`: the experiment with this setting; `watch`: called after every epoch, may raise Pruned.
    """

    name: str
    varied: Varied
    experiment: Experiment
    watch: OnProgress = lambda progress: None

    @property
    def stack(self) -> str:
        """Name of the stack on which the trial runs; several trials may share a stack."""
        return self.experiment.name


def list_settings(study: Study) -> Iterator[Varied]:
    """Return an iterator over all combinations of the grid's values, each as values by field; the last field of the file varies fastest.
    One empty setting if there is no grid.
    """
    return (dict(zip(study.grid, values, strict=True)) for values in product(*study.grid.values()))


def format_setting(varied: Varied) -> str:
    """Return a setting as text, such as `learning_rate=0.1, architecture=spirt`. A field is shortened to its last part unless two fields
    would then be equal. `as it is` for an empty setting.
    """
    last = [name.rpartition(".")[2] for name in varied]
    short = {name: end if last.count(end) == 1 else name for name, end in zip(varied, last, strict=True)}
    return ", ".join(f"{short[name]}={_format_value(value)}" for name, value in varied.items()) or "as it is"


def trial_folder_name(varied: Varied, seed: int, *, number: int = 0) -> str:
    """Return the name of a trial's folder: its setting (`varied`) and seed as text, such as `learning_rate=0.1_seed=3`; a long setting is
    cut to MAX_NAME_LENGTH characters plus a hash. For trial `number` (from 1) of a search, only the number and the seed, such as
    `0007_seed=3`.
    """
    if number:
        return f"{number:04d}_seed={seed}"
    whole = format_setting(varied)
    short = (
        whole
        if len(whole) <= MAX_NAME_LENGTH
        else f"{whole[:MAX_NAME_LENGTH]}~{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
    )
    return re.sub(r"[^\w.=+~-]+", "_", f"{short} seed={seed}")


def _format_value(value: object) -> str:
    """Return a value as JSON text; a string without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


class TrialFactory:
    """A factory that makes and validates a study's trials. It numbers their stacks in the order of first use, so that the same file always
    gives the same names. Creating one also sets the folders in which this whole process finds user code: the study's and the current one.

    `travels`: whether user code is bundled to run elsewhere; `check`: function that raises ConfigError for an experiment that cannot run.
    """

    def __init__(
        self, study: Study, *, travels: bool, check: Callable[[Experiment], None] = lambda experiment: None
    ) -> None:
        """Prepare to make trials, and set the folders of user code for the process. The parameters are explained at the class."""
        self._study, self._travels, self._check = study, travels, check
        self._stacks = dict[str, str]()
        user_code.set_folders(study.folder, Path.cwd())

    def make_trials(self, varied: Varied, *, number: int = 0) -> list[StudyTrial]:
        """Return the trials of a setting, one for each seed. `varied`: the setting; `number`: number of the setting in a search, 0 in a
        grid; it becomes part of the names. Raises ConfigError for a setting that is not valid: with the faults that `validate` lists, a
        `baseline` in the experiment among them; if there are none, the first fault of user code, of the model or of `check`.
        """
        plain = deepcopy(dict(self._study.base))
        for name, value in varied.items():
            documents.set_field(plain, name.split("."), value, said=name)
        plain |= {
            "name": f"{self._study.name}-{MAX_TRIALS}",
            "seed": self._study.seeds[0],
        }  # the longest name that a stack can get
        baseline = NO_BASELINE if plain.get("baseline", "none") not in ("none", None, []) else ""
        try:
            experiment = validate(plain, commanded=list(varied))
        except ConfigError as error:
            raise ConfigError(f"{baseline}\n{error}".strip()) from None
        if baseline:
            raise ConfigError(baseline)
        bundling.check_user_code(experiment, travels=self._travels)
        from crossover.learning.zoo import find_factory  # torch

        find_factory(experiment.training.model)
        self._check(experiment)
        experiment = replace(experiment, name=self._stack(experiment))
        return [
            StudyTrial(
                name=trial_folder_name(varied, seed, number=number),
                varied=varied,
                experiment=replace(experiment, seed=seed),
            )
            for seed in self._study.seeds
        ]

    def _stack(self, experiment: Experiment) -> str:
        """Return the name of the stack for an experiment: `<study>-<number>`, numbered from 1 in the order of the first calls. Experiments
        that differ only in fields which a stack does not depend on get the same name.
        """
        fixed = [(name, value) for name, value in flatten_fields(experiment.to_plain()) if not is_field_of_run(name)]
        return self._stacks.setdefault(json.dumps(fixed), f"{self._study.name}-{len(self._stacks) + 1}")


def make_grid_trials(study: Study, accepting: TrialFactory) -> list[StudyTrial]:
    """Return all trials of a grid: for each seed in turn all settings once, in a random order that depends only on the study's `order` and
    the seed. Raises ConfigError that lists all faults of all settings, or names that would be equal. `accepting`: makes the trials of a
    setting.
    """
    faults, found = defaultdict[str, list[str]](list), list[list[StudyTrial]]()
    for varied in list_settings(study):
        try:
            found.append(accepting.make_trials(varied))
        except ConfigError as error:
            for line in str(error).splitlines():
                faults[line].append(format_setting(varied))
    names = [trial.name for trials in found for trial in trials]
    for name in sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else ():
        faults[f"two trials would have the name {name}; use values that differ in letters and digits"] = []
    if faults:
        raise ConfigError(
            "\n".join(
                [f"study {study.name}:", *(f"  {_format_fault(fault, of, study)}" for fault, of in faults.items())]
            )
        )
    ordered = list[StudyTrial]()
    for number, seed in enumerate(study.seeds):
        block = [trials[number] for trials in found]
        random.Random(f"{study.order} {seed}").shuffle(block)
        ordered += block
    return ordered


def _format_fault(fault: str, of: Sequence[str], study: Study) -> str:
    """Return a fault's message, followed by the first few settings (`of`) that have it, unless all settings do."""
    if not of or len(of) == study.settings:
        return fault
    more = f" and {len(of) - NAMED_TRIALS} more" if len(of) > NAMED_TRIALS else ""
    return f"{fault}  (in {'; '.join(of[:NAMED_TRIALS])}{more})"


# --- machines ---------------------------------------------------------------------------------------------------------
# Where trials run: in this process, or on stacks that are deployed for their first trial, shared, and destroyed after the last.


class Pruned(UserError):
    """Exception that stops a trial after an epoch, because the search's pruner judges it less promising than others."""


EARLY_ENDS = (BudgetReached, Pruned)  # ends of a run that are not failures


class TrialMachine(Protocol):
    """Protocol of a machine on which trials run, one at a time: a context manager, inside whose block the other methods are called."""

    def __enter__(self) -> Self:
        """Prepare the machine and return it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop what the machine has started on this computer; stacks on AWS stay. An error of the block passes on."""

    def run(self, experiment: Experiment, out: Path, watch: OnProgress) -> RunFolder:
        """Run a trial in the folder `out`, or resume the unfinished run there, and return its run. `watch`: called with the progress after
        every epoch; what it raises ends the run. Raises what the run raises, one of EARLY_ENDS if it was stopped early.
        """

    def release(self, experiment: Experiment) -> None:
        """Destroy the experiment's stack, because no further trial will use it. Does nothing if there is none."""

    def idle_usd(self) -> float:
        """Return the dollars that stacks have cost so far while no trial ran on them; 0 without stacks."""

    def project_idle_usd(self, experiment: Experiment, *, seconds: float) -> float:
        """Return the projected dollars that stacks cost, besides the run itself, because of a run of the experiment that takes `seconds`
        seconds; 0 without stacks.
        """


class InlineTrials:
    """A machine (`TrialMachine`, a context manager) that runs trials in this process. There are no stacks, so the methods about stacks do
    nothing.
    """

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing."""

    def run(self, experiment: Experiment, out: Path, watch: OnProgress) -> RunFolder:
        """Run a trial in this process and return its run, resuming the unfinished run in `out` if it has the same settings; otherwise an
        earlier run there is moved aside. `watch`: called after every epoch.
        """
        return inline.run_inline(
            experiment, out, watch, resume=inline.can_resume(experiment, out, where="inline", cores=os.cpu_count())
        )

    def release(self, experiment: Experiment) -> None:
        """Do nothing: there are no stacks."""

    def idle_usd(self) -> float:
        """Return 0: there are no stacks."""
        return 0.0

    def project_idle_usd(self, experiment: Experiment, *, seconds: float) -> float:
        """Return 0: there are no stacks."""
        return 0.0


class LocalTrials(InlineTrials):
    """A machine that runs trials on the local cloud, AWS's services simulated on this machine. The cloud is started with the first run,
    shared by all trials, and ended with this context manager.
    """

    def __init__(self) -> None:
        """Prepare the machine. Nothing is started yet."""
        self._stack = ExitStack()
        self._cloud: Any = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the local cloud, if it was started."""
        self._stack.close()

    def run(self, experiment: Experiment, out: Path, watch: OnProgress) -> RunFolder:
        """Run a trial on its stack of the local cloud and return its run. Deploys the stack if needed, and resumes the unfinished run in
        `out` if it has the same settings. If the run fails, but not if it is one of EARLY_ENDS, the stack is destroyed. `watch`: called
        after every epoch. The first call starts the local cloud. Raises MissingTool if one of its programs is not installed.
        """
        from crossover.local import servers

        if self._cloud is None:
            self._start()

        def one(each: Experiment, into: Path, unfinished: Unfinished | None) -> RunFolder:
            """Run one experiment (the trial's, or a baseline of it) on the stack of the trial, which is deployed first if needed, and
            return its run, in the folder `into`. `unfinished`: run to resume, or None.
            """
            if _find_stack_name(experiment) not in self._cloud.stacks():
                with servers.temporary_folder() as assembly:
                    self._cloud.deploy(synthesize_assembly(experiment, assembly))
            return run_on_cloud(self._cloud, each, into, watch, unfinished=unfinished)

        cores = os.cpu_count()
        resume = inline.can_resume(experiment, out, where="local", cores=cores)
        try:
            return inline.run_with_baselines(one, experiment, out, where="local", resume=resume, cores=cores)
        except EARLY_ENDS:
            raise
        except Exception:  # after an interrupt the local cloud ends anyway
            self.release(experiment)
            raise

    def release(self, experiment: Experiment) -> None:
        """Destroy the experiment's stack on the local cloud, if it is deployed there. Does nothing if the local cloud was not started."""
        if self._cloud is not None and _find_stack_name(experiment) in self._cloud.stacks():
            self._cloud.destroy(_find_stack_name(experiment))

    def _start(self) -> None:
        """Start the local cloud in a temporary folder, after a check that its programs are installed. Raises MissingTool if one is not."""
        from crossover.local import servers
        from crossover.local.cloud import LocalCloud

        servers.check_programs()
        folder = self._stack.enter_context(servers.temporary_folder())
        self._cloud = self._stack.enter_context(LocalCloud(folder / "cloud"))


def _find_stack_name(experiment: Experiment) -> str:
    """Return the name of the experiment's stack, `<project>-<name>`, whether or not it is deployed."""
    return f"{experiment.project}-{experiment.name}"

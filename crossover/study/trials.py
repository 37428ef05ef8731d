"""The trials of a study: each an ordinary experiment, refused as `run` refuses it, in an order drawn by seed."""

import hashlib
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from crossover import own_code
from crossover.errors import ConfigError
from crossover.experiment import Experiment, flat
from crossover.running.following import OnProgress
from crossover.study.file import Study, Varied
from crossover.validation import documents, validate

MOST = 10_000  # trials; more are told what they would cost, and refused
LONGEST = 150  # characters of a setting in a folder's name
SHOWN = 3  # trials that a fault names
BASELINE = (
    "baseline: a study compares by pairs, and neither forecasts nor caps a baseline's runs; leave it out, and put what it stands for into "
    "the grid"
)
# What a run reads when it starts, and nothing of a stack's: trials that differ in these alone share one.
OF_THE_RUN = re.compile(
    r"seed|faults\..*|training\.(epochs|learning_rate|momentum|nesterov|weight_decay|label_smoothing|schedule|warm_up|plateau_\w+"
    r"|early_stopping|target|metric\..*)"
).fullmatch


@dataclass(frozen=True, kw_only=True)
class StudyTrial:
    """`name`: of its folder. `stack`: what its experiment's stack is called, which others may share. `watch`: told of every epoch."""

    name: str
    varied: Varied
    experiment: Experiment
    watch: OnProgress = lambda progress: None

    @property
    def stack(self) -> str:
        return self.experiment.name


def settings(study: Study) -> Iterator[Varied]:
    """Of a grid, in the file's order."""
    return (dict(zip(study.grid, values, strict=True)) for values in product(*study.grid.values()))


def label(varied: Varied) -> str:
    """`learning_rate=0.1, architecture=spirt`: fields by their last name where that tells them apart."""
    last = [name.rpartition(".")[2] for name in varied]
    short = {name: end if last.count(end) == 1 else name for name, end in zip(varied, last, strict=True)}
    return ", ".join(f"{short[name]}={_word(value)}" for name, value in varied.items()) or "as it is"


def name_of(varied: Varied, seed: int, *, number: int = 0) -> str:
    """What a trial's folder is called: a search's by its number alone."""
    if number:
        return f"{number:04d}_seed={seed}"
    whole = label(varied)
    short = whole if len(whole) <= LONGEST else f"{whole[:LONGEST]}~{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
    return re.sub(r"[^\w.=+~-]+", "_", f"{short} seed={seed}")


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class Accepting:
    """Makes trials of settings, and numbers their stacks in the order in which they come: the same file gives the same names again."""

    def __init__(
        self, study: Study, *, travels: bool, check: Callable[[Experiment], None] = lambda experiment: None
    ) -> None:
        self._study, self._travels, self._check = study, travels, check
        self._stacks = dict[str, str]()
        own_code.look_in(study.folder, Path.cwd())

    def trials(self, varied: Varied, *, number: int = 0) -> list[StudyTrial]:
        """One for each seed. Raises ConfigError with every fault of the setting. `number`: of one that a search asked for, which may ask
        for the same again.
        """
        plain = deepcopy(dict(self._study.base))
        for name, value in varied.items():
            documents.put(plain, name.split("."), value, said=name)
        plain |= {
            "name": f"{self._study.name}-{MOST}",
            "seed": self._study.seeds[0],
        }  # as long as a stack's name can get
        baseline = BASELINE if plain.get("baseline", "none") not in ("none", None, []) else ""
        try:
            experiment = validate(plain, commanded=list(varied))
        except ConfigError as error:
            raise ConfigError(f"{baseline}\n{error}".strip()) from None
        if baseline:
            raise ConfigError(baseline)
        own_code.check(experiment, travels=self._travels)
        from crossover.learning.models.registry import factory  # torch

        factory(experiment.training.model)
        self._check(experiment)
        experiment = replace(experiment, name=self._stack(experiment))
        return [
            StudyTrial(
                name=name_of(varied, seed, number=number), varied=varied, experiment=replace(experiment, seed=seed)
            )
            for seed in self._study.seeds
        ]

    def _stack(self, experiment: Experiment) -> str:
        fixed = [(name, value) for name, value in flat(experiment.resolved()) if not OF_THE_RUN(name)]
        return self._stacks.setdefault(json.dumps(fixed), f"{self._study.name}-{len(self._stacks) + 1}")


def of_grid(study: Study, accepting: Accepting) -> list[StudyTrial]:
    """All of them: for every seed all settings once, in an order drawn for that seed. Raises ConfigError with all faults of all."""
    faults, found = defaultdict[str, list[str]](list), list[list[StudyTrial]]()
    for varied in settings(study):
        try:
            found.append(accepting.trials(varied))
        except ConfigError as error:
            for line in str(error).splitlines():
                faults[line].append(label(varied))
    names = [trial.name for trials in found for trial in trials]
    for name in sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else ():
        faults[f"two trials are called {name}; give values that differ in letters and digits"] = []
    if faults:
        raise ConfigError(
            "\n".join([f"study {study.name}:", *(f"  {_told(fault, of, study)}" for fault, of in faults.items())])
        )
    ordered = list[StudyTrial]()
    for number, seed in enumerate(study.seeds):
        block = [trials[number] for trials in found]
        random.Random(f"{study.order} {seed}").shuffle(block)
        ordered += block
    return ordered


def _told(fault: str, of: Sequence[str], study: Study) -> str:
    if not of or len(of) == study.settings:
        return fault
    more = f" and {len(of) - SHOWN} more" if len(of) > SHOWN else ""
    return f"{fault}  (in {'; '.join(of[:SHOWN])}{more})"

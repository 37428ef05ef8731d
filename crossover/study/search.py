"""Optuna asks, trials answer: its sampler and pruner by its own names. Imported only where a study searches.

One setting is asked for after another, each by a sampler whose seed is the study's and the setting's number: what is asked then depends on
nothing but the values told before. So a command that goes on asks and tells all that is finished again, and stands where the one before
stood; no database is needed.
"""

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import optuna

from crossover.errors import ConfigError
from crossover.reports import plots
from crossover.reports.page import Plot, plot
from crossover.running.following import OnProgress, Progress
from crossover.study.conduct import TrialRow
from crossover.study.file import Study, Varied
from crossover.study.machines import Pruned
from crossover.study.runner import one_line
from crossover.study.trials import Accepting, StudyTrial, label, name_of

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


class Searching:
    """Asks for a study's settings. Raises ConfigError for names, arguments and bounds that Optuna does not know."""

    def __init__(self, study: Study) -> None:
        assert study.search is not None
        self.study, self.search = study, study.search
        faults = list[str]()
        self._sampler = _called("sampler", *self.search.sampler, faults, seeded=study.order)
        pruner = _called("pruner", *self.search.pruner, faults)
        self._space = {name: _distribution(name, each, faults) for name, each in self.search.space.items()}
        if faults:
            raise ConfigError("\n".join([f"study {study.name}:", *(f"  {fault}" for fault in faults)]))
        self._pruner = pruner()
        self.optuna = optuna.create_study()
        self.repeated = 0  # settings asked for once more

    def trials(
        self, accepting: Accepting, rows: Mapping[str, TrialRow], missing: dict[str, str]
    ) -> Iterator[StudyTrial]:
        """Setting by setting, each with every seed; `rows` then has what came of them, and nothing of one that failed. Of one that was
        there before nothing is run: Optuna is told what it was told then. Why a setting was refused goes into `missing`.
        """
        metric = accepting.trials(self.drawn(1)[0])[0].experiment.training.metric
        better = (
            optuna.study.StudyDirection.MAXIMIZE if self.study.rises(metric) else optuna.study.StudyDirection.MINIMIZE
        )
        self.optuna = optuna.create_study(direction=better, pruner=self._pruner)
        for number in range(self.search.trials):
            self.optuna.sampler = self._sampler(number)
            asked = self.optuna.ask(self._space)
            before = self.optuna.get_trials(deepcopy=False)[: asked.number]
            if earlier := next((each for each in before if each.params == asked.params), None):
                self._tell_again(asked, earlier)
                continue
            try:
                trials = accepting.trials(asked.params, number=number + 1)
            except ConfigError as refused:
                names = [name_of(asked.params, seed, number=number + 1) for seed in self.study.seeds]
                missing |= dict.fromkeys(names, f"refused: {label(asked.params)}: {one_line(refused)}")
                self.optuna.tell(asked, state=optuna.trial.TrialState.FAIL)
                continue
            if len(trials) == 1:  # of several seeds no epoch speaks for all
                trials = [replace(trials[0], watch=_watching(asked))]
            yield from trials
            self._tell(asked, [rows[trial.name] for trial in trials if trial.name in rows], of=len(trials))

    def _tell(self, asked: optuna.Trial, rows: Sequence[TrialRow], *, of: int) -> None:
        """The mean over seeds; of one that was pruned, what stood when it was."""
        values = [row.measures[self.study.metric] for row in rows if not row.reason]
        known = [value for value in values if value is not None]
        if len(known) == of:
            self.optuna.tell(asked, fmean(known))
        elif rows and (epoch := pruned_at(rows[0])):
            for at, value in rows[0].curve:
                if at <= epoch and at not in self.optuna.trials[asked.number].intermediate_values:
                    asked.report(value, at)
            self.optuna.tell(asked, state=optuna.trial.TrialState.PRUNED)
        else:
            self.optuna.tell(asked, state=optuna.trial.TrialState.FAIL)

    def _tell_again(self, asked: optuna.Trial, earlier: optuna.trial.FrozenTrial) -> None:
        self.repeated += 1
        for epoch, value in earlier.intermediate_values.items():
            asked.report(value, epoch)
        complete = earlier.state is optuna.trial.TrialState.COMPLETE
        self.optuna.tell(asked, earlier.value if complete else None, state=earlier.state)

    def drawn(self, count: int) -> list[Varied]:
        """Settings of the space, for a forecast: this study is asked for none of them."""
        apart = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=self.study.order))
        return [apart.ask(self._space).params for _ in range(count)]


def pruned_at(row: TrialRow) -> int:
    """After which epoch; 0 of one that was not."""
    return int(row.reason.split()[3]) if row.reason.startswith("pruned after epoch ") else 0


def _watching(asked: optuna.Trial) -> OnProgress:
    def watch(progress: Progress) -> None:
        asked.report(progress.val_metric, progress.epoch)
        if progress.epoch < progress.epochs and asked.should_prune():
            raise Pruned(f"pruned after epoch {progress.epoch} of {progress.epochs}")

    return watch


def _called(part: str, name: str, arguments: Mapping[str, Any], faults: list[str], *, seeded: int | None = None) -> Any:
    """What makes a sampler for the number of a setting, or a pruner."""
    module = getattr(optuna, f"{part}s")
    known = [each for each in module.__all__ if each.endswith(part.capitalize()) and not each.startswith("Base")]
    if name not in known:
        faults.append(f"search.{part}: {name!r} is not of Optuna {optuna.__version__}; one of {', '.join(known)}")
        return None
    made = partial(getattr(module, name), **arguments)
    if "seed" in arguments:
        faults.append(f"search.{part}: seed: order gives it, so that a search goes on as it began; leave it out")
        return None
    seeds = seeded is not None and "seed" in inspect.signature(getattr(module, name)).parameters
    try:
        made(**({"seed": 1} if seeds else {}))
    except (TypeError, ValueError, ImportError) as error:
        faults.append(f"search.{part}: {name}: {error}")
    return (lambda number: made(seed=1_000 * (seeded or 0) + number)) if seeds else (lambda number=0: made())


def _distribution(name: str, given: Any, faults: list[str]) -> Any:
    try:
        if isinstance(given, list):
            return optuna.distributions.CategoricalDistribution(given)
        whole = all(type(given[end]) is int for end in ("low", "high"))
        kind = optuna.distributions.IntDistribution if whole else optuna.distributions.FloatDistribution
        return kind(**given)
    except (TypeError, ValueError) as error:
        faults.append(f"search.space.{name}: {error}")
        return None


def pictures(found: Searching) -> list[Plot]:
    """Optuna's own, of a search in which something was told."""
    import matplotlib.pyplot as plt
    from optuna.visualization import matplotlib as drawn

    complete = [each for each in found.optuna.trials if each.state is optuna.trial.TrialState.COMPLETE]
    names = {"optimization_history": 1, "param_importances": 2}
    made, again = list[Plot](), ""
    if found.repeated:
        again = f"Of {found.search.trials} settings {found.repeated} were asked for once more: told again, and not run again."
    for name in [name for name, least in names.items() if len(complete) >= least]:
        with plots.styled():
            figure = getattr(drawn, f"plot_{name}")(found.optuna).figure
            svg = plots.svg(figure, name=name, title=name.replace("_", " "))
            plt.close(figure)
        made.append(plot(f"Optuna: {name.replace('_', ' ')}", svg, caption=again))
    return made

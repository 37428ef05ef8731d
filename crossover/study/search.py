"""Hyperparameter search with Optuna, with its own samplers and pruners. Imported only if a study searches.

Settings are asked for one after another, each by a sampler whose seed comes from the study and the setting's number, so that a setting
depends on nothing but the results reported before. A resumed command repeats all finished questions and reports and reaches the state of
the earlier one; no database is needed.
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
from crossover.reports.pages import Plot, plot
from crossover.running.monitor import OnProgress, Progress
from crossover.study.file import Study, Varied
from crossover.study.runner import TrialRow, to_one_line
from crossover.study.trials import Pruned, StudyTrial, TrialFactory, format_setting, trial_folder_name

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


class OptunaSearch:
    """A study's search for good settings with Optuna. `optuna`: Optuna's study, which holds the results so far; `repeated`: number of
    settings that Optuna proposed again. Raises ConfigError if the file has names, arguments or bounds that Optuna does not know.
    """

    def __init__(self, study: Study) -> None:
        """Prepare the search that the study's file describes. Raises ConfigError that lists what Optuna does not know."""
        assert study.search is not None
        self.study, self.search = study, study.search
        faults = list[str]()
        self._sampler = _make_factory("sampler", *self.search.sampler, faults, seeded=study.order)
        pruner = _make_factory("pruner", *self.search.pruner, faults)
        self._space = {name: _make_distribution(name, each, faults) for name, each in self.search.space.items()}
        if faults:
            raise ConfigError("\n".join([f"study {study.name}:", *(f"  {fault}" for fault in faults)]))
        self._pruner = pruner()
        self.optuna = optuna.create_study()
        self.repeated = 0  # settings that were asked for again

    def trials(
        self, factory: TrialFactory, rows: Mapping[str, TrialRow], missing: dict[str, str]
    ) -> Iterator[StudyTrial]:
        """Ask Optuna for one setting after another, yield the trials of each (one per seed), and report their result to Optuna. Each call
        begins a new search. Raises ConfigError at the first request if a random setting of the space is not valid.

        Before the next trial of another setting is requested, `rows` must contain the results of the yielded trials, by name; a failed
        trial has none. A setting that was proposed before is not run again: its earlier result is reported again. `factory`: makes the
        trials of a setting; `missing`: receives the reason for each trial whose setting is not valid.
        """
        metric = factory.make_trials(self.draw_settings(1)[0])[0].experiment.training.metric
        better = (
            optuna.study.StudyDirection.MAXIMIZE if self.study.rises(metric) else optuna.study.StudyDirection.MINIMIZE
        )
        self.optuna = optuna.create_study(direction=better, pruner=self._pruner)
        for number in range(self.search.trials):
            self.optuna.sampler = self._sampler(number)
            asked = self.optuna.ask(self._space)
            before = self.optuna.get_trials(deepcopy=False)[: asked.number]
            if earlier := next((each for each in before if each.params == asked.params), None):
                self._report_again(asked, earlier)
                continue
            try:
                trials = factory.make_trials(asked.params, number=number + 1)
            except ConfigError as refused:
                names = [trial_folder_name(asked.params, seed, number=number + 1) for seed in self.study.seeds]
                missing |= dict.fromkeys(names, f"refused: {format_setting(asked.params)}: {to_one_line(refused)}")
                self.optuna.tell(asked, state=optuna.trial.TrialState.FAIL)
                continue
            if len(trials) == 1:  # with several seeds, no single run's epoch can be judged
                trials = [replace(trials[0], watch=_make_watch(asked))]
            yield from trials
            self._report_result(asked, [rows[trial.name] for trial in trials if trial.name in rows], of=len(trials))

    def _report_result(self, asked: optuna.Trial, rows: Sequence[TrialRow], *, of: int) -> None:
        """Report the result of the setting that Optuna `asked` for: the mean of the study's metric if all `of` trials (one per seed) have
        it, else that the setting was pruned (with its metric after each epoch) or that it failed. `rows`: those of its trials that have a
        run.
        """
        values = [row.measures[self.study.metric] for row in rows if not row.reason]
        known = [value for value in values if value is not None]
        if len(known) == of:
            self.optuna.tell(asked, fmean(known))
        elif rows and (epoch := find_pruned_epoch(rows[0])):
            for at, value in rows[0].curve:
                if at <= epoch and at not in self.optuna.trials[asked.number].intermediate_values:
                    asked.report(value, at)
            self.optuna.tell(asked, state=optuna.trial.TrialState.PRUNED)
        else:
            self.optuna.tell(asked, state=optuna.trial.TrialState.FAIL)

    def _report_again(self, asked: optuna.Trial, earlier: optuna.trial.FrozenTrial) -> None:
        """Report the result of the trial `earlier` to Optuna for the trial `asked`, which has the same setting, and count
        the repetition.
        """
        self.repeated += 1
        for epoch, value in earlier.intermediate_values.items():
            asked.report(value, epoch)
        complete = earlier.state is optuna.trial.TrialState.COMPLETE
        self.optuna.tell(asked, earlier.value if complete else None, state=earlier.state)

    def draw_settings(self, count: int) -> list[Varied]:
        """Return `count` random settings of the search space, for a forecast. They are the same at every call and do not affect the
        search.
        """
        apart = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=self.study.order))
        return [apart.ask(self._space).params for _ in range(count)]


def find_pruned_epoch(row: TrialRow) -> int:
    """Return the number of the epoch after which the trial was pruned, as its reason says; 0 if it was not pruned."""
    return int(row.reason.split()[3]) if row.reason.startswith("pruned after epoch ") else 0


def _make_watch(asked: optuna.Trial) -> OnProgress:
    """Return a callback for a trial's epochs: it reports each epoch's metric to Optuna, and raises Pruned if Optuna decides to stop the
    trial before its last epoch. `asked`: Optuna's trial.
    """

    def watch(progress: Progress) -> None:
        """Report the epoch's validation metric to Optuna. Raises Pruned if Optuna decides to stop the trial before its last epoch."""
        asked.report(progress.val_metric, progress.epoch)
        if progress.epoch < progress.epochs and asked.should_prune():
            raise Pruned(f"pruned after epoch {progress.epoch} of {progress.epochs}")

    return watch


def _make_factory(
    part: str, name: str, arguments: Mapping[str, Any], faults: list[str], *, seeded: int | None = None
) -> Any:
    """Return a function that makes the sampler for the setting with a given number, or the pruner (without an argument). If its name or
    arguments are not valid for Optuna, or `arguments` has a seed, a message is added to `faults`, and the result, which may be None, is of
    no use. `part`: "sampler" or "pruner"; `name`, `arguments`: Optuna's class and its arguments; `seeded`: the study's seed, for parts that
    take one.
    """
    module = getattr(optuna, f"{part}s")
    known = [each for each in module.__all__ if each.endswith(part.capitalize()) and not each.startswith("Base")]
    if name not in known:
        faults.append(
            f"search.{part}: {name!r} is unknown to Optuna {optuna.__version__}; expected one of {', '.join(known)}"
        )
        return None
    made = partial(getattr(module, name), **arguments)
    if "seed" in arguments:
        faults.append(
            f"search.{part}: seed: is derived from `order`, so that a resumed search stays the same; leave it out"
        )
        return None
    seeds = seeded is not None and "seed" in inspect.signature(getattr(module, name)).parameters
    try:
        made(**({"seed": 1} if seeds else {}))
    except (TypeError, ValueError, ImportError) as error:
        faults.append(f"search.{part}: {name}: {error}")
    return (lambda number: made(seed=1_000 * (seeded or 0) + number)) if seeds else (lambda number=0: made())


def _make_distribution(name: str, given: Any, faults: list[str]) -> Any:
    """Return Optuna's distribution of the field `name`. `given`: a list of choices, or a mapping with bounds: a distribution of integers if
    both bounds are integers. If Optuna refuses it, add a message to `faults` and return None.
    """
    try:
        if isinstance(given, list):
            return optuna.distributions.CategoricalDistribution(given)
        whole = all(type(given[end]) is int for end in ("low", "high"))
        kind = optuna.distributions.IntDistribution if whole else optuna.distributions.FloatDistribution
        return kind(**given)
    except (TypeError, ValueError) as error:
        faults.append(f"search.space.{name}: {error}")
        return None


def draw_search(found: OptunaSearch) -> list[Plot]:
    """Return plots that Optuna draws of a search: the history if a setting is complete, and the importance of the fields if two are; an
    empty list if none is.
    """
    import matplotlib.pyplot as plt
    from optuna.visualization import matplotlib as drawn

    complete = [each for each in found.optuna.trials if each.state is optuna.trial.TrialState.COMPLETE]
    names = {"optimization_history": 1, "param_importances": 2}
    made, again = list[Plot](), ""
    if found.repeated:
        again = f"Of {found.search.trials} settings, {found.repeated} were proposed again and not run again; their first results count."
    for name in [name for name, least in names.items() if len(complete) >= least]:
        with plots.styled():
            figure = getattr(drawn, f"plot_{name}")(found.optuna).figure
            svg = plots.svg(figure, name=name, title=name.replace("_", " "))
            plt.close(figure)
        made.append(plot(f"Optuna: {name.replace('_', ' ')}", svg, caption=again))
    return made

"""A study's YAML file: a base experiment, what is varied, how often, the metric, and which settings are compared."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from crossover.errors import ConfigError
from crossover.experiment import Metric
from crossover.validation import documents
from crossover.validation.documents import did_you_mean

Varied = Mapping[str, Any]  # by dotted field of an experiment

# Measures of trials, by their name in compare's CSV; whether a higher value is better, None: as the experiment's metric says.
MEASURES = {
    "final_metric": None,
    "best_metric": None,
    "duration_s": False,
    "full_usd": False,
    "paper_method_usd": False,
    "goal_s": False,
    "goal_full_usd": False,
    "moved_bytes": False,
}
RESERVED_FIELDS = {
    "name": "cannot vary: the study names its trials",
    "project": "cannot vary: all trials belong to one project",
    "owner": "cannot vary: all trials have one owner",
}
RESERVED_FIELDS |= {"seed": "cannot vary here: list seeds under `seeds:`, by which trials are paired"}


@dataclass(frozen=True, kw_only=True)
class Search:
    """Settings of a hyperparameter search with Optuna. `trials`: number of settings to try; `space`: for each dotted field, a list of
    choices or a mapping with bounds (`low`, `high`, optionally `log`, `step`); `sampler`, `pruner`: (name of Optuna's class, its
    arguments).
    """

    trials: int
    space: Mapping[str, Any]
    sampler: tuple[str, Mapping[str, Any]] = ("TPESampler", {})
    pruner: tuple[str, Mapping[str, Any]] = ("NopPruner", {})


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study as its file describes it: many runs that differ in a few settings and in their seeds. `base`: fields of the experiment that
    all trials share; `folder`: folder of the file; `grid`: values to try by dotted field; `search`: a search in place of a grid; `seeds`:
    with each of which every setting is run; `metric`: the measure that is compared, a key of MEASURES; `pairs`: named comparisons of two
    settings; `order`: seed that shuffles the trials; `plain`: the whole file as plain data with the base in it: two studies are the same if
    it is equal.
    """

    name: str
    base: Mapping[str, Any]
    folder: Path
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    search: Search | None = None
    seeds: tuple[int, ...] = (1,)
    metric: str = "final_metric"
    pairs: Mapping[str, tuple[Varied, Varied]] = field(default_factory=dict)
    order: int = 1
    plain: Mapping[str, Any]

    @cached_property
    def settings(self) -> int:
        """The number of settings: the trials of a search, or the combinations of the grid's values. Seeds do not count."""
        return self.search.trials if self.search else math.prod(map(len, self.grid.values()))

    @property
    def count(self) -> int:
        """The number of trials: every setting once with every seed."""
        return self.settings * len(self.seeds)

    @property
    def fields(self) -> Sequence[str]:
        """Dotted names of the fields that vary between trials, except the seed, in the file's order."""
        return list(self.search.space if self.search else self.grid)

    def rises(self, metric: Metric) -> bool:
        """Return whether a higher value of the measure that the study compares is better. `metric`: the experiments' own metric, which
        decides if the measure is `final_metric` or `best_metric`.
        """
        rises = MEASURES[self.metric]
        return metric.higher_wins if rises is None else rises


def read(path: Path) -> Study:
    """Read a study's YAML file and return the study. Raises ConfigError that lists every fault of the file, one per line. Settings are not
    validated yet: `TrialFactory` does that.
    """
    return parse_study(documents.read(path), path)


def parse_study(plain: dict[str, Any], path: Path) -> Study:
    """Build the study that the plain data of a study file describes. `path`: the file, for messages, for the default name (its stem) and
    for relative paths. Raises ConfigError that lists every fault, one per line.
    """
    if "architecture" in plain and "base" not in plain:
        raise ConfigError(
            f"{path}: this is an experiment; expected a study, with `base:` (an experiment) and `grid:` or `search:`, as in docs/using.md. "
            f"To run the experiment: crossover run {path}"
        )
    faults, known = list[str](), ("name", "base", "grid", "search", "seeds", "metric", "pairs", "order")
    faults += [
        f"{name}: unknown; expected {', '.join(known)}{did_you_mean(str(name), list(known))}"
        for name in plain
        if name not in known
    ]
    base = _parse_base(plain.get("base"), path, faults)
    grid, search = _parse_grid(plain.get("grid"), faults), _parse_search(plain.get("search"), faults)
    if plain.get("grid") and plain.get("search"):
        faults.append("search: cannot be combined with grid; keep one of the two")
    metric = plain.get("metric", "final_metric")
    if metric not in MEASURES:
        faults.append(
            f"metric: {metric!r} is unknown; expected one of {', '.join(MEASURES)}{did_you_mean(str(metric), list(MEASURES))}"
        )
    if search and search.pruner[0] != "NopPruner" and metric not in ("final_metric", "best_metric"):
        faults.append(
            f"search.pruner: a pruner judges epochs, but {metric} is known only of whole runs; leave it out, or set metric: best_metric"
        )
    if search and search.pruner[0] != "NopPruner" and plain.get("seeds", 1) != 1:
        faults.append("search.pruner: a pruner judges a setting by one run; leave out the pruner or the seeds")
    order = plain.get("order", 1)
    if type(order) is not int:
        faults.append(f"order: {order!r}; expected a whole number, the seed for the order of trials")
    name = str(plain.get("name", path.stem))
    seeds, pairs = _parse_seeds(plain.get("seeds", 1), faults), _parse_pairs(plain.get("pairs") or {}, grid, faults)
    if faults:
        raise ConfigError("\n".join([f"{path}:", *(f"  {fault}" for fault in faults)]))
    return Study(
        name=name,
        base=base,
        folder=path.parent,
        grid=grid,
        search=search,
        seeds=seeds,
        metric=metric,
        pairs=pairs,
        order=order,
        plain={**plain, "name": name, "base": base},
    )


def _parse_base(given: Any, path: Path, faults: list[str]) -> dict[str, Any]:
    """Return the base experiment as plain data. `given`: its fields, or the name of its file, which is looked up beside `path` and then in
    the current folder. If it cannot be read, add a message to `faults` and return {}.
    """
    if isinstance(given, dict):
        return given
    if not isinstance(given, str):
        faults.append("base: expected the file of an experiment, such as config/spirt.yaml, or its fields")
        return {}
    places = [path.parent / given, Path(given)]
    try:
        return documents.read(next((place for place in places if place.is_file()), places[0]))
    except ConfigError as error:
        faults.append(f"base: {error}")
        return {}


def _parse_grid(given: Any, faults: list[str]) -> dict[str, list[Any]]:
    """Return the grid's lists of values by field; {} if there is no grid. For each entry that is not allowed (reserved field, no list,
    empty or repeated values) add a message to `faults`; entries that are no lists are left out. `given`: the file's `grid:`.
    """
    if given is None:
        return {}
    if not isinstance(given, dict):
        faults.append("grid: expected fields with lists of values, such as `training.learning_rate: [0.05, 0.1]`")
        return {}
    for name, values in given.items():
        if why := RESERVED_FIELDS.get(name):
            faults.append(f"grid.{name}: {why}")
        elif not isinstance(values, list):
            faults.append(f"grid.{name}: {values!r}; expected a list, such as [{values!r}]")
        elif not values:
            faults.append(
                f"grid.{name}: the list is empty, so there would be no trial; give values or leave the field out"
            )
        elif twice := [value for n, value in enumerate(values) if value in values[:n]]:
            faults.append(f"grid.{name}: {twice[0]!r} is listed twice; give each value once")
    return {str(name): values for name, values in given.items() if isinstance(values, list)}


def _parse_seeds(given: Any, faults: list[str]) -> tuple[int, ...]:
    """Return the seeds in the file's order. A number N stands for the seeds 1 to N. If they are malformed, add a message to `faults` and
    return (1,); if one is repeated, add a message. `given`: the file's `seeds:`.
    """
    if type(given) is int and given >= 1:
        return tuple(range(1, given + 1))
    if not isinstance(given, list) or not given or any(type(each) is not int for each in given):
        faults.append(f"seeds: {given!r}; expected the number of seeds, such as 5, or a list of whole numbers")
        return (1,)
    if twice := sorted({each for each in given if given.count(each) > 1}):
        faults.append(
            f"seeds: {', '.join(map(str, twice))} repeated; a run with the same seed is no new sample, so give each seed once"
        )
    return tuple(given)


def _parse_search(given: Any, faults: list[str]) -> Search | None:
    """Return the search; None if the file has none, or if `search:` lacks `trials` or `space` or has unknown keys. Adds a message to
    `faults` for each fault; the search is returned in spite of others. `given`: the file's `search:`.
    """
    if given is None:
        return None
    known = ("trials", "space", "sampler", "pruner")
    if not isinstance(given, dict) or not given.keys() >= {"trials", "space"} or given.keys() - set(known):
        faults.append(f"search: expected trials and space, and optionally sampler and pruner; found {given!r}")
        return None
    trials, space = given["trials"], given["space"]
    if type(trials) is not int or trials < 1:
        faults.append(f"search.trials: {trials!r}; expected the number of settings to try, such as 20")
    for name, values in space.items() if isinstance(space, dict) else [("space", space)]:
        bounds = (
            isinstance(values, dict)
            and values.keys() >= {"low", "high"}
            and values.keys() <= {"low", "high", "log", "step"}
        )
        if why := RESERVED_FIELDS.get(name):
            faults.append(f"search.space.{name}: {why}")
        elif not bounds and not (isinstance(values, list) and values):
            faults.append(
                f"search.space.{name}: {values!r}; expected low and high (optionally log or step), or a list of choices"
            )
    named = {part: _parse_optuna_name(part, given[part], faults) for part in ("sampler", "pruner") if part in given}
    return Search(trials=trials, space=space, **named)


def _parse_optuna_name(part: str, given: Any, faults: list[str]) -> tuple[str, Mapping[str, Any]]:
    """Return (name of an Optuna class, its arguments), from `MedianPruner` or from `MedianPruner: {n_warmup_steps: 2}`. If `given` has
    neither form, add a message to `faults` and return ("", {}). `part`: "sampler" or "pruner", for the message.
    """
    if isinstance(given, str):
        return given, {}
    if isinstance(given, dict) and len(given) == 1:
        ((name, arguments),) = given.items()
        if isinstance(arguments, dict):
            return str(name), arguments
    faults.append(f"search.{part}: {given!r}; expected the name of an Optuna class, alone or with its arguments")
    return "", {}


def _parse_pairs(given: Any, grid: Mapping[str, Sequence[Any]], faults: list[str]) -> dict[str, tuple[Varied, Varied]]:
    """Return the named comparisons: by name, two settings, each a mapping from fields of the grid to values of the grid. Adds a message to
    `faults` for each malformed comparison or value that is not in the grid, and leaves it out. `given`: the file's `pairs:`.
    """
    found = dict[str, tuple[Varied, Varied]]()
    if not isinstance(given, dict):
        faults.append(f"pairs: {given!r}; expected names, each with a pair of settings from the grid")
        return found
    for name, two in given.items():
        sides = two if isinstance(two, list) and len(two) == 2 and all(isinstance(each, dict) for each in two) else []
        wrong, own = list[str](), list[Varied]()
        for side in sides:
            alike = {
                key: [each for each in grid.get(key, ()) if _are_equal(each, value)] for key, value in side.items()
            }
            wrong += [f"pairs.{name}: {key}: {side[key]!r} is not in the grid" for key in side if not alike[key]]
            own.append({key: values[0] for key, values in alike.items() if values})  # 1 finds the grid's 1.0
        if not sides or sides[0] == sides[1] or sides[0].keys() != sides[1].keys():
            wrong = [f"pairs.{name}: {two!r}; expected two different settings with the same fields of the grid"]
        faults += wrong
        if not wrong:
            found[str(name)] = (own[0], own[1])
    return found


def _are_equal(one: object, other: object) -> bool:
    """Return whether two values are equal in YAML: 1 equals 1.0, but not true."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)

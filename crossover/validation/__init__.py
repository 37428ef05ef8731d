"""From an experiment's YAML to a frozen Experiment, once, at the edge; inside, it is trusted.

    text --documents.parse--> plain data --documents.apply_override--> overrides --recipes--> the recipe's values
         --fields--> Experiment --combinations--> accepted

Every problem of a stage is reported at once, one line each, and names field, value, expectation and way out.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from crossover import user_code
from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.validation import account_file, combinations, documents, fields, recipes
from crossover.validation.combinations import choose_compute
from crossover.workflow.architecture import architecture_of

__all__ = ["check_deployment", "load", "validate"]


def load(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read the YAML file `path`, apply the `overrides` (texts such as `training.epochs=3`), and return the checked experiment. Raises
    ConfigError with the problems, as `validate` does; a file that cannot be read, or a malformed override, is reported alone.

    From then on, this process searches modules with user code in the file's folder, then in the current one, and nowhere else.
    """
    plain = documents.read(Path(path))
    user_code.set_folders(Path(path).parent, Path.cwd())
    try:
        commanded = [documents.apply_override(plain, override) for override in overrides]
        return validate(plain, commanded=commanded)
    except ConfigError as error:
        raise ConfigError(f"{path}:\n{_indent(str(error).splitlines())}") from None


def validate(plain: Mapping[str, Any], *, commanded: Collection[str] = ()) -> Experiment:
    """Return the experiment that `plain`, the content of a YAML, describes, after all checks that do not concern AWS. Raises ConfigError,
    one problem a line: all of the recipe, or if there are none all of single fields, or if there are none all of combinations.

    `commanded`: dotted names of the fields that the command line has set; they win over a recipe. If the database cannot compute what the
    experiment needs, the result has `database.compute: fetch`.
    """
    experiment = fields.build_experiment(recipes.apply_recipe(plain, commanded=commanded))
    problems = [problem for check in combinations.ALWAYS for problem in check(experiment)]
    try:
        architecture = architecture_of(experiment)
    except ConfigError as unknown:
        problems.insert(0, str(unknown))
    else:
        problems += [problem for check in combinations.OF_THE_TREE for problem in check(experiment, architecture)]
        problems += architecture.checks(experiment)
    _refuse(problems)
    return choose_compute(experiment)


def check_deployment(experiment: Experiment) -> None:
    """Raise ConfigError, with every problem, if a valid experiment cannot run on AWS; or if config/account.yaml is invalid, or its network
    is in another availability zone than the experiment asks for. No request is sent to AWS.
    """
    account_file.load().place_in_zone(experiment)
    architecture = architecture_of(experiment)
    _refuse([problem for check in combinations.DEPLOYMENT for problem in check(experiment, architecture)])


def _refuse(problems: Sequence[str]) -> None:
    """Raise ConfigError with all `problems`, one a line; do nothing if there are none."""
    if problems:
        raise ConfigError("\n".join(problems))


def _indent(lines: Iterable[str]) -> str:
    """Return the lines as one text, each indented by two spaces."""
    return "\n".join(f"  {line}" for line in lines)

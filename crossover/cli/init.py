"""`crossover init`: the experiment's YAML file, from four answers."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

import typer

from crossover.advice import own_model
from crossover.advice import question as asking
from crossover.cli.advise import (
    ClassesOption,
    DropOption,
    Epochs,
    GpuQuota,
    HeaderOption,
    LabelOption,
    Often,
    read_table_options,
    write_model_experiment,
)
from crossover.cli.arguments import Debug
from crossover.errors import ConfigError
from crossover.learning import formats
from crossover.reports import tables as terminal
from crossover.validation import documents

UNKNOWN = "unknown"  # GPU quota; `?` and an empty answer mean it too


def _check_model(given: str) -> str:
    """Return the model as `file.py:factory` or `module:factory`; a Python file is completed by its only factory. Raises ConfigError if the
    file does not exist, or has no factory or several.
    """
    if not own_model.is_model(given):
        if not Path(given).is_file():
            raise ConfigError(f"--model: {given}: no such file; expected a Python file, or file.py:factory")
        return str(documents.find_only_factory(Path(given)))
    own_model.locate(given, "--model")
    return given


def _check_data(given: str) -> str:
    """Return the name of the data if it is a loader whose file exists, or a file that may be a CSV. Raises ConfigError otherwise."""
    if ":" in given and not Path(given).exists():
        own_model.locate(given, "--data")
        return given
    if not Path(given).exists():
        raise ConfigError(f"--data: {given}: no such file; expected a CSV file, or module:loader")
    if problem := formats.explain_other_format(Path(given)):
        raise ConfigError(f"--data: {given}: {problem}")
    return given


def _check_often(given: str) -> str:
    """Return how often the model is trained. Raises ConfigError for a word that is not in Often."""
    if given not in get_args(Often):
        raise ConfigError(f"--every: {given!r} is not allowed; expected once, hour, day, week or month")
    return given


def _check_quota(given: str) -> str:
    """Return the GPU quota, UNKNOWN for `?` or nothing. Raises ConfigError if it is neither a number of vCPUs nor `none`."""
    if given.strip().lower() in ("", "?", UNKNOWN):
        return UNKNOWN
    try:
        asking.parse_constraints(None, None, None, None, given.strip())
    except ConfigError as error:
        raise ConfigError(f"{error}; ? if you do not know") from None
    return given.strip()


@dataclass(frozen=True)
class InitQuestion:
    """A question of `init`. `words`: the text; `usual`: answer if the user only presses Enter; `check`: function that returns the answer in
    its usual form, or raises ConfigError.
    """

    words: str
    usual: str
    check: Callable[[str], str]


QUESTIONS = {
    "--model": InitQuestion("Which model? A Python file, or file.py:factory", "mine.py", _check_model),
    "--data": InitQuestion("Which data? A CSV file, or module:loader", "data.csv", _check_data),
    "--every": InitQuestion("How often do you train it? once, hour, day, week or month", "once", _check_often),
    "--gpu-quota": InitQuestion(
        "What is the account's GPU quota? none, a number of vCPUs, or ? if you do not know (AWS console: Service Quotas, EC2, G instances)",
        UNKNOWN,
        _check_quota,
    ),
}


def init(
    model: Annotated[str | None, typer.Option(help="Python file that defines the model, or file.py:factory.")] = None,
    data: Annotated[str | None, typer.Option(help="CSV file of numbers, or module:loader.")] = None,
    every: Annotated[Often | None, typer.Option(help="How often you train it.")] = None,
    gpu_quota: GpuQuota = None,
    label: LabelOption = None,
    classes: ClassesOption = None,
    header: HeaderOption = None,
    drop: DropOption = None,
    epochs: Epochs = None,
    debug: Debug = False,
) -> None:
    """Ask four questions, write the experiment's YAML file, and print the command to run next. An option answers its question."""
    given = {"--model": model, "--data": data, "--every": every, "--gpu-quota": gpu_quota}
    answers = _answer_questions(given)
    table = read_table_options(label, classes, header, drop)
    path = write_model_experiment(answers["--model"], answers["--data"], epochs, table)
    training = documents.read(path)["training"]
    size = training.get("batch_size", "the default number of")
    terminal.show(f"written: {path} ({training['epochs']} epochs, minibatches of {size} samples; change them there)")
    # With --probe, as `advise` of a model without a YAML file: the same answer by both ways.
    command = ["crossover", "advise", str(path), "--probe", "--every", answers["--every"]]
    command += [] if answers["--gpu-quota"] == UNKNOWN else ["--gpu-quota", answers["--gpu-quota"]]
    command += [] if epochs in (None, training["epochs"]) else ["--epochs", str(epochs)]  # of an earlier command's file
    terminal.show(f"next: {shlex.join(command)}")


def _answer_questions(given: dict[str, str | None]) -> dict[str, str]:
    """Return the checked answers by option. A question without an answer is asked on the terminal, again until the answer is accepted.
    `given`: by option, None if it is not on the command line. Raises ConfigError for a wrong one of these, and if a question other than
    that of the quota has no answer and standard input is no terminal.
    """
    answers = {option: QUESTIONS[option].check(text) for option, text in given.items() if text is not None}
    is_terminal = sys.stdin.isatty()
    for option in [each for each in QUESTIONS if each not in answers]:
        if is_terminal:
            answers[option] = _ask(QUESTIONS[option])
        elif option == "--gpu-quota":
            answers[option] = UNKNOWN
        else:
            raise ConfigError(
                f"{option}: missing, and standard input is not a terminal, so no question can be asked; give it as an option"
            )
    return answers


def _ask(question: InitQuestion) -> str:
    """Return the user's checked answer to the question, which is asked again, after the reason, until the answer is accepted."""
    while True:
        try:
            return question.check(typer.prompt(question.words, default=question.usual))
        except ConfigError as error:
            terminal.show(str(error), stderr=True)

"""`crossover advise`: how should I train this, by when, for how much. Every figure is projected."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from crossover.architecture import load
from crossover.cli.arguments import AsJson, Debug, Override, TakeOver, accepted, print_json
from crossover.cli.waiting import waiting
from crossover.errors import ConfigError, NoProjection
from crossover.experiment import Experiment
from crossover.reports import terminal
from crossover.reports.terminal import TextTable
from crossover.validation import load as load_experiment

if TYPE_CHECKING:
    from crossover.advice.advice import Advice
    from crossover.advice.wishes import Wishes

PROBE_S, FEW_S = 45.0, 3.0  # of minibatches of one's own, asked for and unasked
NOTHING_HOLDS = 3  # the exit status of an answer that holds no wish

Deadline = Annotated[str | None, typer.Option(help="Until the model must be there, such as 45min or 2h; held at p95.")]
BudgetOption = Annotated[str | None, typer.Option(help="Dollars that one run may cost in full; held at p95.")]
Target = Annotated[float | None, typer.Option(help="What the metric on the validation set must reach; needs evidence.")]
Runs = Annotated[
    list[Path] | None,
    typer.Option(help="Folders of finished runs that show after how many epochs a target is reached."),
]
OnHand = Annotated[str | None, typer.Option(help="What you may use, of lambda,ec2,gpu,spot.  [default: all]")]
AskedFile = Annotated[
    Path,
    typer.Argument(
        help="An experiment, for example config/spirt.yaml; or a model alone, model.py:factory, with --data.",
        show_default=False,
    ),
]
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data", help="With a model alone: a CSV of numbers whose last column is the label, or module:loader."
    ),
]
Epochs = Annotated[int | None, typer.Option(min=1, help="How many epochs.  [default: the file's, or 10]")]
ProbeOption = Annotated[
    bool, typer.Option("--probe", help="Measure your model and data on this machine for a minute first.")
]
Tune = Annotated[
    Literal["memory"] | None,
    typer.Option(help="Instead: dollars and time of this experiment over the memory of each function."),
]
MeasureOnAws = Annotated[
    Literal["aws"] | None,
    typer.Option(
        help="With --tune memory: measure the deployed experiment's dearest function at five sizes, within --budget."
    ),
]
OutFolder = Annotated[Path, typer.Option(help="Folder for the YAML files, advice.html, advice.csv and advice.json.")]


def advise(
    config: AskedFile,
    override: Override = None,
    data: DataOption = None,
    epochs: Epochs = None,
    deadline: Deadline = None,
    budget: BudgetOption = None,
    target: Target = None,
    runs: Runs = None,
    on_hand: OnHand = None,
    probe: ProbeOption = False,
    tune: Tune = None,
    on: MeasureOnAws = None,
    out: OutFolder = Path("advice"),
    take_over: TakeOver = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say how to train an experiment's model: which architecture, how many workers, what memory; by when, for how much."""
    from crossover.advice import wishes

    wished = wishes.wishes(deadline, budget, target, on_hand)
    config, probe_s = _asked(config, data, epochs, probe=probe)
    override = [*(override or []), *([f"training.epochs={epochs}"] if epochs is not None else [])]
    if on and not tune:
        raise ConfigError("--on aws: measures for --tune memory, which is not given; advice itself is projected")
    experiment = _trained(config, override, None if tune else wished)
    if tune:
        others = {"--deadline": deadline, "--target": target, "--runs": runs, "--on-hand": on_hand}
        others |= {"--budget": budget if not on else None, "--probe": probe or None}
        asks = "" if take_over else f"advise {config} --tune memory --on aws"
        _tune(experiment, wished.budget_usd, others, on=on, asks=asks)
        return
    found, notes = _searched(experiment, wished, target, runs or [], probe_s=probe_s)
    from crossover.advice import page, tables, writing  # matplotlib comes with it

    written = writing.write(found, out, config=config)
    report = page.write(found, out, notes, written[0])
    if as_json:
        files = [str(path) for path in (*written, report)]
        print_json({**writing.as_json(found), "notes": [*notes, *tables.notes(found)], "files": files})
    else:
        show(found, notes)
        terminal.show(f"written: {', '.join(str(path) for path in written)}", f"report: {report}", *_verdict(found))
    if not found.met:
        raise typer.Exit(NOTHING_HOLDS)


def _verdict(found: "Advice") -> list[str]:
    from crossover.advice import advice as advising

    here = [found.here.words] if found.here else []
    return [f"[projected] {words}" for words in (advising.sentence(found), advising.line(found), *here)]


def _trained(config: Path, override: list[str], wished: "Wishes | None") -> Experiment:
    """The experiment, which trains a model; a first estimate for what is `wished` is told before torch is imported."""
    from crossover.advice import first_look

    experiment = load_experiment(config, override)
    if not load(experiment.architecture).trains:
        raise ConfigError(
            f"{experiment.name}: {experiment.architecture} trains nothing; advise is about training a model"
        )
    if experiment.training.steps is not None:
        raise ConfigError(
            f"training.steps: {experiment.training.steps} are other numbers of samples with the other minibatches and workers that advise "
            "compares; leave it out: whole epochs are expected"
        )
    if wished is not None:
        _told_first(first_look.of_known(experiment, wished))
    return accepted(config, override)


def _searched(
    experiment: Experiment, wished: "Wishes", target: float | None, runs: list[Path], *, probe_s: float
) -> tuple["Advice", list[str]]:
    """The answer, and what it rests on, line by line"""
    from crossover.advice import advice as advising
    from crossover.advice import evidence, first_look, here, resting, subject
    from crossover.advice.advice import Advice

    settings, said = [experiment], list[str]()
    if target is not None:
        shown, said = evidence.asked(experiment, runs, target)
        settings = [each.experiment for each in shown]
    elif runs:
        raise ConfigError("--runs: is evidence for --target, which is not given; expected both, or neither")
    measured = None
    told = bool(first_look.of_known(experiment, wished))  # before torch was imported
    if probe_s:
        from crossover.advice import probe as probing

        if not told:
            told = _told_first(first_look.words(*subject.of(experiment)[:2], wished))
        with waiting("measuring this model beside MobileNet"):
            measured = probing.probe(experiment, most_s=probe_s)
    try:
        each = list[tuple[Advice, list[str]]]()
        with waiting("simulating candidates", whole=False):
            for setting in settings:
                question, sizes, notes = subject.of(setting, measured=measured)
                told = told or _told_first(first_look.words(question, sizes, wished))
                each.append((advising.advise(question, wished, sizes), notes))
        found, notes = min(each, key=lambda one: advising.standing(one[0]))
        if measured is not None:
            found = replace(found, here=here.of(found, measured))
        notes = [*said, *notes, resting.words(found)]
    except NoProjection as unknown:
        raise ConfigError(f"no advice for {experiment.name}, {wished.words}: {unknown}") from unknown
    return found, notes


def _told_first(words: str) -> bool:
    if words:
        terminal.show(f"[projected] a first estimate: {words}. All ways are searched now.", stderr=True)
    return True


def _asked(config: Path, data: str | None, epochs: int | None, *, probe: bool) -> tuple[Path, float]:
    """The experiment's file, which a model alone becomes, and for how many seconds it is measured."""
    from crossover.advice import own_model

    if not own_model.is_model(str(config)):
        if data is not None:
            raise ConfigError(
                f"--data: {config} says what its data is; expected --data with a model alone, model.py:factory"
            )
        return config, PROBE_S * probe
    path = own_model.written(str(config), data, epochs)
    terminal.show(f"the experiment: {path}", stderr=True)
    return path, PROBE_S if probe else FEW_S


def _tune(
    experiment: Experiment, budget_usd: float | None, others: Mapping[str, object], *, on: str | None, asks: str
) -> None:
    """The memory of its functions; `others`: options that say nothing to that; `asks`: the command that asks whose the stack is."""
    if told := [name for name, value in others.items() if value is not None]:
        raise ConfigError(
            f"{told[0]}: says nothing to --tune memory, which takes the file as it is; leave one of them out"
        )
    from crossover.cli import memory_tuning

    memory_tuning.measure(experiment, budget_usd, asks=asks) if on else memory_tuning.project(experiment)


def show(found: "Advice", notes: list[str]) -> None:
    """The named ones, the front, the best of each architecture, and why the others are not the answer."""
    from crossover.advice import tables

    terminal.show(TextTable("[projected] which one", tables.CARDS_HEAD, tables.cards(found)))
    terminal.show(
        TextTable("[projected] the front of time against dollars", tables.FRONT_HEAD, tables.front(found.front))
    )
    if found.unknown:
        terminal.show(
            TextTable("[projected] accuracy unknown: other updates", tables.FRONT_HEAD, tables.front(found.unknown))
        )
    terminal.show(
        TextTable("[projected] the best of each other architecture", tables.REJECTED_HEAD, tables.rejected(found))
    )
    for note in [*notes, *tables.notes(found)]:
        terminal.show(f"note: {note}")

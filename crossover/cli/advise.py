"""`crossover advise`: how should I train this, by when, for how much. Every figure is projected."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from crossover.architecture import load
from crossover.cli.arguments import AsJson, Config, Debug, Override, TakeOver, accepted, print_json
from crossover.cli.waiting import waiting
from crossover.errors import ConfigError, NoProjection
from crossover.experiment import Experiment
from crossover.reports import terminal
from crossover.reports.terminal import TextTable
from crossover.validation import load as load_experiment

if TYPE_CHECKING:
    from crossover.advice.advice import Advice
    from crossover.advice.wishes import Wishes

NOTHING_HOLDS = 3  # the exit status of an answer that holds no wish

Deadline = Annotated[str | None, typer.Option(help="Until the model must be there, such as 45min or 2h; held at p95.")]
BudgetOption = Annotated[str | None, typer.Option(help="Dollars that one run may cost in full; held at p95.")]
Target = Annotated[float | None, typer.Option(help="What the metric on the validation set must reach; needs evidence.")]
Runs = Annotated[
    list[Path] | None,
    typer.Option(help="Folders of finished runs that show after how many epochs a target is reached."),
]
OnHand = Annotated[str | None, typer.Option(help="What you may use, of lambda,ec2,gpu,spot.  [default: all]")]
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
    config: Config,
    override: Override = None,
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
    from crossover.advice import first_look, wishes

    wished = wishes.wishes(deadline, budget, target, on_hand)
    experiment = load_experiment(config, override or [])
    if not load(experiment.architecture).trains:
        raise ConfigError(
            f"{experiment.name}: {experiment.architecture} trains nothing; advise is about training a model"
        )
    if on and not tune:
        raise ConfigError("--on aws: measures for --tune memory, which is not given; advice itself is projected")
    if not tune and (first := first_look.of_known(experiment, wished)):
        _told_first(first)
    experiment = accepted(config, override)
    if tune:
        others = {"--deadline": deadline, "--target": target, "--runs": runs, "--on-hand": on_hand}
        others |= {"--budget": budget if not on else None, "--probe": probe or None}
        asks = "" if take_over else f"advise {config} --tune memory --on aws"
        _tune(experiment, wished.budget_usd, others, on=on, asks=asks)
        return
    found, notes = _searched(experiment, wished, target, runs or [], probe=probe)
    from crossover.advice import advice as advising
    from crossover.advice import tables, writing

    written = writing.write(found, out, config=config)
    from crossover.advice import page  # matplotlib comes with it

    report = page.write(found, out, notes, written[0])
    if as_json:
        files = [str(path) for path in (*written, report)]
        print_json({**writing.as_json(found), "notes": [*notes, *tables.notes(found)], "files": files})
    else:
        show(found, notes)
        terminal.show(f"written: {', '.join(str(path) for path in written)}")
        terminal.show(f"report: {report}")
        terminal.show(f"[projected] {advising.sentence(found)}")
        terminal.show(f"[projected] {advising.line(found)}")
    if not found.met:
        raise typer.Exit(NOTHING_HOLDS)


def _searched(
    experiment: Experiment, wished: "Wishes", target: float | None, runs: list[Path], *, probe: bool
) -> tuple["Advice", list[str]]:
    """The answer, and what it rests on, line by line"""
    from crossover.advice import advice as advising
    from crossover.advice import evidence, first_look, resting, subject
    from crossover.advice.advice import Advice

    settings, said = [experiment], list[str]()
    if target is not None:
        shown, said = evidence.asked(experiment, runs, target)
        settings = [each.experiment for each in shown]
    elif runs:
        raise ConfigError("--runs: is evidence for --target, which is not given; expected both, or neither")
    measured = None
    if probe:
        from crossover.advice import probe as probing

        with waiting("measuring this model beside MobileNet"):
            measured = probing.probe(experiment)
    try:
        each = list[tuple[Advice, list[str]]]()
        with waiting("simulating candidates", whole=False):
            for setting in settings:
                question, sizes, notes = subject.of(setting, measured=measured)
                known = each or first_look.of_known(experiment, wished)  # which is told before torch is imported
                if not known and (first := first_look.words(question, sizes, wished)):
                    _told_first(first)
                each.append((advising.advise(question, wished, sizes), notes))
        found, notes = min(each, key=lambda one: advising.standing(one[0]))
        notes = [*said, *notes, resting.words(found)]
    except NoProjection as unknown:
        raise ConfigError(f"no advice for {experiment.name}, {wished.words}: {unknown}") from unknown
    return found, notes


def _told_first(words: str) -> None:
    terminal.show(f"[projected] a first estimate: {words}. All ways are searched now.", stderr=True)


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

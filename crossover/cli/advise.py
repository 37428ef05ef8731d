"""`crossover advise`, and how it measures the memory of functions on AWS."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from crossover import bundling
from crossover.cli.arguments import (
    AsJson,
    Debug,
    Override,
    TakeOver,
    check_writable,
    command_words,
    load_runnable,
    print_json,
    show_waiting,
)
from crossover.cli.signals import stop_on_signals
from crossover.errors import ConfigError, NoProjection, UserError, print_line
from crossover.experiment import Experiment, Table
from crossover.learning.kept import keep_results
from crossover.reports import display, tables
from crossover.reports import tables as terminal
from crossover.reports.tables import TextTable
from crossover.running import account, running_costs
from crossover.running.account import explain_aws_errors
from crossover.stores.deployed_clients import is_aws
from crossover.user_code import display_path
from crossover.validation import documents
from crossover.validation import load as load_experiment
from crossover.workflow.architecture import architecture_of
from crossover.workflow.infrastructure import NETWORK, shared_stacks

if TYPE_CHECKING:
    from crossover.advice.advice import Advice
    from crossover.advice.explain import FirstEstimate
    from crossover.advice.own_speed import Probe
    from crossover.advice.question import Constraints, Sizes
    from crossover.advice.recurrence import HourlyCost
    from crossover.running.measuring import MeasuredSize, UnmeasuredSize


# --- memory tuning ----------------------------------------------------------------------------------------------------

TIME_LIMIT_FACTOR = 4  # times the projected seconds of an invocation before Lambda ends it
MIN_TIME_LIMIT_S = 60


def print_projected_sizes(experiment: Experiment) -> None:
    """Simulate a run with each function at each memory size, one function at a time, and print a table of the time and dollars, notes, and
    the cheapest size of each function. Raises ConfigError if the experiment has no functions.
    """
    from crossover.advice import question as question_
    from crossover.advice import tuning

    question, sizes, notes = question_.build_question(experiment)
    found = tuning.simulate_sizes(question, sizes)
    best = tuning.cheapest_sizes(found)
    rows = [
        [
            each.step,
            f"{each.memory_mb:,}",
            display.seconds(each.outcome.seconds) if each.outcome else display.DASH,
            display.usd(each.outcome.usd) if each.outcome else display.DASH,
            ", ".join(
                [
                    *(["as in the file"] if each.own else []),
                    *(["cheapest"] if each is best.get(each.step) else []),
                    *([each.problem] if each.problem else []),
                ]
            ),
        ]
        for each in found
    ]
    head = ["function", "MB", "run time", "run cost", ""]
    tables.show(TextTable("[projected] memory of one function changed at a time", head, rows))
    for note in notes:
        tables.show(f"note: {note}")
    sizes_ = ", ".join(f"{name}: {each.memory_mb}" for name, each in best.items())
    tables.show(f"[projected] cheapest size of each function: functions.memory_mb: {{{sizes_}}}")


def print_measured_sizes(experiment: Experiment, budget_usd: float | None, *, asks: str) -> None:
    """Measure the most expensive function of the deployed experiment at up to five memory sizes on AWS, and print what an invocation costs
    at each and what was spent. The function's own size is restored at the end.

    `budget_usd`: most dollars that the measurement may cost; `asks`: command that the error message repeats if the stack belongs to another
    owner, "" to skip that check. Raises UserError if there is no budget or the stack belongs to another owner, and the errors of
    `measuring.measure_sizes`; but a budget that is too small for further sizes only ends the measurement. Sizes that were measured before
    an error are printed.
    """
    from crossover.advice import question as question_
    from crossover.advice import tuning
    from crossover.running import measuring
    from crossover.running.monitor import renewing_session

    if budget_usd is None:
        raise UserError(
            "--on aws: measuring invokes functions and costs money; give the most dollars it may cost, such as --budget 0.25"
        )
    question, sizes, _ = question_.build_question(experiment)
    step, chosen, seconds = tuning.choose_sizes_to_measure(question, sizes)
    budget = measuring.BudgetTracker(budget_usd, question.prices)
    found, label, as_it_was = list[measuring.MeasuredSize | measuring.UnmeasuredSize](), "", True
    limit_s = max(MIN_TIME_LIMIT_S, ceil(TIME_LIMIT_FACTOR * seconds))
    try:
        with explain_aws_errors(), stop_on_signals():
            session, _ = renewing_session()
            if asks:
                name = f"{experiment.project}-{experiment.name}"
                account.check_owner(session, name, owner=experiment.owner, command=asks)
            label = "measured-aws" if is_aws(session) else "measured-local"
            for each in measuring.measure_sizes(
                experiment, step, chosen, session=session, budget=budget, timeout_s=limit_s
            ):
                found.append(each)
    except measuring.BudgetTooSmall as dear:
        tables.show(f"note: {len(found)} of {len(chosen)} sizes were measured: {dear}")
    except measuring.NotRestored:
        as_it_was = False
        raise
    finally:  # what was paid for is told whatever ended it
        if found:
            _print_sizes(found, step, label)
        left = "memory sizes and timeouts are restored; " if as_it_was else ""
        tables.show(f"note: {left}spent at most ${budget.spent_usd:.4f} of ${budget_usd:g}")


def _print_sizes(found: "Sequence[MeasuredSize | UnmeasuredSize]", step: str, label: str) -> None:
    """Print a table of the measured memory sizes of one function, and the cheapest. `found`: results; `step`: the function's step; `label`:
    origin of the figures, measured-aws or measured-local.
    """
    from crossover.running.measuring import MeasuredSize, UnmeasuredSize

    sizes = [each for each in found if isinstance(each, MeasuredSize)]
    rows = [
        [
            f"{each.memory_mb:,}",
            str(each.invocations),
            display.seconds(each.seconds),
            display.usd(each.usd),
            f"{each.peak_mb:,}",
        ]
        for each in sizes
    ]
    head = ["MB", "invocations", "billed time", "cost of one", "peak MB"]
    tables.show(TextTable(f"[{label}] {step}, one round", head, rows))
    for each in found:
        if isinstance(each, UnmeasuredSize):
            tables.show(f"note: no measurement at {each.memory_mb:,} MB: {each.reason}")
    if sizes:
        cheapest = min(sizes, key=lambda each: each.usd)
        tables.show(f"[{label}] cheapest size: functions.memory_mb: {{{step}: {cheapest.memory_mb}}}")


# --- advise -----------------------------------------------------------------------------------------------------------
# `crossover advise`: the recommended way to train, with its time and cost. Every figure is projected.

PROBE_S, SHORT_PROBE_S = (
    45.0,
    3.0,
)  # time for measuring the user's minibatches: with --probe, and by default for a model alone
USUAL_PARTS = (300, 800)  # of a search, as its questions in the documentation took
UNMEASURED = "the speed of your model, from its multiply-accumulates; --probe measures it for a minute, and compares this machine too"
CREDITS = "CPU credits"  # of an instance that computes all the time, as one that waits for runs does not
NOTHING_HOLDS = 3  # exit status if no candidate meets the constraints

Deadline = Annotated[
    str | None,
    typer.Option(help="Time limit for one run, such as 45min, 2h or 1.5d. It must hold at the 95th percentile."),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(help="Most dollars that one run may cost (total AWS bill). It must hold at the 95th percentile."),
]
Target = Annotated[
    float | None,
    typer.Option(help="Validation metric that must be reached, such as 0.85. Needs earlier runs as evidence (--runs)."),
]
Runs = Annotated[
    list[Path] | None,
    typer.Option(help="Folders of finished runs: evidence of how many epochs --target takes."),
]
OnHand = Annotated[str | None, typer.Option(help="What you may use: any of lambda,ec2,gpu,spot.", show_default="all")]
AskedFile = Annotated[
    Path,
    typer.Argument(
        help="The experiment's YAML file, such as config/spirt.yaml; or a model (model.py:factory) together with --data.",
        show_default=False,
    ),
]
DataOption = Annotated[
    str | None,
    typer.Option("--data", help="Data of a model given as model.py:factory. A CSV file of numbers, or module:loader."),
]
LabelOption = Annotated[
    str | None,
    typer.Option(
        "--label", metavar="COLUMN", help="CSV: name or number of the label's column.", show_default="guessed"
    ),
]
ClassesOption = Annotated[
    bool | None,
    typer.Option(
        "--classes/--numbers",
        help="CSV: the label is a class (classification) or a number (regression).",
        show_default="guessed",
    ),
]
HeaderOption = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="CSV: row 1 has the columns' names, or has none.",
        show_default="guessed",
    ),
]
DropOption = Annotated[
    list[str] | None,
    typer.Option(
        "--drop", metavar="COLUMN", help="CSV: ignore this column as well. Repeatable; `none` keeps all columns."
    ),
]
Epochs = Annotated[int | None, typer.Option(min=1, help="Number of epochs.", show_default="the file's, or 10")]
ProbeOption = Annotated[
    bool, typer.Option("--probe", help="First measure your model and data on this machine for about a minute.")
]
MeasuredOption = Annotated[
    Path | None,
    typer.Option(
        help="File that `crossover probe` wrote: use your model's measured GPU steps instead of projected ones."
    ),
]
DetailsOption = Annotated[
    bool, typer.Option("--details", help="Also print the tables of all options and the assumptions, as on the page.")
]
Often = Literal["hour", "day", "week", "month", "once"]
EveryOption = Annotated[
    Often,
    typer.Option(help="How often you train the model. Adds the cost per month, with every start-up."),
]
GpuQuota = Annotated[
    str | None,
    typer.Option(
        metavar="none|VCPUS",
        help="The account's quota of GPU vCPUs (`crossover doctor` prints it).",
        show_default="unknown, treated as none",
    ),
]
Tune = Annotated[
    Literal["memory"] | None,
    typer.Option(help="Compare memory sizes of each Lambda function of this experiment, instead of giving advice."),
]
MeasureOnAws = Annotated[
    Literal["aws"] | None,
    typer.Option(
        help="With --tune memory: measure the most expensive deployed function at five sizes, within --budget."
    ),
]
OutFolder = Annotated[Path, typer.Option(help="Folder for advice.html, advice.csv, advice.json and the YAML files.")]


@keep_results()
def advise(
    config: AskedFile,
    override: Override = None,
    data: DataOption = None,
    label: LabelOption = None,
    classes: ClassesOption = None,
    header: HeaderOption = None,
    drop: DropOption = None,
    epochs: Epochs = None,
    deadline: Deadline = None,
    budget: BudgetOption = None,
    target: Target = None,
    runs: Runs = None,
    on_hand: OnHand = None,
    gpu_quota: GpuQuota = None,
    every: EveryOption = "once",
    probe: ProbeOption = False,
    measured: MeasuredOption = None,
    details: DetailsOption = False,
    tune: Tune = None,
    on: MeasureOnAws = None,
    out: OutFolder = Path("advice"),
    take_over: TakeOver = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Recommend how to train a model: which architecture, how many workers and how much memory, with projected time and cost."""
    from crossover.advice import question as asking

    wished = asking.parse_constraints(deadline, budget, target, on_hand, gpu_quota)
    table = read_table_options(label, classes, header, drop)
    config, probe_s = _find_experiment_file(config, data, epochs, table, override or [], probe=probe)
    override = [*(override or []), *([f"training.epochs={epochs}"] if epochs is not None else [])]
    if on and not tune:
        raise ConfigError("--on aws: works only with --tune memory; advice itself is projected and never measured")
    experiment, first = _load_with_first_estimate(config, override, None if tune else wished)
    if tune:
        others: dict[str, object] = {"--deadline": deadline, "--target": target, "--runs": runs, "--on-hand": on_hand}
        others |= {"--gpu-quota": gpu_quota, "--every": None if every == "once" else every}
        others |= {"--budget": budget if not on else None, "--probe": probe or None, "--measured": measured}
        asks = "" if take_over else f"crossover advise {config} --tune memory --on aws"
        _tune_memory(experiment, wished.budget_usd, others, on=on, asks=asks)
        return
    check_writable(out)  # not after a minute of search
    assumed = _is_minibatch_assumed(experiment, config, override, flags=data is not None)
    data_found, first = _report_data(experiment, wished, first, flags=data is not None, assumed=assumed)
    found, notes, sizes = _find_best_advice(experiment, wished, target, runs or [], probe_s=probe_s, gpu_row=measured)
    here = command_words(config, override)
    guesses = [_describe_assumed_minibatch(found, sizes)] if assumed else []
    if ":" in experiment.training.model and not found.question.calibration.compared:
        guesses.append(UNMEASURED)
    from crossover.advice import explain, page, recurrence

    monthly = recurrence.monthly_costs(found, every, hourly_cost=_compute_hourly_cost)
    if (way := recurrence.find_winner(monthly)) is not None:
        found = replace(found, month_usd=way.usd, month_runs=recurrence.count_runs(found, every), stays=way.stays)
    found = replace(found, sooner=recurrence.find_sooner(found, every, hourly_cost=_compute_hourly_cost))
    changed = explain.explain_change(found, first)
    due = page.plan_files(found, out, config=config)
    schedule = recurrence.describe_schedule(found, every, monthly, here=here, file=next(iter(due.texts)))
    if not as_json:  # before the caveats and the page, which take as long as a part of the search
        terminal.show(*_verdict_lines(found, changed, guesses))
        if monthly:
            rows = [[each.way, *each.figures, each.why_not or display.DASH] for each in monthly]
            terminal.show(TextTable(f"[projected] trained every {every}", recurrence.WAYS_HEAD, rows), schedule.words)
            print_line(schedule.line)  # not broken into lines, so that it can be copied into a crontab
        print_choices(found, due.yamls)
    notes = [*guesses, *notes, explain.caveats_of(found)]
    said = [*([changed] if changed else []), *notes, *explain.list_notes(found)]
    answer = {**page.as_json(found), "data": data_found, "notes": said}
    answer["every"] = {
        "often": every,
        "monthly": [{"label": "projected", "words": each.words, **asdict(each)} for each in monthly],
    }
    answer["files"] = [] if not due.yamls else [*map(str, due.paths), str(out / page.PAGE)]
    if as_json:
        print_json(answer)
    elif details:
        print_details(found, notes)
        terminal.show(*_verdict_lines(found)[:1])
    page.write_files(
        due, answer, found
    )  # after the answer was printed, so that a refusal to overwrite files does not lose it
    report = page.write_page(
        found, out, notes, list(due.texts), here=here, every=every, monthly=monthly, schedule=schedule
    )
    if not as_json:
        terminal.show(f"written: {', '.join(map(str, due.paths))}")
        terminal.show(f"report, with all options and assumptions{'' if details else ' (or add --details)'}: {report}")
    if not found.met:
        raise typer.Exit(NOTHING_HOLDS)


def read_table_options(
    label: str | None, classes: bool | None, header: bool | None, drop: Sequence[str] | None
) -> Table:
    """Return how a CSV is read by the options of the command line, each None if it was not given. `classes`: whether the label is a class,
    otherwise it is a number.
    """
    kind: Literal["classes", "numbers"] | None = None if classes is None else "classes" if classes else "numbers"
    return Table(label=label, kind=kind, header=header, drop=tuple(drop) if drop else None)


def _verdict_lines(found: "Advice", changed: str = "", guesses: Sequence[str] = ()) -> list[str]:
    """Return the first lines of the printed advice: the headline, alternatives, the needed quota, what drives time and cost, exact figures,
    and this machine's estimate if it was measured. `changed`: sentence on why the first estimate is not the answer, or ""; `guesses`: what
    was assumed because the question leaves it open, and the options that change it.
    """
    from crossover.advice import advice as advising

    here = [found.here.words] if found.here else []
    first, *rest = advising.verdict(found)
    assumed = [f"Assumed: {each}." for each in guesses]
    quota, drivers = advising.quota_line(found), advising.describe_drivers(found)
    lines = (first, *assumed, changed, *rest[:-1], quota, drivers, rest[-1], *here)
    return [f"[projected] {words}" for words in lines if words]


def _compute_hourly_cost(experiment: Experiment) -> "HourlyCost":
    """Return the dollars per hour of the deployed experiment, between runs and during one. AWS is not asked."""
    from crossover.advice.recurrence import HourlyCost

    standing, running = (running_costs.list_hourly_costs(experiment, running=each) for each in (False, True))
    machines = [line for line in running if line not in standing and not line.item.startswith(CREDITS)]
    network = running_costs.list_shared_costs(experiment, NETWORK) if NETWORK in shared_stacks(experiment) else []
    return HourlyCost(
        running_costs.sum_usd(standing),
        running_costs.sum_usd(machines),
        running_costs.sum_usd(network),
        running_costs.usd_of_expiry_polls(),
    )


def _load_with_first_estimate(
    config: Path, override: list[str], wished: "Constraints | None"
) -> "tuple[Experiment, FirstEstimate | None]":
    """Load and check the experiment of the file `config`. Return it, and the first estimate, None if none was printed: it is printed before
    torch is imported, which takes seconds, if `wished` (deadline and budget) is given and model and data come with the project. `override`:
    the --set options. Raises ConfigError if the experiment sets training.steps.
    """
    from crossover.advice import explain

    experiment = load_experiment(config, override)
    if experiment.training.steps is not None:
        raise ConfigError(
            f"training.steps: {experiment.training.steps} steps train different numbers of samples with the different minibatches and "
            "numbers of workers that advise compares; leave it out and set training.epochs"
        )
    first = explain.estimate_of_known(experiment, wished) if wished is not None else None
    _print_first_estimate(first)
    return load_runnable(config, override), first


def _is_minibatch_assumed(experiment: Experiment, config: Path, override: list[str], *, flags: bool) -> bool:
    """Return whether the experiment trains the user's own model, or on the user's own data, with a minibatch that the user did not choose:
    it is given by no --set option (`override`), and not in the file `config`, or that was written for a model given alone (now if `flags`,
    or before) and nobody has edited it.
    """
    from crossover.advice import own_model

    training = documents.read(config).get("training")
    ours = flags or own_model.is_unedited(config)
    given = isinstance(training, Mapping) and "batch_size" in training and not ours
    named = any(each.startswith("training.batch_size=") for each in override)
    own = ":" in experiment.training.model or ":" in experiment.data.dataset
    return own and not given and not named


def _describe_assumed_minibatch(found: "Advice", sizes: "Sizes") -> str:
    """Return in words which minibatch was assumed, and what a larger one would change or which option sets it. `sizes`: sizes of the
    model.
    """
    from crossover.advice import explain

    larger = explain.describe_larger_minibatch(found, sizes) or "--set training.batch_size=N may change the answer"
    return f"minibatches of {found.question.base.training.batch_size:,} samples; {larger}"


def _report_data(
    experiment: Experiment, wished: "Constraints", first: "FirstEstimate | None", *, flags: bool, assumed: bool
) -> "tuple[Mapping[str, Any] | None, FirstEstimate | None]":
    """Print to standard error how the experiment's data was understood and a first estimate, then try user code: it trains a few
    minibatches. Return how the data was understood as a dictionary, None if nothing is known of the data; and the first estimate.

    `wished`: deadline and budget for the first estimate; `first`: the estimate that was printed before, if any; `flags`: whether the
    printed lines name options of `advise` instead of fields of the YAML file; `assumed`: whether nobody chose the minibatch. Raises
    OwnCodeError, ConfigError or DataError if the data or the user code cannot be used.
    """
    from crossover.learning import understood

    used = bundling.list_user_code_with_loader(experiment)
    if used:
        from crossover.learning.datasets import load  # torch

        data: Mapping[str, Any] | None = load(architecture_of(experiment).resolve(experiment)).understood
    else:
        data = understood.describe_known(experiment)
    if data:
        terminal.show(*understood.format_lines(data, flags=flags), stderr=True)
    if assumed:
        size = f"minibatches of {experiment.training.batch_size:,} samples are assumed"
        terminal.show(f"training: {size}; --set training.batch_size=N may change the answer", stderr=True)
    if first is None:
        first = _estimate_measured(experiment, wished)
        _print_first_estimate(first)
    if used:
        from crossover.running.preparing import try_training  # reports and their plots

        try_training(experiment)
    return data, first


def _estimate_measured(experiment: Experiment, wished: "Constraints") -> "FirstEstimate | None":
    """Return a first estimate for a model and data that had to be loaded to know their sizes; None if nothing can be projected, which the
    search reports.
    """
    from crossover.advice import explain
    from crossover.advice import question as subject

    try:
        return explain.first_estimate(*subject.build_question(experiment)[:2], wished)
    except NoProjection:
        return None


def _find_best_advice(
    experiment: Experiment,
    wished: "Constraints",
    target: float | None,
    runs: list[Path],
    *,
    probe_s: float,
    gpu_row: Path | None = None,
) -> tuple["Advice", list[str], "Sizes"]:
    """Search all ways to train the experiment, and return (the best advice, notes, a sentence each, the sizes of the model).

    `wished`: deadline, budget and resources; `target`: value of the metric to reach, or None; `runs`: folders of finished runs as evidence
    of how many epochs the target takes; `probe_s`: seconds for which the model is measured on this machine, 0 not to measure; `gpu_row`:
    file that `crossover probe` wrote. Raises ConfigError if nothing can be projected, if `runs` is given without `target`, or if no run is
    evidence for it.
    """
    from crossover.advice import advice as advising
    from crossover.advice import evidence, explain
    from crossover.advice import question as subject
    from crossover.advice.advice import Advice
    from crossover.advice.question import Sizes

    settings, said = [experiment], list[str]()
    if target is not None:
        shown, said = evidence.settings_reaching(experiment, runs, target)
        settings = [each.experiment for each in shown]
    elif runs:
        raise ConfigError("--runs: needs --target, for which the runs are evidence; give both or neither")
    measured = None
    if probe_s:
        from crossover.advice import probe as probing

        least_s = max(probe_s, probing.MOST_S)
        with show_waiting(f"measuring this model and MobileNet for comparison, at least {least_s:.0f} s"):
            measured = probing.probe(experiment, least_s=probe_s)
        said += _keep_speed(experiment, measured)
    try:
        each = list[tuple[Advice, list[str], Sizes]]()
        with show_waiting("simulating candidates", usual=USUAL_PARTS):
            for setting in settings:
                question, sizes, notes = subject.build_question(setting, measured=measured, gpu_row=gpu_row)
                each.append((advising.advise(question, wished, sizes), notes, sizes))
        found, notes, sizes = min(each, key=lambda one: advising.advice_sort_key(one[0]))
        if measured is not None:
            found = replace(found, here=explain.local_estimate_of(found, measured))
    except NoProjection as unknown:
        raise ConfigError(f"no advice for {experiment.name}, {wished.words}: {unknown}") from unknown
    return found, [*said, *notes], sizes


def _keep_speed(experiment: Experiment, measured: "Probe") -> list[str]:
    """Write the measured speed of a user's model beside its file, so that other commands project its runs alike. Return notes: that the
    file could not be written, if so; else none.
    """
    from crossover.advice import own_speed
    from crossover.advice.question import make_sizes_function

    if ":" not in experiment.training.model:
        return []
    workload = make_sizes_function(experiment)(experiment)
    try:
        path = own_speed.keep_speed(measured, experiment, workload)
    except OSError as error:
        return [
            f"the measured speed is not kept, so plan, project and breakeven take it from multiply-accumulates: {error}"
        ]
    terminal.show(
        f"written: {display_path(path)}, the measured speed, with which all commands project this model", stderr=True
    )
    return []


def _print_first_estimate(first: "FirstEstimate | None") -> None:
    """Print the first estimate and what it leaves out to standard error, or nothing if there is none."""
    if first is not None:
        left_out = f"several workers, functions below {first.least_mb:,} MB and interruptions of spot instances"
        terminal.show(f"[projected] first estimate: {first.words}. It leaves out {left_out}.", stderr=True)


def _find_experiment_file(
    config: Path, data: str | None, epochs: int | None, table: Table, override: Sequence[str] = (), *, probe: bool
) -> tuple[Path, float]:
    """Return (path, seconds): the experiment's YAML file, and the seconds for which its model is to be measured on this machine, 0 for not
    at all.

    If `config` is a model, such as model.py:factory, or a Python file with a single one, its YAML file is written first. `data`, `table`:
    data of the model, and how a CSV is read; `epochs`: number of epochs, None for the default; `override`: the --set options; `probe`:
    whether --probe is given. Raises ConfigError if `data` or `table` is given with an experiment's file.
    """
    from crossover.advice import own_model

    if not own_model.is_model(str(config)):
        if config.suffix == ".py" and config.is_file():
            return _find_experiment_file(
                documents.find_only_factory(config), data, epochs, table, override, probe=probe
            )
        documents.check_is_no_data(config)
        if data is not None:
            raise ConfigError(
                f"--data: {config} already names its data; --data is only for a model given as model.py:factory"
            )
        if table != Table():
            raise ConfigError(
                f"--label, --classes, --numbers, --header, --drop: {config} already defines how its data is read; use "
                "--set data.table.label=..., data.table.kind, data.table.header or data.table.drop"
            )
        return config, PROBE_S * probe
    path = write_model_experiment(str(config), data, epochs, table, override)
    terminal.show(f"experiment: {path}", stderr=True)
    return path, PROBE_S if probe else SHORT_PROBE_S


def write_model_experiment(
    model: str, data: str | None, epochs: int | None, table: Table, override: Sequence[str] = ()
) -> Path:
    """Print to standard error which data is read, which may take long, then do what `own_model.write_experiment` does."""
    from crossover.advice import own_model

    if data is not None:
        terminal.show(f"reading {data}, then trying {model} on it", stderr=True)
    return own_model.write_experiment(model, data, epochs, table, override=override)


def _tune_memory(
    experiment: Experiment, budget_usd: float | None, others: Mapping[str, object], *, on: str | None, asks: str
) -> None:
    """Print the cheapest memory size: of the most expensive function, measured on AWS, if `on` is given; otherwise of all functions, by
    simulation.

    Measuring invokes functions and changes their memory size meanwhile. `budget_usd`: most dollars that it may cost, required then (or
    UserError is raised); `others`: {option: value} of options that do not apply here; `asks`: command that the error message repeats if the
    stack belongs to another owner, "" to skip that check. Raises ConfigError if one of `others` has a value.
    """
    if told := [name for name, value in others.items() if value is not None]:
        raise ConfigError(
            f"{told[0]}: has no effect with --tune memory, which compares sizes for the file as it is; leave one of them out"
        )

    print_measured_sizes(experiment, budget_usd, asks=asks) if on else print_projected_sizes(experiment)


def print_choices(found: "Advice", files: Sequence[Path] = ()) -> None:
    """Print the table of the recommended candidates and their files. `files`: YAML files of the candidates `found.told`, in their order;
    empty if none is written.
    """
    from crossover.advice import explain

    title = "[projected] the candidates to choose from"
    terminal.show(TextTable(title, explain.CARDS_HEAD, explain.card_rows(found, files)))


def print_details(found: "Advice", notes: list[str]) -> None:
    """Print the other tables of the advice: the Pareto front, candidates of unknown accuracy, and the best of each other architecture; then
    `notes` and the assumptions.
    """
    from crossover.advice import explain

    different = "[projected] accuracy unknown: these train with a different algorithm"
    for title, head, rows in (
        ("[projected] Pareto front of cost and time", explain.FRONT_HEAD, explain.front_rows(found.front)),
        (different, explain.FRONT_HEAD, explain.front_rows(found.unknown)),
        ("[projected] best of each other architecture", explain.REJECTED_HEAD, explain.rejected_rows(found)),
    ):
        if rows:
            terminal.show(TextTable(title, head, rows))
    for note in [*notes, *explain.list_notes(found)]:
        terminal.show(f"note: {note}")

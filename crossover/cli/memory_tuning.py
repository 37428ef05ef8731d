"""`crossover advise --tune memory`: dollars and time over the memory of each function; with `--on aws` of one, measured."""

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from crossover.account.credentials import aws_errors_explained
from crossover.account.proofs import evidence
from crossover.account.resources import stacks
from crossover.cli.signals import as_ctrl_c
from crossover.errors import UserError
from crossover.experiment import Experiment
from crossover.reports import display, terminal
from crossover.reports.terminal import TextTable

if TYPE_CHECKING:
    from crossover.running.measuring import Measured, Unmeasured

ROOM = 4  # times the projected seconds of an invocation before Lambda ends it
LEAST_S = 60


def project(experiment: Experiment) -> None:
    """Every function at every size, by simulation."""
    from crossover.advice import subject, tuning

    question, sizes, notes = subject.of(experiment)
    found = tuning.tuned(question, sizes)
    best = tuning.best(found)
    rows = [
        [
            each.step,
            f"{each.memory_mb:,}",
            display.seconds(each.outcome.seconds) if each.outcome else display.DASH,
            display.usd(each.outcome.usd) if each.outcome else display.DASH,
            ", ".join(
                [
                    *(["as the file says"] if each.own else []),
                    *(["cheapest"] if each is best.get(each.step) else []),
                    *([each.problem] if each.problem else []),
                ]
            ),
        ]
        for each in found
    ]
    head = ["function", "MB", "time of the run", "dollars of the run", ""]
    terminal.show(TextTable("[projected] one function at a time", head, rows))
    for note in notes:
        terminal.show(f"note: {note}")
    sizes_ = ", ".join(f"{name}: {each.memory_mb}" for name, each in best.items())
    terminal.show(f"[projected] cheapest, each by itself: functions.memory_mb: {{{sizes_}}}")


def measure(experiment: Experiment, budget_usd: float | None, *, asks: str) -> None:
    """The deployed experiment's dearest function at five sizes. Raises UserError without a budget, where the stack is another owner's
    (`asks`: the command that then says so; "" asks nobody), and as `measuring.measured` does.
    """
    from crossover.advice import subject, tuning
    from crossover.running import measuring
    from crossover.running.patience import renewing_session

    if budget_usd is None:
        raise UserError(
            "--on aws: invokes functions, which costs; --budget says how many dollars at most, such as --budget 0.25"
        )
    question, sizes, _ = subject.of(experiment)
    step, chosen, seconds = tuning.to_measure(question, sizes)
    purse = measuring.Purse(budget_usd, question.prices)
    found, label, as_it_was = list[measuring.Measured | measuring.Unmeasured](), "", True
    limit_s = max(LEAST_S, ceil(ROOM * seconds))
    try:
        with aws_errors_explained(), as_ctrl_c():
            session, _ = renewing_session()
            if asks:
                name = f"{experiment.project}-{experiment.name}"
                stacks.check_owner(session, name, owner=experiment.owner, command=asks)
            label = "measured-aws" if evidence.is_aws(session) else "measured-local"
            for each in measuring.measured(experiment, step, chosen, session=session, purse=purse, timeout_s=limit_s):
                found.append(each)
    except measuring.BudgetTooSmall as dear:
        terminal.show(f"note: {len(found)} of {len(chosen)} sizes tried: {dear}")
    except measuring.NotPutBack:
        as_it_was = False
        raise
    finally:  # what was paid for is told whatever ended it
        if found:
            _tell(found, step, label)
        left = "sizes and time limit are as they were; " if as_it_was else ""
        terminal.show(f"note: {left}spent at most ${purse.spent_usd:.4f} of ${budget_usd:g}")


def _tell(found: "Sequence[Measured | Unmeasured]", step: str, label: str) -> None:
    from crossover.running.measuring import Measured, Unmeasured

    sizes = [each for each in found if isinstance(each, Measured)]
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
    head = ["MB", "invocations", "billed", "dollars of one", "peak MB"]
    terminal.show(TextTable(f"[{label}] {step}, one round", head, rows))
    for each in found:
        if isinstance(each, Unmeasured):
            terminal.show(f"note: nothing measured at {each.memory_mb:,} MB: {each.reason}")
    if sizes:
        cheapest = min(sizes, key=lambda each: each.usd)
        terminal.show(f"[{label}] cheapest: functions.memory_mb: {{{step}: {cheapest.memory_mb}}}")

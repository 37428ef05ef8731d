"""Search schedules of faults that break a promise, on a virtual clock: `python -m tests.chaos.world`, or `make chaos`."""

import json
import re
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossover.cli.arguments import Config, Debug, Override, load_runnable
from crossover.cli.main import run_command
from crossover.errors import UserError, print_line

if TYPE_CHECKING:
    from tests.chaos.world.trials import Trial, Trials

SEEDS = 2**32
EVERY_S = 10.0  # between two lines of progress


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main(arguments: Sequence[str]) -> None:
    """Run the command line `arguments` and end as `crossover` does: one message per failure, and its exit status."""
    run_command(app, arguments, name="python -m tests.chaos.world")


@app.command()
def search(
    config: Config,
    override: Override = None,
    seeds: Annotated[
        str, typer.Option(help="From one to another, both included, such as 0-99; or a single one.")
    ] = "0-99",
    processes: Annotated[int, typer.Option(help="Side by side.", min=1)] = 2,
    faults: Annotated[
        Path | None,
        typer.Option(help="A schedule instead of the seeds' own, as JSON; its ties are broken by the first seed."),
    ] = None,
    first: Annotated[bool, typer.Option("--first", help="Stop at the first finding, as it is.")] = False,
    digests: Annotated[
        bool, typer.Option("--digests", help="Print the digest of each seed's history and nothing else.")
    ] = False,
    history: Annotated[Path | None, typer.Option(help="File for every request of the first seed's run.")] = None,
    debug: Debug = False,
) -> None:
    """Look for a schedule of faults that breaks a promise: kills, lost replies, late messages, outages, on a virtual clock."""
    numbers = _seeds(seeds)
    experiment = load_runnable(config, override)
    from tests.chaos.world.trials import Trials, reduce_experiment, run_trials

    trials = Trials(reduce_experiment(experiment))
    if faults is not None or history is not None:
        _one(trials, numbers[0], faults, history)
        return
    if digests:
        for seed in numbers:
            print_line(f"seed {seed}: {trials.run_seed(seed).history.digest}")
        return
    began_s, told_s, tried, struck = time.monotonic(), time.monotonic(), 0, 0
    found = 0
    with closing(run_trials(trials, numbers, processes=processes)) as each_trial:
        for trial in each_trial:
            tried, struck = tried + 1, struck + len(trial.struck)
            if trial.findings:
                found += 1
                _show(trial if first else trials.shrink(trial), config)
                if first:
                    break
            if time.monotonic() - told_s > EVERY_S:
                told_s = time.monotonic()
                print_line(f"{tried:,} of {len(numbers):,} seeds, {found} with findings")
    seconds = time.monotonic() - began_s
    print_line(
        f"[measured-local] {tried:,} schedules, {struck / max(1, tried):.1f} faults took effect in each, {found} with findings; "
        f"{seconds:.0f} s, {3_600 * tried / seconds:,.0f} an hour"
    )
    if found:
        raise typer.Exit(1)


def _seeds(given: str) -> range:
    """Return the seeds that `--seeds` asks for, from text such as "7" or "0-99". Raises UserError if it is malformed."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", given)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if not first <= last < SEEDS:
        raise UserError(
            f"--seeds: {given!r}; expected one number or two, such as 0-99, the smaller one first, below {SEEDS}"
        )
    return range(first, last + 1)


def _one(trials: "Trials", seed: int, faults: Path | None, history: Path | None) -> None:
    """Run a single schedule, drawn by `seed` or read from the file `faults`, and print what happened. `history`: file for the whole
    history.
    """
    from tests.chaos.world.schedule import from_json

    if faults is None:
        trial = trials.run_seed(seed)
    else:
        try:
            given = json.loads(faults.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"--faults: {faults}: {error}; expected a list of faults as JSON") from None
        trial = trials.run_with(from_json(given, trials.undisturbed[1]), seed)
    for fault in trial.faults:
        print_line(f"{'  ' if fault in trial.struck else '  (never came) '}{fault}")
    for finding in trial.findings:
        print_line(f"broken: {finding}")
    print_line(f"history: {len(trial.history.entries):,} requests, digest {trial.history.digest}")
    if history is not None:
        history.write_text("\n".join(trial.history.lines()) + "\n", encoding="utf-8")
        print_line(f"written: {history}")
    if trial.findings:
        raise typer.Exit(1)


def _show(trial: "Trial", config: Path) -> None:
    """Print a trial's findings and faults, and the command that runs it again."""
    from tests.chaos.world.schedule import as_json

    print_line(f"seed {trial.seed}: " + "; ".join(trial.findings[:3]))
    for fault in trial.faults:
        print_line(f"    {fault}")
    print_line(
        f"    again: python -m tests.chaos.world {config} --seeds {trial.seed} --faults schedule.json, with schedule.json:"
    )
    print_line(f"    {json.dumps(as_json(trial.faults))}")


if __name__ == "__main__":
    main(sys.argv[1:])

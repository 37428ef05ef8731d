"""Overhead of a study: seconds of each trial beyond the runs themselves, and memory from the first trials to the last.

    python -m benchmarks.study [--trials 200] [--quick]

Digits, one worker, one epoch, inline. The overhead is a study's seconds per trial less those of the same runs, called one after another in
a process of their own: what remains is order, bookkeeping, tables and page. The start of Python and torch is left out of both.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.report import Figure, write

CONFIG = Path(__file__).parents[1] / "config" / "single.yaml"
WARM = 20  # trials until a process has all that it keeps


def read_resident_mb() -> float:
    """Return the memory in MB that this process uses now (resident set size)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def run_study(trials: int, folder: Path) -> tuple[list[float], float, float, float]:
    """Run a study with `trials` trials (one fewer if that is odd) in `folder`. Return (memory in MB after each trial, seconds in all,
    processor seconds in all, seconds of writing the tables).
    """
    from crossover.study import report, runner
    from crossover.study import trials as machines
    from crossover.study.file import parse_study
    from crossover.study.trials import TrialFactory, make_grid_trials

    plain = {
        "base": str(CONFIG),
        "grid": {"training.epochs": [1], "training.learning_rate": [0.05, 0.1]},
        "seeds": trials // 2,
    }
    asked, used = parse_study(plain, folder / "study.yaml"), list[float]()
    began, busy = time.perf_counter(), time.process_time()
    planned = make_grid_trials(asked, TrialFactory(asked, travels=False))
    runner.begin_study(asked, folder / "out", where="inline", resume=False)
    conductor = runner.Conductor(
        study=asked,
        out=folder / "out",
        machine=machines.InlineTrials(),
        tell=lambda line: used.append(read_resident_mb()),
    )
    rows = conductor.carry_out(planned, total=asked.count)
    ran = time.perf_counter()
    report.write(asked, rows, conductor.outcome.missing, folder / "out", spent_usd=conductor.spent_usd())
    done = time.perf_counter()
    return used, done - began, time.process_time() - busy, done - ran


def run_trials(trials: int, folder: Path) -> tuple[float, float]:
    """Run `trials` equal trials, which differ only in their seeds, directly in `folder`, without a study. Return (mean seconds of a run,
    mean processor seconds of a run).
    """
    from crossover.running import inline
    from crossover.study.file import parse_study
    from crossover.study.trials import TrialFactory, make_grid_trials

    plain = {"base": str(CONFIG), "grid": {"training.epochs": [1]}, "seeds": trials}
    asked = parse_study(plain, folder / "study.yaml")
    planned = make_grid_trials(asked, TrialFactory(asked, travels=False))
    began, busy = time.perf_counter(), time.process_time()
    for trial in planned:
        inline.run_inline(trial.experiment, folder / "runs" / trial.name, lambda progress: None)
    return (time.perf_counter() - began) / trials, (time.process_time() - busy) / trials


def main() -> None:
    """Compare a study with equal runs without a study, each in a process of its own, and write the figures. With `--part`, run only one of
    the two and print its figures.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="ten trials")
    parser.add_argument("--part", choices=["study", "runs"], help="alone, which prints its figures")
    asked = parser.parse_args()
    trials = 10 if asked.quick else asked.trials
    if asked.part:
        with TemporaryDirectory() as folder:
            if asked.part == "runs":
                run_trials(2, Path(folder) / "warm")
                print(*run_trials(trials, Path(folder)))
            else:
                run_trials(2, Path(folder) / "warm")
                used, *seconds = run_study(trials, Path(folder))
                print(used[min(WARM, trials - 1)], used[-1], max(used), *seconds)
        return
    parts = dict[str, list[list[float]]]()
    for part in ("runs", "study", "runs"):  # runs before and after: a machine's drift shows
        command = [sys.executable, "-m", "benchmarks.study", "--trials", str(trials), "--part", part]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        parts.setdefault(part, []).append(
            [float(each) for each in printed[-1].split()]
        )  # the runs' own lines come before
    run_s, run_busy_s = (statistics.mean(each[n] for each in parts["runs"]) for n in (0, 1))
    ((warm_mb, end_mb, most_mb, seconds, busy_s, tables_s),) = parts["study"]
    write(
        "study",
        [
            Figure("seconds of a run of digits, one epoch, inline", run_s, "s"),
            Figure(f"a study of {trials}: overhead of each trial", seconds / trials - run_s, "s", "<= 0.3"),
            Figure(
                "  in processor seconds, which others on the machine change less", busy_s / trials - run_busy_s, "s"
            ),
            Figure("  tables and page, once", tables_s, "s"),
            Figure(f"  memory after {WARM} trials", warm_mb, "MB"),
            Figure("  memory at the end, less that", end_mb - warm_mb, "MB", "<= 30"),
            Figure("  the most", most_mb, "MB"),
        ],
    )


if __name__ == "__main__":
    main()

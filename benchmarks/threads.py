"""One training step of MobileNet, batch 512, by one thread and by two, in alternating pairs: what a second vCPU is worth.

Measured by wall time, which everything else on the machine disturbs, and by the processor time of the calling thread. Threads that wait for
work sleep here instead of spinning, so that is the time the step would take on cores of its own.

    python -m benchmarks.threads [--quick] [--batch 512] [--pairs 7]
"""

import argparse
import os
import statistics
from time import perf_counter, process_time, thread_time

from benchmarks.report import Figure, write


def main() -> None:
    """Time training steps with one thread and with two, in turns, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="batch 16, two pairs: to see that it runs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.batch, arguments.pairs = 16, 2
    os.environ["OMP_WAIT_POLICY"] = "passive"  # read when torch is imported
    from benchmarks.step import make_learner_step

    steps = {threads: make_learner_step(arguments.batch, precision="fp32", threads=threads) for threads in (1, 2)}
    spent: dict[int, list[tuple[float, float, float]]] = {1: [], 2: []}
    for pair in range(-1, arguments.pairs):  # the first one warms up
        for threads, step in steps.items():
            began = perf_counter(), thread_time(), process_time()
            step()
            ended = perf_counter(), thread_time(), process_time()
            if pair >= 0:
                spent[threads].append((ended[0] - began[0], ended[1] - began[1], ended[2] - began[2]))
    figures = []
    for n, what in enumerate(("the clock", "the calling thread's processor time")):
        ratios = [one[n] / two[n] for one, two in zip(spent[1], spent[2], strict=True)]
        low, *_, high = sorted(ratios)
        figures.append(
            Figure(f"one thread / two, by {what}: median of {len(ratios)} pairs", statistics.median(ratios), "x")
        )
        figures.append(Figure("  least and most", low, "x"))
        figures.append(Figure("  ", high, "x"))
    for threads, measured in spent.items():
        for n, what in enumerate(("clock", "calling thread", "all threads")):
            figures.append(
                Figure(
                    f"  {threads} threads: median of a step, {what}",
                    statistics.median(each[n] for each in measured),
                    "s",
                )
            )
    write("threads", figures)


if __name__ == "__main__":
    main()

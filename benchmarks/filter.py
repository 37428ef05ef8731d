"""MLLess's filter against a memory copy of the same vector, in the same run, on one thread.

    python -m benchmarks.filter [--quick]      --quick: a small vector, few rounds: to see that it runs

The figures are ratios of medians taken in turns, at thresholds that send 5 % and 1 % of the coordinates.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.report import Figure, write
from crossover.algorithms import compression, significance


def measure_medians_s(
    work: dict[str, tuple[Callable[[], object], Callable[[], object]]], *, rounds: int
) -> dict[str, float]:
    """Return the median seconds of each timed function, by name. All are called in turns, `rounds` times after one round to warm up.
    `work`: by name, (preparation, timed function); the preparation is called before each call of its function, untimed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(rounds + 1):
        for name, (prepare, run) in work.items():
            prepare()
            began_s = time.perf_counter()
            run()
            spent_s = time.perf_counter() - began_s
            if turn:
                seconds[name].append(spent_s)
    return {name: statistics.median(values) for name, values in seconds.items()}


def measure_filter(label: str, elements: int, *, rounds: int) -> list[Figure]:
    """Time MLLess's filter and a memory copy on a vector of `elements` elements, and return the figures. `label`: the size in words;
    `rounds`: number of timed repetitions.
    """
    random = torch.Generator().manual_seed(1)
    shared, accumulated = torch.randn(elements, generator=random), 0.1 * torch.randn(elements, generator=random)
    residual, copy = accumulated.clone(), torch.empty(elements)
    ratios = accumulated.abs() / (shared + accumulated).abs()
    thresholds = {sent: float(ratios.kthvalue(round(elements * (1 - sent))).values) for sent in (0.05, 0.01)}

    def renew() -> None:
        """Restore the residual to its value before the filter."""
        residual.copy_(accumulated)

    def take(threshold: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the filter with this threshold; return (indexes, values) of what it takes from the residual."""
        return significance.take_significant(residual, shared, threshold=threshold, step=0)

    update = compression.encode(*take(thresholds[0.05]), elements=elements)
    found = measure_medians_s(
        {
            "copy": (renew, lambda: copy.copy_(shared)),
            "5 %": (renew, lambda: take(thresholds[0.05])),
            "1 %": (renew, lambda: take(thresholds[0.01])),
            "norm": (renew, lambda: significance.is_significant(residual, shared, threshold=1.0, step=0)),
            "add": (renew, lambda: compression.add_to(copy, update)),
        },
        rounds=rounds,
    )
    what = {
        "5 %": "filter by coordinate, 5 % sent",
        "1 %": "filter by coordinate, 1 % sent",
        "norm": "filter by norm",
        "add": "adding an update of 5 %",
    }
    return [
        Figure(f"memory copy, {label}", found["copy"] * 1_000, "ms"),
        *(
            Figure(
                f"{text} / memory copy, {label}", found[name] / found["copy"], "x", "<= 12" if name == "5 %" else None
            )
            for name, text in what.items()
        ),
    ]


def main() -> None:
    """Measure the filter for each size of vector and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a small vector, few rounds: to see that it runs")
    quick: bool = parser.parse_args().quick
    torch.set_num_threads(1)
    sizes = {"0.4 M": 400_000} if quick else {"3.2 M": 3_217_226, "11.17 M": 11_173_962}
    write(
        "filter",
        [each for label, size in sizes.items() for each in measure_filter(label, size, rounds=3 if quick else 15)],
    )


if __name__ == "__main__":
    main()

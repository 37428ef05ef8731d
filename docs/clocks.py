"""What the clocks say of settings whose figures others keep aside: printed before anybody compares (docs/simulation.md)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import sqrt

from crossover.reports.bands import Band, band
from crossover.simulation.calibration import AWS, AWS_2022, Calibration
from crossover.simulation.kernel import Luck

DRAWS, SEED = 10_000, 1
WITHOUT_PACKAGES = AWS.inits["zip"]["python310"]  # the nearest to Python 3.8
# Of Python 3.12 no INIT is handed out: between its neighbours, by factors.
PYTHON_3_12 = sqrt(AWS.inits["zip"]["python311"] * AWS.inits["zip"]["python313"])
HEAD = ["", "in milliseconds", "p5", "p50", "p95"]


def predictions() -> Iterator[tuple[str, str, Band]]:
    """By letter and setting: p5, p50 and p95 in milliseconds."""
    yield "a", "a task's end to the next one's start, chain of five, 128 MB, 2024, warm", _drawn(AWS, _warm_s)
    yield "b", "the same, the next cold", _drawn(AWS, _cold_s)
    for year, calibration in ((2024, AWS), (2022, AWS_2022)):
        yield "c", f"a Map's last branch to the next task, 256 MB, {year}, warm", _drawn(calibration, _warm_s)
        yield "c", f"that task to the one after it, 256 MB, {year}, warm", _drawn(calibration, _warm_s)
    yield "d", "a Map's join to the next task, 1,024 MB, 2022, all cold", _drawn(AWS_2022, _cold_s)
    init = replace(AWS, task_sigma=AWS.inits["zip"]["sigma"])
    for memory_mb in ("256", "1,024"):
        yield "e", f"INIT, Python 3.12, ARM, zip, {memory_mb} MB, summer of 2026", _drawn(init, _init_s)


def _warm_s(calibration: Calibration, luck: Luck) -> float:
    """Neither memory nor a Map makes a difference in what was measured."""
    return calibration.task_s * luck.task()


def _cold_s(calibration: Calibration, luck: Luck) -> float:
    started = replace(calibration, cold_s=WITHOUT_PACKAGES).starts_cold(torch=False, memory_mb=128, factor=luck.cold())
    return _warm_s(calibration, luck) + sum(started)


def _init_s(calibration: Calibration, luck: Luck) -> float:
    return PYTHON_3_12 * luck.task()


def _drawn(calibration: Calibration, seconds: Callable[[Calibration, Luck], float]) -> Band:
    luck = Luck(
        SEED,
        0,
        compute_sigma=0.0,
        request_sigma=0.0,
        task_sigma=calibration.task_sigma,
        cold_sigma=calibration.cold_sigma,
    )
    return band([1_000 * seconds(calibration, luck) for _ in range(DRAWS)])


def rows() -> list[list[str]]:
    return [[letter, setting, *(f"{value:.3g}" for value in found)] for letter, setting, found in predictions()]


def as_markdown() -> str:
    """The table of docs/simulation.md."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (HEAD, ["---"] * len(HEAD), *rows()))

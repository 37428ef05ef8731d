"""Cells measured by others, projected by the service models and judged: aggregating clients' gradients from S3.

Only cells that no fit has seen (config/held-out.yaml) count. Nine more were measured, but their results are kept by others: their
projections are printed, to be judged elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, inf, log
from statistics import median

from crossover.reports import prices
from crossover.reports.bill import gb_seconds
from crossover.reports.display import Band, band_of, describe_error_spread
from crossover.simulation.calibration import ASSUMED, AWS, Calibration, vcpus
from crossover.simulation.kernel import RandomFactors
from crossover.simulation.papers import is_cell_held_out
from crossover.simulation.repetitions import apply_session, list_draws
from lab.measurements import MIB, MeasuredCell, Round, load_rounds

SEED, DRAWS = 1, 200
RUNTIME_MB = 130  # assumed: Python, its S3 client, numpy
TIMEOUT_S = 900.0
COVERED = 0.9  # of a band from p5 to p95
CONSTANT = 1.58  # the band to beat: the median times and divided by it

SLOWEST, ROUND, DOLLARS = "slowest function, s", "round, level after level, s", "USD per 1,000 rounds"
GRADIENTS = {"vgg16": 512.3, "gpt2-medium": 1_353.5, "gpt2-large": 2_953.0, "5 GB": 5_120.0}  # in MiB
NAMES = {"grads_sharding": "shards", "lambda_fl": "tree", "lifl": "three levels"}
KEPT_ASIDE = tuple(
    MeasuredCell(
        gradient=gradient, gradient_mib=GRADIENTS[gradient], design=design, aggregators=count, memory_mb=memory_mb
    )
    for gradient, design, count, memory_mb in (
        ("vgg16", "grads_sharding", 4, 835),
        ("vgg16", "lambda_fl", 5, 1_987),
        ("vgg16", "lifl", 11, 1_987),
        ("gpt2-large", "grads_sharding", 4, 2_665),
        ("gpt2-large", "lambda_fl", 5, 3_008),
        ("gpt2-large", "lifl", 11, 3_008),
        ("5 GB", "grads_sharding", 8, 2_370),
        ("5 GB", "lambda_fl", 5, 3_008),
        ("5 GB", "lifl", 11, 3_008),
        ("gpt2-medium", "grads_sharding", 4, 2_048),
        ("gpt2-large", "grads_sharding", 4, 3_008),
    )
)


@dataclass(frozen=True, kw_only=True)
class ProjectedCell:
    """The projection of one warm round of a measured experiment (`MeasuredCell`): p5, p50 and p95 of each figure. `slowest_s`: seconds of
    the slowest function; `round_s`: seconds of the whole round, level after level; `usd_1000`: dollars of a thousand rounds; `impossible`:
    why AWS would not run it, in which case the figures mean nothing, "" if it would; `outside`: settings beyond the measured range.
    """

    slowest_s: Band  # the slowest function
    round_s: Band  # level after level, each as long as its slowest function
    usd_1000: Band  # of a thousand rounds, as AWS bills them
    impossible: str
    outside: tuple[str, ...]


@cache
def project_cell(cell: MeasuredCell, calibration_name: str = AWS.name) -> ProjectedCell:
    """Return the projection of a measured experiment over DRAWS random rounds; cached for the process. `calibration_name`: name of the
    calibration to use, that of `AWS` or of `ASSUMED`. Raises KeyError for another name.
    """
    calibration = {each.name: each for each in (AWS, ASSUMED)}[calibration_name]
    slowest, whole, dollars = [], [], []
    for draw in list_draws(SEED, DRAWS):
        levels = draw_levels_s(cell, apply_session(calibration, draw.session), seed=draw.seed)
        slowest.append(max(max(level) for level in levels))
        whole.append(sum(max(level) for level in levels))
        dollars.append(1_000 * price_round(cell, [each for level in levels for each in level]))
    limits = calibration.list_extrapolations(
        memory_mb=cell.memory_mb, object_bytes=cell.object_bytes, functions=max(len(n) for _, n in cell.levels)
    )
    impossible = _explain_impossible(cell, median(slowest))
    return ProjectedCell(
        slowest_s=band_of(slowest),
        round_s=band_of(whole),
        usd_1000=band_of(dollars),
        impossible=impossible,
        outside=limits,
    )


def draw_levels_s(cell: MeasuredCell, calibration: Calibration, *, seed: int) -> list[list[float]]:
    """Simulate one round of an experiment and return the seconds of each function, as one list per level. A function creates its client,
    reads its vectors one after another, adds them, divides and writes. `calibration`: speeds of AWS; `seed`: seed of the random factors:
    equal seeds give equal seconds.
    """
    objects = calibration.client(calibration.objects, memory_mb=cell.memory_mb, in_vpc=False)
    client_s, size = calibration.client_cpu_s / min(1.0, vcpus(cell.memory_mb)), cell.object_bytes
    found, number = [], 0
    for _, level in cell.levels:
        seconds = []
        for reads in level:
            factors = RandomFactors(
                seed, number, compute_sigma=calibration.compute_sigma, request_sigma=calibration.request_sigma
            )
            moving_s = objects.read.seconds(reads * size, reads) + objects.write.seconds(size)
            adding_s = calibration.arithmetic_s((reads + 1) * size, memory_mb=cell.memory_mb)
            seconds.append(
                (client_s + moving_s) * factors.draw_request_factor() + adding_s * factors.draw_compute_factor()
            )
            number += 1
        found.append(seconds)
    return found


def _explain_impossible(cell: MeasuredCell, slowest_s: float) -> str:
    """Return why AWS would not run the experiment: two vectors (sum and incoming one) do not fit into memory, or the slowest function
    exceeds 15 minutes. "" if it would run. `slowest_s`: seconds of the slowest function.
    """
    needed_mb = RUNTIME_MB + 2 * cell.object_bytes / MIB
    if needed_mb > cell.memory_mb:
        return f"needs {needed_mb:,.0f} MB of {cell.memory_mb:,}"
    return f"lasts {slowest_s:,.0f} s of {TIMEOUT_S:,.0f}" if slowest_s > TIMEOUT_S else ""


@cache
def _load_prices() -> prices.Prices:
    """Return the prices of AWS; read from config/pricing.yaml once per process."""
    return prices.load()


def price_round(cell: MeasuredCell, seconds: Sequence[float]) -> float:
    """Return the dollars that AWS bills for one round: x86 functions by the millisecond, and all requests. `seconds`: seconds of each
    function.
    """
    listed = _load_prices()
    gb_s = sum(gb_seconds(ceil(1_000 * each), memory_mb=cell.memory_mb) for each in seconds)
    reads = sum(sum(level) for _, level in cell.levels)
    return (
        gb_s * listed.of("lambda.x86.gb_second").usd
        + len(seconds) * (listed.of("lambda.request").usd + listed.of("s3.write").usd)
        + reads * listed.of("s3.read").usd
    )


# --- judging ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JudgedCell:
    """One figure of a held-out experiment, measured beside projected. `cell`: the experiment's measurements; `figure`: SLOWEST, ROUND or
    DOLLARS, which names the unit; `measured`: median over its warm rounds; `projected`: p5, p50 and p95 with the present calibration;
    `before`: p50 with the assumptions before anything was measured.
    """

    cell: MeasuredCell
    figure: str  # SLOWEST, ROUND or DOLLARS
    measured: float
    projected: Band
    before: float  # by what was assumed before

    @property
    def error(self) -> float:
        """Relative error of the projected median, as a positive number: 0.1 is 10 % too high or too low."""
        return abs(self.projected.p50 / self.measured - 1)

    @property
    def error_before(self) -> float:
        """Relative error of the projection from before anything was measured, as a positive number."""
        return abs(self.before / self.measured - 1)

    @property
    def is_covered(self) -> bool:
        """True if the measured figure lies between p5 and p95 of the projection, both included."""
        return self.projected.p5 <= self.measured <= self.projected.p95

    @property
    def score(self) -> float:
        """Interval score of the projected p5 and p95 (see `compute_interval_score`); lower is better."""
        return compute_interval_score(self.measured, self.projected.p5, self.projected.p95)

    @property
    def score_constant(self) -> float:
        """Interval score of the baseline: the range from the projected median divided by CONSTANT to the median times CONSTANT."""
        return compute_interval_score(self.measured, self.projected.p50 / CONSTANT, self.projected.p50 * CONSTANT)


def compute_interval_score(measured: float, low: float, high: float) -> float:
    """Return the interval score of the band from `low` to `high`, all positive, around the figure `measured`, by logarithms: the band's
    width, and 2 / (1 - COVERED) times the distance by which it misses the figure (Gneiting and Raftery, 2007). Less is better.
    """
    missed = max(0.0, log(low / measured)) + max(0.0, log(measured / high))
    return log(high / low) + 2 / (1 - COVERED) * missed


@cache
def judge_cells() -> tuple[JudgedCell, ...]:
    """Return all figures of every held-out experiment, measured beside projected, sorted by size of the gradient, design and number of
    aggregators. The figure of a whole round is left out if it has one level. Computed once per process. Raises DataError as `load_rounds`
    and `is_cell_held_out` do.
    """
    cells: dict[MeasuredCell, list[Round]] = {}
    for each in load_rounds():
        if not each.cold and is_cell_held_out(each.cell.key):
            cells.setdefault(each.cell, []).append(each)
    found: list[JudgedCell] = []
    order = sorted(cells, key=lambda cell: (cell.gradient_mib, cell.design, cell.aggregators))
    for cell in order:
        totals = [[function.total_s or inf for function in each.functions] for each in cells[cell]]
        now, before = project_cell(cell), project_cell(cell, ASSUMED.name)
        slowest, dollars = (
            median(max(each) for each in totals),
            1_000 * median(price_round(cell, each) for each in totals),
        )
        found.append(_build_judged(cell, SLOWEST, slowest, now.slowest_s, before.slowest_s))
        if len(cell.levels) > 1:
            whole = median(_add_levels(each) for each in cells[cell])
            found.append(_build_judged(cell, ROUND, whole, now.round_s, before.round_s))
        found.append(_build_judged(cell, DOLLARS, dollars, now.usd_1000, before.usd_1000))
    return tuple(found)


def _add_levels(measured: Round) -> float:
    """Return the seconds of a measured round: the sum over its levels of the slowest function's seconds; infinite if the time of a function
    is not known.
    """
    by_level: dict[str, float] = {}
    for each in measured.functions:
        by_level[each.level] = max(by_level.get(each.level, 0.0), each.total_s or inf)
    return sum(by_level.values())


def _build_judged(cell: MeasuredCell, figure: str, measured: float, now: Band, before: Band) -> JudgedCell:
    """Return one figure of an experiment, measured beside projected. `figure`: SLOWEST, ROUND or DOLLARS; `now`, `before`: its projections
    with the present calibration and with the earlier assumptions.
    """
    return JudgedCell(cell=cell, figure=figure, measured=measured, projected=now, before=before.p50)


def name_cell(cell: MeasuredCell) -> str:
    """Return the experiment's name in the tables, such as `vgg16 / shards, 4 x 835 MB`."""
    return f"{cell.gradient} / {NAMES[cell.design]}, {cell.aggregators} x {cell.memory_mb:,} MB"


HEAD = ["cell", "figure", "measured", "p5", "p50", "p95", "error", "before", "error before", "in the band"]
ASIDE_HEAD = ["cell", "possible", SLOWEST, ROUND, DOLLARS, "outside"]


def tabulate_held_out() -> list[list[str]]:
    """Return the rows of the table of held-out cells, with the columns of `HEAD`: the measured figure, quantiles of the projected one,
    its error, figure and error as projected before anything was measured, and whether the band holds the measured figure.
    """
    return [
        [
            name_cell(each.cell),
            each.figure,
            f"{each.measured:.3g}",
            *(f"{value:.3g}" for value in each.projected),
            f"{each.error:.0%}",
            f"{each.before:.3g}",
            f"{each.error_before:.0%}",
            "yes" if each.is_covered else "no",
        ]
        for each in judge_cells()
    ]


def tabulate_aside() -> list[list[str]]:
    """Return the rows of the table of experiments whose measured results others keep: whether they are possible, and projected figures as
    p50 (p5 to p95). The columns are those of ASIDE_HEAD.
    """

    def format_band(found: Band) -> str:
        """Return a band as text: p50 (p5 to p95), three digits each."""
        return f"{found.p50:.3g} ({found.p5:.3g} to {found.p95:.3g})"

    listed = []
    for cell in KEPT_ASIDE:
        found = project_cell(cell)
        bands = [format_band(each) for each in (found.slowest_s, found.round_s, found.usd_1000)]
        said = ["no: " + found.impossible, "", "", ""] if found.impossible else ["yes", *bands]
        listed.append([name_cell(cell), *said, "; ".join(found.outside)])
    return listed


def write_headline() -> str:
    """Return a sentence about the held-out experiments: spread of the errors, now and before anything was measured, and how many measured
    figures the projected ranges contain.
    """
    of = judge_cells()
    errors, before = [each.error for each in of], [each.error_before for each in of]
    scores = [sum(getattr(each, which) for each in of) / len(of) for which in ("score", "score_constant")]
    cells = {each.cell for each in of}
    right = sum(not project_cell(cell).impossible for cell in cells)
    return (
        f"Error over {len(of)} figures of {len(cells)} measured cells held out: {describe_error_spread(errors)} (goal: a median "
        f"of at most 25 %); "
        f"before anything was measured {describe_error_spread(before)}. "
        f"Bands hold {sum(each.is_covered for each in of)} of {len(of)}; their interval score is {scores[0]:.2f}, that of the median "
        f"x/÷ {CONSTANT} {scores[1]:.2f} (less is better). Called possible: {right} of {len(cells)}; all of them ran."
    )

"""Formatting of figures for people, percentile bands, and the colour and marker of each architecture."""

from collections.abc import Callable, Mapping, Sequence
from math import floor, inf, log10, nan
from typing import Any, NamedTuple

from crossover.experiment import Metric

# --- display ----------------------------------------------------------------------------------------------------------

DASH = "–"
GAP = "\u00a0"  # a unit stays on its figure's line


def usd(value: float | None) -> str:
    """Return dollars as text: with cents from a dollar on, with three significant digits below, never in powers of ten. 0 becomes `$0`,
    positive amounts below 1e-7 `< $0.0000001`, None a dash.
    """
    if value is None:
        return DASH
    if value == 0:
        return "$0"
    if 0 < value < 1e-7:
        return "< $0.0000001"
    if abs(value) >= 1:
        return f"${value:,.2f}"
    digits = 3
    while digits < 12 and abs(value) < 10 ** -(digits - 2):
        digits += 1
    return f"${value:.{digits}f}"


def rounded_usd(value: float) -> float:
    """Return the dollars rounded as `usd` shows them, as a number; below 1e-7 that is 1e-7, unless they are 0."""
    return float(usd(value).lstrip("< $").replace(",", ""))


def rounded_seconds(value: float) -> float:
    """Return the seconds rounded as `seconds` shows them, as a number."""
    return float(round(value)) if value >= 120 else float(f"{value:.3g}" if value < 10 else f"{value:.1f}")


def usd_tick(value: float) -> str:
    """Return dollars as text for the tick of an axis, without trailing zeros."""
    text = f"{value:.9f}".rstrip("0").rstrip(".")
    return f"${text}"


def seconds(value: float | None) -> str:
    """Return a duration as text in a readable unit, from `12 ms` over `3.4 s` and, from 120 s on, `2 min 05 s` to `1 h 20 min`. None
    becomes a dash. `rounded_seconds` rounds in the same way.
    """
    if value is None:
        return DASH
    if value == 0:
        return f"0{GAP}s"
    if value < 0.0995:
        return f"{value * 1_000:.3g}{GAP}ms"
    if value < 120:
        return f"{value:.3g}{GAP}s" if value < 10 else f"{value:.1f}{GAP}s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}{GAP}h {minutes:02d}{GAP}min" if hours else f"{minutes}{GAP}min {rest:02d}{GAP}s"


def rough_usd(value: float) -> str:
    """Return dollars for a headline, with two significant digits: `8.7 cents`, `$1.20`, `$340`; `$0` for 0."""
    if value < 0.995:
        return f"{_two_digits(100 * value)} cents" if value else "$0"
    rounded = float(f"{value:.2g}")
    return f"${rounded:,.2f}" if rounded < 10 else f"${rounded:,.0f}"


def rough_seconds(value: float) -> str:
    """Return a time for a headline, with two significant digits: `0.30 s`, `28 s`, from 90 s on `24 minutes`, from 90 minutes `3.4 hours`,
    from 2 days `2.1 days`.
    """
    for limit, unit_s, unit in ((90.0, 1.0, "s"), (5_400.0, 60.0, "minutes"), (172_800.0, 3_600.0, "hours")):
        if value < limit:
            return f"{_two_digits(value / unit_s)}{GAP}{unit}"
    return f"{_two_digits(value / 86_400.0)}{GAP}days"


def _two_digits(value: float) -> str:
    """Return a number with two significant digits, never in powers of ten. `0.0` for 0."""
    if value >= 10:
        return f"{float(f'{value:.2g}'):,.0f}"
    decimals = 1 - floor(log10(value)) if value > 0 else 1
    return f"{value:.{min(decimals, 9)}f}"


def band(shown: Callable[[float], str], p5: float, p50: float, p95: float) -> str:
    """Return the median `p50` of a figure with its percentiles `p5` and `p95` as text: `$1.20 ($1.00 to $1.50)`. `shown`: formats one
    value.
    """
    return f"{shown(p50)} ({shown(p5)} to {shown(p95)})"


def spread(p5: float, p50: float, p95: float) -> str:
    """Return how far `p5` and `p95` lie from the median `p50` in percent, short enough for a table's cell: `(-8/+12%)`, or `(±0%)` if both
    are rounded to 0; "" if the median is 0.
    """
    if not p50:
        return ""
    below, above = (round(100 * (end / p50 - 1)) for end in (p5, p95))
    return f"({below:+d}/{above:+d}%)" if below or above else "(±0%)"  # in one piece, where a terminal breaks at gaps


def bytes_(value: float | None) -> str:
    """Return a number of bytes as text in decimal units, such as `1.2 MB`. None becomes a dash."""
    if value is None:
        return DASH
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1_000:
            return f"{value:.0f}{GAP}{unit}" if unit == "B" else f"{value:.3g}{GAP}{unit}"
        value /= 1_000
    return f"{value:.3g}{GAP}TB"


def percent(value: float | None) -> str:
    """Return a share as text in percent with one decimal: 0.912 becomes `91.2 %`, None a dash."""
    return DASH if value is None else f"{100 * value:.1f}{GAP}%"


def metric_of(result: Mapping[str, Any]) -> Metric:
    """Return the metric by which a run is judged, the default one if its experiment names none. `result`: content of its result.json."""
    return Metric(**result["experiment"].get("training", {}).get("metric", {}))


def format_metric(value: float | None, metric: Metric) -> str:
    """Return a value of `metric` as text: in percent if the metric is a share, else as a number. None becomes a dash."""
    return percent(value) if metric.is_share else number(value)


def number(value: float | None) -> str:
    """Return a number as text with four significant digits and separated thousands; whole numbers have all their digits. Fractions below
    0.0001 or from a million on, and whole floats from 1e15 on, are in powers of ten. None becomes a dash.
    """
    if value is None:
        return DASH
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.4g}" if 1e-4 <= abs(value) < 1e6 else f"{value:.2e}"


def plain(value: Any) -> str:
    """Return a value of a configuration as text: a dash for None, `true` and `false` as in YAML, numbers without powers of ten, the items
    of a list with commas.
    """
    if value is None:
        return DASH
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and 1e-12 < abs(value) < 1e-4:
        return f"{value:.15f}".rstrip("0")
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value)) or DASH
    return str(value)


def count(number: int, noun: str) -> str:
    """Return a number of things as text: `1 worker`, `4 workers`, `2,000 trials`. `noun`: the thing, in the singular."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def describe_workers(count: int, *, memory_mb: int = 0, instance: str = "", spot: bool = False) -> str:
    """Return in words what a run's workers are: `one function of 1,769 MB`, `4 c7g.large`, `one g4dn.xlarge spot`. `count`: number of
    functions or instances; `memory_mb`: memory of functions that compute, 0 if none do; `instance`: instance type of the workers'
    programs, "" if functions compute.
    """
    if not instance:
        return f"{'one function' if count == 1 else f'{count} functions'} of {memory_mb:,} MB"
    beside = f" with functions of {memory_mb:,} MB" if memory_mb else ""
    return f"{'one' if count == 1 else count} {instance}{' spot' if spot else ''}{beside}"


def name_architecture(architecture: str, channel: str, compression: str) -> str:
    """Return the name of an architecture for people, followed by its channel and compression if those are not the defaults."""
    through = " through the bucket" if channel == "s3" else ""
    by = f" by {compression.replace('_', '-')}" if compression != "none" else ""
    return f"{architecture.replace('_', '-')}{through}{by}"


def times(ratio: float) -> str:
    """Return a ratio as text, such as `1.52x` or `12x`."""
    return f"{ratio:.2f}x" if ratio < 9.95 else f"{ratio:.0f}x"


def sum_moved_bytes(traffic: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the bytes that a run received and sent, summed over all channels. `traffic`: {channel: {"bytes_in", "bytes_out", ...}}, as in
    result.json.
    """
    return sum(channel["bytes_in"] + channel["bytes_out"] for channel in traffic.values())


def describe_subject(result: Mapping[str, Any]) -> str:
    """Return a run's model and data set in words, such as `mobilenet on cifar10`. `result`: content of its result.json."""
    experiment = result["experiment"]
    return f"{experiment['training']['model']} on {experiment['data']['dataset']}"


def epochs_of(result: Mapping[str, Any]) -> int:
    """Return the number of epochs that a run trained: the highest epoch number in the rows of its result.json, since a row may stand for
    several epochs; 0 if there are no rows. Rows without a number are counted.
    """
    return max((int(row.get("epoch", number)) for number, row in enumerate(result["epochs"], 1)), default=0)


def describe_run(result: Mapping[str, Any]) -> str:
    """Return in words a run's model, data set, number of workers, number of epochs, and place. `result`: content of its result.json."""
    size = f"{count(result['experiment']['workers'], 'worker')}, {count(epochs_of(result), 'epoch')}"
    return f"{describe_subject(result)}, {size}, {result['where']}"


def describe_attempts(result: Mapping[str, Any]) -> str:
    """Return in words how many of a run's invocations were cold starts, failed, were superseded (stale), were retried, or were killed.
    `result`: content of its result.json.
    """
    made, lost = result["invocations"], result.get("unrecorded") or {"count": 0}
    killed = f", {lost['count']} killed and billed without a record" if lost["count"] else ""
    return f"{made['cold']} cold, {made['error']} failed, {made['stale']} stale, {made['retried']} retried{killed}"


def describe_dropped(result: Mapping[str, Any]) -> dict[int, str]:
    """Return {worker: text}, sorted by worker: the rounds of training from which the worker's contribution was left out because it was not
    finite, such as `round 3` or `2 rounds, 3 to 9`. `result`: content of the run's result.json.
    """
    rounds: dict[int, list[int]] = {}
    for each in result.get("dropped", []):
        for worker in each["workers"]:
            rounds.setdefault(worker, []).append(each["round"])
    return {
        worker: f"round {each[0]}" if len(each) == 1 else f"{len(each)} rounds, {each[0]} to {each[-1]}"
        for worker, each in sorted(rounds.items())
    }


# --- spreadsheet ------------------------------------------------------------------------------------------------------
# Cells of CSV files as spreadsheets take them: text that begins as a formula would is shown, never calculated.

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # some spreadsheets take the wide forms too


def escape_formula(cell: Any) -> Any:
    """Return a table cell that a spreadsheet cannot take for a formula: text that begins like one gets an apostrophe in front, unless it is
    a number.
    """
    if not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def escape_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with every cell escaped as `escape_formula` does."""
    return {column: escape_formula(cell) for column, cell in row.items()}


# --- bands ------------------------------------------------------------------------------------------------------------
# How sure figures are that were drawn again and again: percentiles, and who is ahead in paired draws.

SURE = 0.95  # the share of paired draws from which on one is said to be cheaper, or sooner
LEVEL = 1.01  # by how much at least: a lead that would be printed as 1.00x is none
OPEN = "too close to call"


class Band(NamedTuple):
    """The 5th, 50th and 95th percentile of a figure over the random draws of a simulation, in the figure's unit."""

    p5: float
    p50: float
    p95: float

    def as_json(self) -> dict[str, Any]:
        """Return {"label": "projected", "p5", "p50", "p95"}, as JSON files have percentiles."""
        return {"label": "projected", **self._asdict()}


def band_of(values: Sequence[float]) -> Band:
    """Return the 5th, 50th and 95th percentile of those values that are below infinity; NaN three times if there are none. Percentiles are
    interpolated by Hazen's rule.
    """
    ordered = sorted(value for value in values if value < inf)
    return Band(*(_percentile(ordered, share) for share in (0.05, 0.5, 0.95)))


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile of the ascending values `ordered` by Hazen's rule, which puts the n-th of N values at (n - 0.5) / N; NaN if there
    are none. `share`: 0 to 1.
    """
    if not ordered:
        return nan
    at = min(max(share * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
    low = ordered[floor(at)]
    return low + (at - floor(at)) * (ordered[min(floor(at) + 1, len(ordered) - 1)] - low)


def describe_error_spread(errors: Sequence[float]) -> str:
    """Return the median, the 90th percentile and the maximum of at least one relative error as Markdown text."""
    ordered = sorted(errors)
    middle, most = (_percentile(ordered, share) for share in (0.5, 0.9))
    return f"median **{middle:.1%}**, p90 {most:.1%}, worst {ordered[-1]:.1%}"


def count_wins(ours: Sequence[float], theirs: Sequence[float]) -> int:
    """Return in how many paired draws the value in `ours` is smaller than the one in `theirs` at the same position; equal values are no
    win. Raises ValueError if their numbers differ.
    """
    return sum(mine < other for mine, other in zip(ours, theirs, strict=True))


def is_sure(count: int, of: int) -> bool:
    """Return whether `count` wins in `of` paired draws suffice to say which of two is ahead, that is at least 95 %."""
    return count >= SURE * of


class Lead(NamedTuple):
    """The result of comparing a figure, such as cost, between several names over paired draws: `first` has the smallest median, `second` is
    the competitor from which it is least surely ahead. `wins`: in how many of the `of` draws the first is smaller; `ratio`: median of the
    second divided by that of the first.
    """

    first: str
    second: str
    wins: int
    of: int
    ratio: float

    @property
    def is_sure(self) -> bool:
        """True if the first is smaller in at least 95 % of the draws, and its median is smaller by at least 1 %."""
        return is_sure(self.wins, self.of) and self.ratio >= LEVEL


def lead(draws: Mapping[str, Sequence[float]]) -> Lead | None:
    """Return which name has the smallest median, and its lead over the one from which it is least surely ahead: one that it does not surely
    beat, then the one with fewest wins, then the smallest ratio. None if there are fewer than two names. `draws`: values of one figure by
    name, paired by position; infinite if a draw failed.
    """
    if len(draws) < 2:
        return None
    middle = {name: band_of(each).p50 for name, each in draws.items()}
    first, *others = sorted(middle, key=lambda name: middle[name])
    found = (
        Lead(first, other, count_wins(draws[first], draws[other]), len(draws[first]), middle[other] / middle[first])
        for other in others
    )
    return min(found, key=lambda each: (each.is_sure, each.wins, each.ratio))


def describe_winner(
    draws: Mapping[str, Sequence[float]],
    what: str,
    better: str,
    shown: Callable[[float], str],
    bands: Mapping[str, Band] | None = None,
) -> str:
    """Return in words which name has the smallest median, by what factor, and in how many paired draws; or that it is too close to call
    (see `Lead.is_sure`). "" if there are fewer than two names. `draws`: values by name, paired by position; `what`, `better`: words such as
    cheapest and cheaper; `shown`: formats a value; `bands`: percentiles to print by name, by default those of the draws.
    """
    led = lead(draws)
    if led is None:
        return ""
    own, other = (bands[name] if bands else band_of(draws[name]) for name in (led.first, led.second))
    drawn = f"in {led.wins} of {led.of} paired draws"
    second = f"{led.second} at {band(shown, *other)}"
    if not led.is_sure:
        return f"{led.first} at {band(shown, *own)} and {second} are {OPEN} as {what}: {led.first} is {drawn}"
    return f"{led.first} is {what} with {band(shown, *own)}, {times(led.ratio)} {better} than {second}, {drawn}"


def describe_leader(
    draws: Mapping[str, Sequence[float]],
    what: str,
    shown: Callable[[float], str],
    bands: Mapping[str, Band] | None = None,
) -> str:
    """Return in a few words which name has the smallest median, or that it is too close to call; "" if there are fewer than two names.
    `draws`: values by name, paired by position; `what`: a word such as cheapest; `shown`: formats a value; `bands`: percentiles to print by
    name, by default those of the draws.
    """
    led = lead(draws)
    if led is None:
        return ""
    if not led.is_sure:
        return f"{led.first} and {led.second} are {OPEN} as {what}"
    return f"{led.first} is {what}, {band(shown, *(bands[led.first] if bands else band_of(draws[led.first])))}"


# --- looks ------------------------------------------------------------------------------------------------------------
# How each architecture and each kind of machine looks, on every page: a colour of the palette and a marker of its own.
#
# Two that have a colour in common never have the marker: who sees no colours, or other ones, tells them apart by it and by the label
# beside the curve.

# On light and on dark pages, each with a contrast of 4.5 and more to page and card, so that text may have it too.
PALETTE = (
    ("#0b62a4", "#5ab0ff"),
    ("#b34a05", "#ff9d5c"),
    ("#247535", "#69d07c"),
    ("#a61e4d", "#ff7aa8"),
    ("#6741d9", "#b197fc"),
    ("#0a7285", "#3bc9db"),
    ("#836000", "#e0b400"),
    ("#5c5f66", "#b0b4bb"),
    ("#b0239a", "#ff5fd2"),
    ("#7f4f24", "#d9a679"),
)


class SeriesLook(NamedTuple):
    """The look of one series of values in plots. `colour`: index into PALETTE; `marker`: matplotlib's name of the marker; `sign`: a
    character that looks like the marker, for text.
    """

    colour: int
    marker: str
    sign: str


LOOKS: Mapping[str, SeriesLook] = {
    # kinds of machines
    "functions": SeriesLook(1, "o", "●"),
    "instances": SeriesLook(0, "s", "■"),
    "GPUs": SeriesLook(2, "^", "▲"),
    "this machine": SeriesLook(5, "P", "✚"),
    "accuracy unknown": SeriesLook(7, "X", "✖"),
    # architectures
    "all_reduce": SeriesLook(3, "D", "◆"),
    "scatter_reduce": SeriesLook(5, "v", "▼"),
    "spirt": SeriesLook(4, "*", "★"),
    "mlless": SeriesLook(6, "p", "⬟"),
    "p2p_instance": SeriesLook(9, "<", "◀"),
    "p2p_serverless": SeriesLook(8, ">", "▶"),
    "gpu": SeriesLook(2, "x", "✕"),
}
# Of curves that are neither, and of architectures of one's own: by their place.
PLAIN = tuple(
    SeriesLook(colour, marker, sign)
    for colour, marker, sign in zip((0, 1, 2, 3, 4, 5, 6, 8), "os^DvPXd", "●■▲◆▼✚✖♦", strict=True)
)
MACHINES = {"function": "functions", "instance": "instances", "gpu": "GPUs"}  # that `single` is on


def look_of(name: str, place: int = 0) -> SeriesLook:
    """Return the colour and marker of an architecture or a kind of machine in plots. `name`: such as "spirt" or "functions"; `place`:
    number by which a look is chosen for a name that has none of its own.
    """
    return LOOKS.get(name) or PLAIN[place % len(PLAIN)]


def look_of_experiment(architecture: str, sections: Mapping[str, Any], place: int = 0) -> SeriesLook:
    """Return the colour and marker of an experiment in plots: those of its architecture; or, for the architecture `single`, those of the
    kind of machine that its section `single` names. `sections`: the experiment's sections as plain data; `place`: number by which a look is
    chosen for an unknown name.
    """
    on = (sections.get("single") or {}).get("on", "function")
    return look_of(MACHINES.get(on, "") if architecture == "single" else architecture, place)

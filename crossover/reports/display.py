"""Figures as people read them: dollars, seconds, bytes, ratios. A figure that is not there is a dash, never a zero."""

from collections.abc import Callable, Mapping
from typing import Any

from crossover.experiment import Metric

DASH = "–"
GAP = "\u00a0"  # a unit stays on its figure's line


def usd(value: float | None) -> str:
    """Three significant digits below a dollar, cents above; never in powers of ten."""
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


def usd_tick(value: float) -> str:
    """Dollars on an axis: no more digits than the tick needs."""
    text = f"{value:.9f}".rstrip("0").rstrip(".")
    return f"${text}"


def seconds(value: float | None) -> str:
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


def band(shown: Callable[[float], str], p5: float, p50: float, p95: float) -> str:
    """The middle of a projection, and between what it lies in nine repetitions of ten."""
    return f"{shown(p50)} ({shown(p5)} to {shown(p95)})"


def spread(p5: float, p50: float, p95: float) -> str:
    """A band in the room of a table's cell: how far p5 and p95 are from the middle."""
    if not p50:
        return ""
    below, above = (round(100 * (end / p50 - 1)) for end in (p5, p95))
    return f"({below:+d}/{above:+d}%)" if below or above else "(±0%)"  # in one piece, where a terminal breaks at gaps


def bytes_(value: float | None) -> str:
    """Decimal units, as network traffic and prices count."""
    if value is None:
        return DASH
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1_000:
            return f"{value:.0f}{GAP}{unit}" if unit == "B" else f"{value:.3g}{GAP}{unit}"
        value /= 1_000
    return f"{value:.3g}{GAP}TB"


def percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f}{GAP}%"


def trains(result: Mapping[str, Any]) -> bool:
    """Whether the run trained a model; else it averaged gradients that were made, and has no epochs and no metric."""
    return "gradient_bytes" not in result.get("data", {})


def checked(result: Mapping[str, Any]) -> str:
    """What came of holding an aggregation's means against one process."""
    final = result.get("final") or {}
    return "equal" if final.get("equals_one_process") else "different" if final else DASH


def metric_of(result: Mapping[str, Any]) -> Metric:
    """What the run was judged by."""
    return Metric(**result["experiment"].get("training", {}).get("metric", {}))


def judged(value: float | None, metric: Metric) -> str:
    """A value of `metric`: a share in percent, anything else as a number."""
    return percent(value) if metric.is_share else number(value)


def number(value: float | None) -> str:
    """A quantity of a bill, or a loss: four significant digits, thousands separated."""
    if value is None:
        return DASH
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.4g}" if 1e-4 <= abs(value) < 1e6 else f"{value:.2e}"


def times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 9.95 else f"{ratio:.0f}x"


def moved(traffic: Mapping[str, Mapping[str, Any]]) -> int:
    """Bytes received and sent over every channel."""
    return sum(channel["bytes_in"] + channel["bytes_out"] for channel in traffic.values())


def subject(result: Mapping[str, Any]) -> str:
    """What a run was about: model and data, or the gradients that were averaged."""
    experiment, data = result["experiment"], result.get("data", {})
    if trains(result):
        return f"{experiment['training']['model']} on {experiment['data']['dataset']}"
    return f"{data['clients']} clients' gradients of {bytes_(data['gradient_bytes'])}"


def epochs_of(result: Mapping[str, Any]) -> int:
    """How many epochs a run trained: the number of the last one decided upon, for a round may go through several. Rows without
    one are epochs in their order.
    """
    return max((int(row.get("epoch", number)) for number, row in enumerate(result["epochs"], 1)), default=0)


def made_of(result: Mapping[str, Any]) -> str:
    """The subject and size of a run, and where it ran."""
    size = f"{result['experiment']['workers']} workers, {epochs_of(result)} epochs"
    if not trains(result):
        size = f"{' + '.join(str(count) for count in result['data']['aggregators'])} aggregators"
    return f"{subject(result)}, {size}, {result['where']}"


def attempts(result: Mapping[str, Any]) -> str:
    """What happened to a run's invocations, besides ending well."""
    made, lost = result["invocations"], result.get("unrecorded") or {"count": 0}
    killed = f", {lost['count']} killed and billed without a record" if lost["count"] else ""
    return f"{made['cold']} cold, {made['error']} failed, {made['stale']} stale, {made['retried']} retried{killed}"


def dropped(result: Mapping[str, Any]) -> dict[int, str]:
    """By worker, the rounds that it was left out of, in words."""
    rounds: dict[int, list[int]] = {}
    for each in result.get("dropped", []):
        for worker in each["workers"]:
            rounds.setdefault(worker, []).append(each["round"])
    return {
        worker: f"round {each[0]}" if len(each) == 1 else f"{len(each)} rounds, {each[0]} to {each[-1]}"
        for worker, each in sorted(rounds.items())
    }

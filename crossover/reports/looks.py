"""How each architecture and each kind of machine looks, on every page: a colour of the palette and a marker of its own.

Two that have a colour in common never have the marker: who sees no colours, or other ones, tells them apart by it and by the label beside
the curve.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

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
    """`colour`: which of PALETTE; `marker`: as matplotlib calls it; `sign`: the marker as a letter, for text and for canvases."""

    colour: int
    marker: str
    sign: str


LOOKS: Mapping[str, SeriesLook] = {
    # kinds of machines
    "functions": SeriesLook(1, "o", "●"),
    "instances": SeriesLook(0, "s", "■"),
    "GPUs": SeriesLook(2, "^", "▲"),
    "this machine": SeriesLook(7, "P", "✚"),
    "accuracy unknown": SeriesLook(7, "X", "✖"),
    # architectures
    "all_reduce": SeriesLook(3, "D", "◆"),
    "scatter_reduce": SeriesLook(5, "v", "▼"),
    "spirt": SeriesLook(4, "*", "★"),
    "mlless": SeriesLook(6, "p", "⬟"),
    "p2p_instance": SeriesLook(9, "<", "◀"),
    "p2p_serverless": SeriesLook(8, ">", "▶"),
    "gpu": SeriesLook(2, "x", "✕"),
    "grads_sharding": SeriesLook(0, "d", "♦"),
    "lambda_fl": SeriesLook(3, "8", "⯃"),
    "lifl": SeriesLook(5, "H", "⬣"),
}
# Of curves that are neither, and of architectures of one's own: by their place.
PLAIN = tuple(
    SeriesLook(colour, marker, sign)
    for colour, marker, sign in zip((0, 1, 2, 3, 4, 5, 6, 8), "os^DvPXd", "●■▲◆▼✚✖♦", strict=True)
)
MACHINES = {"function": "functions", "instance": "instances", "gpu": "GPUs"}  # that `single` is on


def look(name: str, place: int = 0) -> SeriesLook:
    """Of an architecture or a kind of machine; of one that is not known here, by its place."""
    return LOOKS.get(name) or PLAIN[place % len(PLAIN)]


def of_experiment(architecture: str, sections: Mapping[str, Any], place: int = 0) -> SeriesLook:
    """Of an experiment's architecture; of one worker alone that of the machine that its section says it is on."""
    on = (sections.get("single") or {}).get("on", "function")
    return look(MACHINES.get(on, "") if architecture == "single" else architecture, place)

"""advice.html: the front with its bands, where the money goes, and what would change the answer."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from crossover.advice import tables
from crossover.advice.advice import Advice, line, rivals_of, sentence
from crossover.advice.sensitivity import swings
from crossover.reports import display, plots
from crossover.reports.bands import Band
from crossover.reports.folder import write_atomically
from crossover.reports.html import render
from crossover.reports.page import Page, Plot, Sheet, Tile, plot

PAGE = "advice.html"
KINDS = {"lambda": "functions", "ec2": "instances", "gpu": "GPUs"}


def write(found: Advice, out: Path, notes: Sequence[str], first: Path | None = None) -> Path:
    """`advice.html` into `out`; its path. `first`: the winner's YAML file."""
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / PAGE, render(page(found, notes, first)).encode())
    return out / PAGE


def page(found: Advice, notes: Sequence[str], first: Path | None = None) -> Page:
    """The whole of it as data."""
    base = found.question.base
    entries = (found.winner, *found.alternatives)
    money = Sheet(
        title="Where the money goes",
        head=["", *(each.candidate.words for each in entries)],
        rows=list(_rows([found.drives[each.candidate].usd for each in entries], display.usd)),
        words=1,
        label="projected",
        note="Dollars of the run in the middle session; a function's dollars by what its seconds go to.",
    )
    time = Sheet(
        title="Where the time goes",
        head=money.head,
        rows=list(_rows([found.drives[each.candidate].seconds for each in entries], display.seconds)),
        words=1,
        label="projected",
        note="Seconds from deploy on, without stragglers: by how much a run is shorter if nothing moves, and then if nothing has to start.",
    )
    return Page(
        title="Advice",
        subtitle=f"{base.training.model} on {base.data.dataset}, {base.training.epochs} epochs: {found.wishes.words}",
        labels=["projected"],
        answer=_answer(found),
        verdict=f"{sentence(found)} {line(found)}",
        commands=[shlex.join(["crossover", "deploy", str(first)])] if first else [],
        tiles=list(_cards(found)),
        plots=list(_plots(found)),
        sheets=[
            Sheet(
                title="The front", head=tables.FRONT_HEAD, rows=tables.front(found.front), words=1, label="projected"
            ),
            Sheet(
                title="The best of each other architecture",
                head=[tables.REJECTED_HEAD[n] for n in ORDER],
                rows=[[row[n] for n in ORDER] for row in tables.rejected(found)],
                words=3,
                label="projected",
            ),
            money,
            time,
            *_unknown(found),
            Sheet(
                title="What stands behind it",
                head=["", "note"],
                rows=[[str(n), note] for n, note in enumerate([*notes, *tables.notes(found)], start=1)],
                words=2,
                folded=True,
                note=f"Prices of {found.question.prices.as_of}.",
            ),
        ],
    )


def _answer(found: Advice) -> str:
    """What, time, dollars, and between what these lie."""
    each = found.winner
    begins = "" if found.met else "Nothing holds that; nearest is "
    return f"{begins}{each.candidate.words}: {display.band(display.seconds, *each.running)}, {display.band(display.usd, *each.usd)}."


def _cards(found: Advice) -> Iterator[Tile]:
    """Cheapest, balanced, soonest; spot instances with what they are on demand."""
    for card in found.cards:
        for names, each in ((card.names, card.finalist), ((*card.names, "on demand"), card.on_demand)):
            if each is not None:
                time, dollars = (
                    f"{shown(low)} to {shown(high)}"
                    for shown, (low, _, high) in ((display.seconds, each.running), (display.usd, each.usd))
                )
                yield Tile(
                    name=f"{', '.join(names)}: {each.candidate.words}",
                    value=display.seconds(each.running.p50),
                    beside=display.usd(each.usd.p50),
                    note=f"{time}, after {display.seconds(each.before_s)} of start-up; {dollars}",
                    label="projected",
                )


MATTERS = 1.005  # what changes the ratio by less is left out
ORDER = (0, 1, 4, 2, 3)  # of the columns of the rejected: words first


def _unknown(found: Advice) -> list[Sheet]:
    if not found.unknown:
        return []
    note = "They make other updates: what accuracy they reach after as many epochs is not known."
    rows = tables.front(found.unknown)
    return [Sheet(title="Accuracy unknown", head=tables.FRONT_HEAD, rows=rows, note=note, label="projected")]


def _rows(each: Sequence[Mapping[str, float]], shown: Callable[[float], str]) -> Iterator[list[str]]:
    """The largest part first."""
    names = dict.fromkeys(name for parts in each for name in parts)
    for name in sorted(names, key=lambda name: -max(parts.get(name, 0.0) for parts in each)):
        yield [name, *(shown(parts[name]) if parts.get(name) else display.DASH for parts in each)]


def _plots(found: Advice) -> Iterator[Plot]:
    shown = [
        plots.Mark(
            x=each.usd,
            y=Band(*(value / 60 for value in each.seconds)),
            title=f"{each.candidate.words}: {each.words}",
            group="accuracy unknown" if each in found.unknown else KINDS[each.kind],
            chosen=each is found.winner,
        )
        for each in found.finalists
    ]
    picture = plots.marks(shown, x="dollars", y="minutes, from deploy on", name="front", format_x=display.usd_tick)
    yield plot(
        "Time against dollars",
        picture,
        caption="Each point is a way to train it, with p5 to p95 both ways; the advice is ringed. Tables below have each one's figures.",
        label="projected",
    )
    rival = next(iter((*rivals_of(found), *found.alternatives)), None)
    if rival is None:
        return
    rows = [
        (each.what, min(each.smaller, each.larger), max(each.smaller, each.larger))
        for each in swings(found.question, found.winner.candidate, rival.candidate)
        if each.width > MATTERS
    ]
    if not rows:  # two that are alike: nothing sets one apart from the other
        return
    spans = "; ".join(f"{what}: {display.times(low)} to {display.times(high)}" for what, low, high in rows)
    drawn = plots.tornado(
        rows,
        x="dollars of the other / of the advice",
        name="tornado",
        title="What would change the answer",
        shown=lambda value: f"{value:g}",
    )
    yield plot(
        "What would change the answer",
        drawn,
        caption=f"Against {rival.candidate.words}. Left of 1 it would be the cheaper one. {spans}.",
        label="projected",
    )

"""Draws docs/house.svg, who imports whom: `python -m docs.house`. An arrow that others imply is left out."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tests.unit.test_structure import PACKAGES, files, imports, module_of, part_of

PICTURE = Path(__file__).with_suffix(".svg")
WIDTH, ROW, TEXT, GAP = 640, 42, 18, 16
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">
<style>
rect {{ fill: #eef2f7; stroke: #5b6b7f }} .outside rect {{ fill: #fdf1dc; stroke: #a07a2c }}
path {{ fill: none; stroke: #8794a4 }} text {{ fill: #1c2530; text-anchor: middle }}
</style>
<rect width="{width}" height="{height}" style="fill: white; stroke: none"/>"""

Box = tuple[str, ...]  # parts that import one another in a circle stand in one box
Graph = dict[Box, set[Box]]


def imported() -> dict[str, set[str]]:
    """Part of the house -> the parts that it imports."""
    found: dict[str, set[str]] = {}
    for path in files():
        own = part_of(module_of(path))
        parts = {part_of(module) for module, _ in imports(path)} - {own, "crossover"}
        found.setdefault(own, set()).update(part for part in parts if part.split(".")[0] in PACKAGES)
    return {own: parts for own, parts in found.items() if own not in ("app", "crossover")}


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def boxes() -> tuple[Graph, Box]:
    """Boxes and the arrows that no longer way implies; the modules that import nothing, on which all others stand."""
    graph = imported()
    below = {part: reached(graph, part) for part in graph}
    box = {part: tuple(sorted({part, *(each for each in below[part] if part in below[each])})) for part in graph}
    direct = {box[part]: {box[each] for each in below[part]} - {box[part]} for part in graph}
    ground = tuple(sorted(part for part in graph if not graph[part]))
    drawn = {
        own: {each for each in lower if each[0] not in ground} for own, lower in direct.items() if own[0] not in ground
    }
    return {
        own: {each for each in lower if not any(each in drawn[via] for via in lower)} for own, lower in drawn.items()
    }, ground


def rows(graph: Graph) -> list[list[Box]]:
    """Every box below all that import it, each row in the order that bends arrows least. A long arrow has a place in each row it passes."""
    level: dict[Box, int] = {}

    def depth(box: Box) -> int:
        if box not in level:
            level[box] = 1 + max((depth(upper) for upper in graph if box in graph[upper]), default=-1)
        return level[box]

    lines: list[list[Box]] = [[] for _ in range(1 + max(map(depth, sorted(graph))))]
    for box in sorted(graph):
        lines[level[box]].append(box)
    for upper in sorted(graph):
        for lower in sorted(graph[upper]):
            chain = [upper, *((*upper, "->", *lower, str(row)) for row in range(level[upper] + 1, level[lower])), lower]
            graph[upper].discard(lower)
            for one, following in pairwise(chain):
                graph.setdefault(one, set()).add(following)
            for row, between in enumerate(chain[1:-1], level[upper] + 1):
                lines[row].append(between)
    joined = neighbours(graph)
    for upwards in (False, True) * 12:
        for row in range(len(lines) - 2, -1, -1) if upwards else range(1, len(lines)):
            there, here = place(lines[row + 1 if upwards else row - 1]), place(lines[row])
            wish = {box: [there[each] for each in sorted(joined[box]) if each in there] or [here[box]] for box in here}
            mean = {box: sum(places) / len(places) for box, places in wish.items()}
            lines[row].sort(key=mean.__getitem__)
    return lines


def neighbours(graph: Graph) -> Graph:
    every = set(graph).union(*graph.values())
    return {box: graph.get(box, set()) | {upper for upper in graph if box in graph[upper]} for box in every}


def place(line: list[Box]) -> dict[Box, float]:
    return {box: (number + 0.5) / len(line) for number, box in enumerate(line)}


def words(box: Box) -> list[str]:
    return [part.removeprefix("crossover.") for part in box]


def width(box: Box) -> int:
    return 8 if "->" in box else 26 + 8 * max(map(len, words(box)))


def height(box: Box) -> int:
    return 0 if "->" in box else TEXT * len(box) + 6


def middles(lines: list[list[Box]], graph: Graph) -> dict[Box, int]:
    """Where each box stands in its row: near what it is joined with, clear of its neighbours."""
    near = neighbours(graph)
    middle = {box: (2 * number + 1) * WIDTH // (2 * len(line)) for line in lines for number, box in enumerate(line)}
    for line in [*lines, *reversed(lines)] * 8:
        left, right = GAP, WIDTH - GAP
        for box in line:
            wish = sum(middle[each] for each in near[box]) // len(near[box]) if near[box] else middle[box]
            middle[box] = max(wish, left + width(box) // 2)
            left = middle[box] + width(box) // 2 + GAP
        for box in reversed(line):
            middle[box] = min(middle[box], right - width(box) // 2)
            right = middle[box] - width(box) // 2 - GAP
    aside = (
        WIDTH
        - min(middle[box] - width(box) // 2 for box in middle)
        - max(middle[box] + width(box) // 2 for box in middle)
    )
    return {box: x + aside // 2 for box, x in middle.items()}


def drawn() -> str:
    graph, ground = boxes()
    lines = rows(graph)
    middle = middles(lines, graph)
    row_of = {box: row for row, line in enumerate(lines) for box in line}
    tall = [max(map(height, line)) for line in lines]
    top = [GAP + sum(tall[:row]) + ROW * row for row in range(len(lines) + 1)]
    floor = (" · ".join(words(ground)), "import nothing of ours")
    svg = [HEAD.format(width=WIDTH, height=top[-1] + height(floor) + GAP)]
    for upper in sorted(graph):
        x, row = middle[upper], row_of[upper]
        below = top[row] + tall[row]
        for lower in sorted(graph[upper]):
            there, half, start = middle[lower], below + ROW // 2, top[row] + height(upper)
            svg.append(f'<path d="M{x} {start} V{below} C{x} {half} {there} {half} {there} {top[row + 1]}"/>')
    for box in sorted(row_of):
        if "->" not in box:
            svg += rectangle(box, middle[box], top[row_of[box]])
    return "\n".join([*svg, *rectangle(floor, WIDTH // 2, top[-1], across=True), "</svg>", ""])


def rectangle(box: Box, x: int, y: int, *, across: bool = False) -> Iterator[str]:
    wide = WIDTH - 2 * GAP if across else width(box)
    outside = "" if across or box[0].startswith("crossover.") else ' class="outside"'
    yield f'<g{outside}><rect x="{x - wide // 2}" y="{y}" width="{wide}" height="{height(box)}" rx="4"/>'
    yield from (f'<text x="{x}" y="{y + 16 + TEXT * number}">{word}</text>' for number, word in enumerate(words(box)))
    yield "</g>"


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")

"""The pictures as SVG, and the part of each page that holds figures."""

from collections.abc import Iterator

from crossover.reports import display, prices, published
from crossover.workflow.architecture import steps
from crossover.workflow.infrastructure import database_hosts
from tools.pictures.drawing import NAMES, Drawing
from tools.pictures.figures import ROOT, Figures, load_figures
from tools.pictures.layouts import CHANNEL_OF, LAYOUTS, Arrow, Bar, Box, Lane, Layout, Store

FOLDER = ROOT / "docs" / "architectures"
WIDTH = 800
BOX_X, BOX_WIDTH, BOX_HEIGHT = 64, 300, 40
STORE_TOP, STORE_WIDTH, STORE_HEIGHT = 62, 130, 60
PITCH, FIRST_ROW = 42, 128
CAPTION = "A dot: reads or writes there. Bytes of a round: of all workers, as the simulation counts them."
ROUND_CAPTIONS = (
    "Time runs down, not to scale. Grey: waits. Dashed: messages. Bytes and seconds: of the simulation (projected).",
    "What workers or peers all do in the same way is drawn in full for the first, and in part for the others.",
)
STAGES_WITH_WAITS = {"aggregate", "receive"}
WAITS_CAPTION = "Seconds of bars that average include the wait and the reads before them."
BEGIN, END = "<!-- figures: make pictures writes them -->\n", "<!-- end of figures -->"


def fill_in(text: str, of: Figures) -> str:
    """Return a text with its placeholders `{workers}`, `{others}` (workers but one), `{minibatches}` (of a worker and round) and `{hosts}`
    (database hosts) replaced by the example's numbers.
    """
    hosts = database_hosts(of.experiment, of.architecture)
    return text.format(workers=of.workers, others=of.workers - 1, minibatches=of.minibatches, hosts=hosts)


def describe_example(of: Figures) -> str:
    """Return a sentence about the example behind the figures: file, model with its size, number of workers, and number of minibatches of a
    round.
    """
    model, size = of.experiment.training.model, display.bytes_(of.size("model"))
    round_ = "an epoch" if of.minibatches > 1 else "a minibatch"
    each = f"{round_} of {of.minibatches} minibatches" if of.minibatches > 1 else "one minibatch"
    return f"{of.config}: {model} ({size}), {of.workers} workers; a round is {each} per worker."


# --- structure ------------------------------------------------------------------------------------------------------------


def find_wires(layout: Layout, of: Figures) -> set[tuple[str, str]]:
    """Return the wires of a structure picture: the pairs (name of a box, kind of store) of `layout` whose step or program uses such a
    store. `of`: the figures of the picture's example, whose architecture says who uses what.
    """
    uses: dict[str, set[str]] = {step.name: {*step.uses} for step in steps(of.architecture)}
    if program := of.architecture.program:
        uses[program.step] = {"objects", *(["bus"] if program.uses_bus else [])}
    kinds = {store.kind for store in layout.structure.stores}
    return {
        (box.name, kind)
        for box in layout.structure.boxes
        for kind in kinds
        if CHANNEL_OF[kind] in uses.get(box.name, ())
    }


def draw_structure(layout: Layout) -> Drawing:
    """Draw an architecture's structure picture and return it: boxes in frames on the left, stores on the right, a dot for each store that a
    box uses.
    """
    of, plan = load_figures(layout.name), layout.structure
    drawing = Drawing(WIDTH, plan.height, layout.finding)
    drawing.text(20, 30, layout.finding, size=15.5, style="bold")
    for frame in plan.frames:
        left, right = 20 + 14 * frame.depth, BOX_X + BOX_WIDTH + 20 - 6 * frame.depth
        drawing.rect(left, frame.top, right - left, frame.bottom - frame.top, "tint" if frame.depth % 2 else "frame")
        drawing.icon(left + 8, frame.top + 5, "machine", size=14)
        drawing.text(left + 28, frame.top + 16, fill_in(frame.label, of), size=11.5, style="soft", within=(left, right))
    connected = find_wires(layout, of)
    for store in plan.stores:
        rows = [box.y + BOX_HEIGHT / 2 for box in plan.boxes if (box.name, store.kind) in connected]
        drawing.line(f"M{store.x:g} {STORE_TOP + STORE_HEIGHT}V{max(rows):g}", f"draw {store.kind}")
    for box in plan.boxes:
        mine = [store for store in plan.stores if (box.name, store.kind) in connected]
        middle = box.y + BOX_HEIGHT / 2
        drawing.line(f"M{BOX_X + BOX_WIDTH} {middle:g}H{max(store.x for store in mine):g}")
        for store in mine:
            drawing.dot(store.x, middle, store.kind)
        _draw_box(drawing, box, of)
        for name in box.starts:
            (frame,) = (each for each in plan.frames if each.machine == name)
            drawing.line(f"M{BOX_X} {middle:g}H22V{(frame.top + frame.bottom) / 2:g}H33", arrow=True)
    for store in plan.stores:
        _draw_store(drawing, store, layout, of)
    drawing.text(20, plan.height - 30, describe_example(of), size=11, style="soft")
    drawing.text(
        20,
        plan.height - 14,
        CAPTION,
        size=11,
        style="soft",
    )
    return drawing


def _draw_box(drawing: Drawing, box: Box, of: Figures) -> None:
    """Draw the box of a function or program. A program has a stack of boxes, because there is one per worker."""
    if box.kind != "function":
        for shift in (8, 4):
            drawing.rect(BOX_X + shift, box.y - shift, BOX_WIDTH - shift, BOX_HEIGHT, "box")
    drawing.rect(BOX_X, box.y, BOX_WIDTH, BOX_HEIGHT, "box")
    drawing.icon(BOX_X + 8, box.y + 8, box.kind)
    edges = (BOX_X, BOX_X + BOX_WIDTH - 4.0)
    drawing.text(BOX_X + 42, box.y + 17, box.name, size=12.5, style="bold", within=edges)
    drawing.text(BOX_X + 42, box.y + 32, fill_in(box.note, of), size=11, style="soft", within=edges)


def _draw_store(drawing: Drawing, store: Store, layout: Layout, of: Figures) -> None:
    """Draw a store above its line, with the bytes that pass through it in a round; several behind one another if there are several
    databases.
    """
    left = store.x - STORE_WIDTH / 2
    many = store.kind == "database" and database_hosts(of.experiment, of.architecture) > 1
    for shift in (8, 4) if many else ():
        drawing.rect(left + shift, STORE_TOP - shift, STORE_WIDTH - shift, STORE_HEIGHT, "box")
    drawing.rect(left, STORE_TOP, STORE_WIDTH, STORE_HEIGHT, "box")
    drawing.icon(left + 6, STORE_TOP + 8, store.kind, size=17)
    edges = (left, left + STORE_WIDTH)
    drawing.text(left + 27, STORE_TOP + 21, NAMES[store.kind], size=11, style="bold", within=edges)
    drawing.text(left + 6, STORE_TOP + 38, fill_in(store.note, of), size=10, style="soft", within=edges)
    channel = CHANNEL_OF[store.kind]
    moved = sum(part.bytes_in.get(channel, 0) + part.bytes_out.get(channel, 0) for part in of.round.values())
    text = f"{display.bytes_(moved)} in a round" if moved else "messages, no vectors"
    drawing.text(left + 6, STORE_TOP + 52, text, size=10, style="soft", within=edges)


# --- one round --------------------------------------------------------------------------------------------------------------


def count_arrow_bytes(arrow: Arrow, of: Figures) -> int:
    """Return the bytes of all items together that an arrow represents."""
    return of.size(arrow.size) * of.counts[arrow.count]


def draw_round(layout: Layout) -> Drawing:
    """Draw the picture of one round, from top to bottom, and return it: a lane per participant, bars for work and waits, arrows for bytes
    and messages.
    """
    of, plan = load_figures(layout.name), layout.round
    bottom = FIRST_ROW + (plan.rows + 1) * PITCH
    stages = {stage for bar in plan.bars for stage in bar.stages}
    captions = (describe_example(of), *ROUND_CAPTIONS, *([WAITS_CAPTION] if stages & STAGES_WITH_WAITS else []))
    drawing = Drawing(WIDTH, int(bottom + 30 + 16 * len(captions)), layout.timing)
    drawing.text(20, 30, layout.timing, size=15.5, style="bold")
    lanes = {lane.name: lane for lane in plan.lanes}
    for lane in plan.lanes:
        drawing.line(f"M{lane.x:g} 98V{bottom:g}", "line lane")
        drawing.icon(lane.x - 12, 50, lane.kind)
        drawing.text(lane.x, 91, fill_in(lane.label, of), size=11.5, style="bold", anchor="middle")
    for bar in plan.bars:
        _draw_bar(drawing, bar, lanes[bar.lane], of)
    for arrow in plan.arrows:
        _draw_arrow(drawing, arrow, lanes, of)
    for number, caption in enumerate(captions):
        drawing.text(20, bottom + 28 + 16 * number, caption, size=11, style="soft")
    return drawing


def _draw_bar(drawing: Drawing, bar: Bar, lane: Lane, of: Figures) -> None:
    """Draw a bar for work or a wait on a lane, with the sum of the simulated seconds of its stages if it has any."""
    top, height = FIRST_ROW + bar.row * PITCH - 17, bar.rows * PITCH - 8
    left = lane.x - bar.width / 2
    drawing.rect(left, top, bar.width, height, "wait" if bar.wait else "box", radius=4)
    if not bar.wait:
        drawing.rect(left, top, 4, height, f"fill {lane.kind}", radius=2)
    edges, middle = (left + 4, left + bar.width), top + height / 2
    part = of.round[bar.by, max(0, lane.rank)]
    seconds, text = sum(part.stages[stage] for stage in bar.stages), fill_in(bar.text, of)
    drawing.text(lane.x + 2, middle + (-1 if bar.stages else 4), text, size=10.5, anchor="middle", within=edges)
    if bar.stages:
        drawing.text(
            lane.x + 2, middle + 12, display.seconds(seconds), size=10, style="soft", anchor="middle", within=edges
        )


def _draw_arrow(drawing: Drawing, arrow: Arrow, lanes: dict[str, Lane], of: Figures) -> None:
    """Draw an arrow with its text above and its bytes below; a message without bytes is dashed. `lanes`: lanes by name."""
    start, end, y = lanes[arrow.source].x, lanes[arrow.target].x, FIRST_ROW + arrow.row * PITCH
    ahead = 4 if end > start else -4
    count, size = of.counts[arrow.count], of.size(arrow.size)
    drawing.line(f"M{start + ahead:g} {y:g}H{end - ahead:g}", "line" if size else "line dashed", arrow=True)
    edges, middle = (min(start, end), max(start, end)), (start + end) / 2
    drawing.text(middle, y - 5, arrow.text, size=10.5, style="halo", anchor="middle", within=edges)
    if size:
        text = f"{count} \N{MULTIPLICATION SIGN} {display.bytes_(size)}" if count > 1 else display.bytes_(size)
        drawing.text(middle, y + 13, text, size=10.5, style="halo soft", anchor="middle", within=edges)


# --- overview ---------------------------------------------------------------------------------------------------------------

CARD_WIDTH, CARD_HEIGHT = 248, 178


def draw_card(layout: Layout) -> Drawing:
    """Draw the small picture of an architecture for the overview: workers above, stores and other services below, then bytes
    and dollars.
    """
    of, plan = load_figures(layout.name), layout.card
    drawing = Drawing(CARD_WIDTH, CARD_HEIGHT, layout.title)
    drawing.rect(1, 1, CARD_WIDTH - 2, CARD_HEIGHT - 2, "box")
    drawing.text(12, 22, layout.title, size=13.5, style="bold", within=(0, CARD_WIDTH))
    for lines, style in ((plan.lines, "line"), (plan.messages, "line dashed")):
        for start, end in lines:
            (_, x, y), (_, to_x, to_y) = plan.icons[start], plan.icons[end]
            drawing.line(f"M{x + 20:g} {y + 44:g}L{to_x + 20:g} {to_y + 44:g}", style)
    for kind, x, y in plan.icons:
        drawing.icon(x + 8, y + 32, kind)
    for number in plan.sums:
        _, x, y = plan.icons[number]
        drawing.text(x + 34, y + 38, plan.sign, size=11.5, style="bold halo", within=(0, CARD_WIDTH))
    drawing.text(12, 138, plan.averages, size=11.5, within=(0, CARD_WIDTH))
    per = f"a worker; {of.minibatches} minibatches a round" if of.minibatches > 1 else "a worker and round"
    moved = f"{display.bytes_(count_moved_bytes(of))} {per}"
    drawing.text(12, 154, moved, size=11, style="soft", within=(0, CARD_WIDTH))
    money = f"${of.idle_usd:.2f} an hour idle, {display.rough_usd(of.estimate.usd.p50)} a run"
    drawing.text(12, 169, money, size=11, style="soft", within=(0, CARD_WIDTH))
    return drawing


def count_moved_bytes(of: Figures) -> int:
    """Return the bytes that worker 0 with its functions reads and writes in the drawn round."""
    parts = [part for (step, rank), part in of.round.items() if rank == 0 and step != "supervise"]
    return sum(sum(part.bytes_in.values()) + sum(part.bytes_out.values()) for part in parts)


def draw_overview() -> Drawing:
    """Draw the overview and return it: the cards of all architectures, and a legend."""
    drawing = Drawing(WIDTH, 640, "Seven architectures: who averages, and through what")
    drawing.text(14, 30, drawing.title, size=16, style="bold")
    places = [(14 + 262 * (number % 3), 48 + 190 * (number // 3)) for number in range(9)]
    for (x, y), layout in zip(places, LAYOUTS, strict=False):
        drawing.place(draw_card(layout), x, y)
    x, y = places[7]
    for number, (kind, name) in enumerate(NAMES.items()):
        if kind != "machine":
            row = number - (number > 1)
            drawing.icon(x + 8 + 250 * (row // 3), y + 6 + 36 * (row % 3), kind)
            drawing.text(x + 42 + 250 * (row // 3), y + 23 + 36 * (row % 3), name, size=12)
    drawing.text(
        x + 8,
        y + 128,
        "\u03a3: averages here; \u03a3/4: a quarter of every gradient. Dashed: messages.",
        size=11,
        style="soft",
    )
    drawing.text(
        x + 8, y + 144, "Not drawn: all read data from the bucket and leave the model in it.", size=11, style="soft"
    )
    basis = prices.load().basis
    drawing.text(
        x + 8, y + 160, f"config/<name>.yaml, 4 workers. Dollars are projected: {basis}.", size=11, style="soft"
    )
    return drawing


def draw_pictures() -> dict[str, Drawing]:
    """Draw all pictures, and return them by name of their file."""
    found = {"overview.svg": draw_overview()}
    for layout in LAYOUTS:
        found |= {
            f"{layout.name}-structure.svg": draw_structure(layout),
            f"{layout.name}-round.svg": draw_round(layout),
            f"{layout.name}-card.svg": draw_card(layout),
        }
    return found


def render_pictures() -> dict[str, str]:
    """Return the SVG text of all pictures by name of their file."""
    return {name: drawing.svg() for name, drawing in draw_pictures().items()}


# --- pages ------------------------------------------------------------------------------------------------------------------


def render_pages() -> dict[str, str]:
    """Return the text of each existing page of docs/architectures by file name, with its section of figures computed anew; nothing is
    written. A page without the section's marks stays as it is.
    """
    found = {}
    for layout in LAYOUTS:
        path = FOLDER / f"{layout.name}.md"
        if path.exists():
            before, start, rest = path.read_text("utf-8").partition(BEGIN)
            _, end, after = rest.partition(END)
            found[path.name] = before + start + "\n".join(_list_figures(layout)) + "\n" + end + after
    return found


def _list_figures(layout: Layout) -> Iterator[str]:
    """Yield the lines of a page's section of figures: a table of the example's projected figures, and a table of the papers' rows about the
    architecture.
    """
    of = load_figures(layout.name)
    estimate = of.estimate
    yield ""
    yield f"| [{of.config}](../../{of.config}) | projected |"
    yield "| --- | --- |"
    length = f" of {of.minibatches} minibatches" if of.minibatches > 1 else ""
    yield f"| bytes of a worker in a round{length} | {display.bytes_(count_moved_bytes(of))} |"
    yield f"| an hour deployed, nothing running | ${of.idle_usd:.2f} |"
    yield f"| an hour during a run, without functions | ${of.running_usd:.2f} |"
    usd, minutes = estimate.usd, estimate.minutes
    yield f"| a run of {estimate.epochs} epochs | {display.band(display.rough_usd, usd.p5, usd.p50, usd.p95)} |"
    seconds = (60 * each for each in (minutes.p5, minutes.p50, minutes.p95))
    yield f"| its time | {display.band(display.rough_seconds, *seconds)} |"
    if estimate.boot_minutes:
        yield f"| before it, until instances are up | {display.rough_seconds(60 * estimate.boot_minutes)} |"
    yield ""
    yield "| published: paper, table, row | figures |"
    yield "| --- | --- |"
    for row in published.rows(architecture=of.architecture.name):
        if row.table in PAPER_TABLES:
            printed = (f"{name} {value}" for name, value in row.figures.items() if name not in NOT_PRINTED)
            yield f"| {row.source} | {'; '.join(printed).replace('_', ' ')} |"
    yield ""


PAPER_TABLES = {"Table 1", "Table 2", "Table 3", "Table II", "Table III"}
NOT_PRINTED = {"architecture", "model", "dataset", *published.OF_TABLE}

"""SVG in light and dark, with icons of its own. A drawing remembers its labels, so that a test finds those that overlap or leave a box."""

from dataclasses import dataclass, field
from typing import Literal
from xml.sax.saxutils import escape

Kind = Literal["function", "machine", "bucket", "database", "broker", "instance", "gpu"]
NAMES: dict[Kind, str] = {
    "function": "Lambda function",
    "machine": "Step Functions",
    "bucket": "S3 bucket",
    "database": "tensor database",
    "broker": "RabbitMQ",
    "instance": "EC2 instance",
    "gpu": "GPU instance",
}
STYLE = """
:root{--paper:#fff;--ink:#1b2430;--soft:#576270;--line:#8a96a3;--frame:#b9c2cc;--tint:#f5f7f9;--wait:#e3e7ec;
--function:#c2570c;--machine:#b0245e;--bucket:#2f7a3d;--database:#2456b8;--broker:#7436b0;--instance:#8a6100;--gpu:#00757d}
@media(prefers-color-scheme:dark){:root{--paper:#12171d;--ink:#e8edf2;--soft:#a7b2bd;--line:#73808d;--frame:#46515c;--tint:#1a2129;
--wait:#2b343e;--function:#f59a54;--machine:#f279a8;--bucket:#74c684;--database:#82abf7;--broker:#c394f5;--instance:#ddb44a;--gpu:#4dc6cf}}
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:var(--ink)}
.soft{fill:var(--soft)}.bold{font-weight:600}
.paper{fill:var(--paper)}.box{fill:var(--paper);stroke:var(--line)}.frame{fill:none;stroke:var(--frame)}
.tint{fill:var(--tint);stroke:var(--frame)}.wait{fill:var(--wait);stroke:var(--line);stroke-dasharray:3 3}
.line{stroke:var(--line);fill:none;stroke-width:1.3}.lane{stroke:var(--frame);stroke-dasharray:2 4}
.dashed{stroke-dasharray:5 4}.halo{stroke:var(--paper);stroke-width:4;paint-order:stroke;stroke-linejoin:round}
""" + "".join(
    f".{kind}{{color:var(--{kind})}}.{kind} .fill,.fill.{kind}{{fill:var(--{kind})}}.{kind} .draw,.draw.{kind}"
    f"{{stroke:var(--{kind});fill:none;stroke-width:1.8}}.{kind} .mark{{fill:var(--paper);stroke:none}}\n"
    for kind in NAMES
)
# Each is 24 x 24.
ICONS: dict[Kind, str] = {
    "function": '<rect class="fill" width="24" height="24" rx="5"/>'
    '<path d="M7 5h4l6 14h-3.4l-2.7-6.6L8.2 19H5l4.4-9.6L8.8 8H7z" class="mark"/>',
    "machine": '<g class="draw"><rect x="8" y="1" width="8" height="6" rx="1.5"/><rect x="1" y="17" width="8" height="6" rx="1.5"/>'
    '<rect x="15" y="17" width="8" height="6" rx="1.5"/><path d="M12 7v5M5 17v-5h14v5"/></g>',
    "bucket": '<path class="fill" d="M2 6h20l-3 16H5z"/><ellipse cx="12" cy="6" rx="10" ry="3.5" class="mark"/>'
    '<ellipse cx="12" cy="6" rx="10" ry="3.5" class="draw"/>',
    "database": '<path class="fill" d="M2 5v14c0 2 4.5 4 10 4s10-2 10-4V5z"/><ellipse cx="12" cy="5" rx="10" ry="4" class="mark"/>'
    '<g class="draw"><ellipse cx="12" cy="5" rx="10" ry="4"/></g>',
    "broker": '<rect class="draw" x="1.5" y="4" width="21" height="16" rx="2"/><path class="draw" d="M2 6l10 8 10-8"/>',
    "instance": '<rect class="fill" x="5" y="5" width="14" height="14" rx="2"/>'
    '<path class="draw" d="M8 5V1m4 4V1m4 4V1M8 23v-4m4 4v-4m4 4v-4M5 8H1m4 4H1m4 4H1M23 8h-4m4 4h-4m4 4h-4"/>',
    "gpu": '<rect class="fill" x="1" y="5" width="22" height="14" rx="2"/><circle cx="8" cy="12" r="4" class="mark"/>'
    '<circle cx="16.5" cy="12" r="4" class="mark"/>',
}


@dataclass(frozen=True)
class Label:
    """A text of a drawing with the rectangle that it covers, `left` to `right` and `top` to `bottom`, in pixels. `within`: left and right
    edge, as x positions, that the text must not cross.
    """

    text: str
    left: float
    top: float
    right: float
    bottom: float
    within: tuple[float, float]

    def overlaps(self, other: "Label") -> bool:
        """Return whether the rectangles of two labels overlap by more than half a pixel in both directions."""
        return (
            min(self.right, other.right) - max(self.left, other.left) > 0.5
            and min(self.bottom, other.bottom) - max(self.top, other.top) > 0.5
        )


# Widths in em of DejaVu Sans, the widest face of the style sheet's list, rounded up; its bold face is 1.13 times as wide.
_WIDTHS = {
    each: width
    for width, those in (
        (0.3, "' ,.IJijl"),
        (0.35, "-/:;\\f|"),
        (0.4, "!()[]rt"),
        (0.5, '"*_`sz'),
        (0.55, "?Lc"),
        (0.6, "FPTYaekovxy"),
        (0.7, "ABCRVXZ"),
        (0.75, "DGHNU"),
        (0.8, "&OQw"),
        (0.85, "#+<=>M^~"),
        (1.0, "%m@W"),
    )
    for each in those
}


def measure_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return a text's width in pixels at font size `size`, in the widest font that a browser may use. `bold`: whether the text is bold."""
    return sum(_WIDTHS.get(each, 0.65) for each in text) * size * (1.13 if bold else 1.0)


@dataclass
class Drawing:
    """An SVG picture under construction, to which methods add shapes; later ones cover earlier ones. `width`, `height`: in pixels; `title`:
    text for screen readers; `labels`: all texts so far.
    """

    width: int
    height: int
    title: str
    labels: list[Label] = field(default_factory=list)
    _parts: list[str] = field(default_factory=list)

    def add(self, markup: str) -> None:
        """Append SVG markup to this drawing."""
        self._parts.append(markup)

    def rect(self, x: float, y: float, width: float, height: float, style: str, *, radius: float = 6) -> None:
        """Draw a rectangle with its upper left corner at (`x`, `y`). `width`, `height`: size in pixels; `style`: CSS class; `radius`:
        radius of its corners.
        """
        self.add(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" class="{style}"/>')

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        style: str = "",
        anchor: Literal["start", "middle", "end"] = "start",
        within: tuple[float, float] | None = None,
    ) -> None:
        """Write a text at (`x`, `y`), a point on its baseline; record it in `labels`. Does nothing if the text is empty. `size`: font size
        in pixels; `style`: CSS class; `anchor`: which point of the text lies at `x`; `within`: left and right edge that the text must not
        cross, by default the drawing's.
        """
        if not text:
            return
        width = measure_width(text, size, bold="bold" in style)
        left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * width
        self.labels.append(Label(text, left, y - 0.8 * size, left + width, y + 0.2 * size, within or (0, self.width)))
        self.add(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" class="{style}">{escape(text)}</text>'
        )

    def line(self, path: str, style: str = "line", *, arrow: bool = False) -> None:
        """Draw an SVG path (`path`, as in the attribute `d`). `style`: CSS class; `arrow`: whether it ends in an arrowhead."""
        end = ' marker-end="url(#arrow)"' if arrow else ""
        self.add(f'<path d="{path}" class="{style}"{end}/>')

    def dot(self, x: float, y: float, kind: Kind) -> None:
        """Draw a dot at (`x`, `y`), which marks that a function uses a store. `kind`: kind of the store, which gives the colour."""
        self.add(f'<circle cx="{x:g}" cy="{y:g}" r="4.5" class="fill {kind}"/>')

    def icon(self, x: float, y: float, kind: Kind, *, size: float = 24) -> None:
        """Draw the icon of `kind` with its upper left corner at (`x`, `y`). `size`: its width and height in pixels."""
        self.add(f'<g transform="translate({x:g} {y:g}) scale({size / 24:g})" class="{kind}">{ICONS[kind]}</g>')

    def place(self, other: "Drawing", x: float, y: float) -> None:
        """Insert the drawing `other`, as it is now, with its upper left corner at (`x`, `y`), and its labels likewise."""
        self.add(f'<g transform="translate({x:g} {y:g})">{"".join(other._parts)}</g>')
        for each in other.labels:
            edges = each.within[0] + x, each.within[1] + x
            self.labels.append(Label(each.text, each.left + x, each.top + y, each.right + x, each.bottom + y, edges))

    def svg(self) -> str:
        """Return the complete SVG document as text."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" aria-label="{escape(self.title, {chr(34): "&quot;"})}">\n'
            f"<title>{escape(self.title)}</title>\n<style>{STYLE}</style>\n"
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
            '<path d="M0 0.5L8 4L0 7.5z" style="fill:var(--ink)"/></marker></defs>\n'
            f'<rect width="{self.width}" height="{self.height}" class="paper" rx="8"/>\n'
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )


def find_label_problems(drawing: Drawing) -> list[str]:
    """Return one message for each label that overlaps another one, crosses its edges, or lies outside the drawing."""
    found, labels = [], drawing.labels
    for number, each in enumerate(labels):
        left, right = each.within
        if each.left < left - 0.5 or each.right > right + 0.5 or each.top < 0 or each.bottom > drawing.height:
            found.append(
                f"{each.text!r} leaves its box: {each.left:.0f} to {each.right:.0f} of {left:.0f} to {right:.0f}"
            )
        found += [f"{each.text!r} lies on {other.text!r}" for other in labels[number + 1 :] if each.overlaps(other)]
    return found

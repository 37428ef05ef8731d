"""report.html: self-contained, escaped, and fit for a phone, a laptop and paper (looked at by a real browser)."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from crossover.advice import advice, subject
from crossover.advice import page as advised
from crossover.advice.wishes import Wishes
from crossover.costs import prices
from crossover.errors import DataError
from crossover.reports import comparison, display, folder, html
from crossover.simulation import AWS, breakeven, breakeven_page
from crossover.study.papers import book
from crossover.study.papers.book_page import write as write_book
from crossover.study.papers.measurement import Scale
from crossover.study.papers.parts import chosen, measurements
from tests.architectures.harness import small
from tests.unit.advice.few import few_candidates
from tests.unit.reports.example_run import spirt
from tests.unit.study.papers import made_up

EXAMPLE = spirt(epochs=4)
FAST = spirt(epochs=4, speed=3.0, architecture="all_reduce", name="all-reduce")
VOID = {"meta", "br", "hr", "img", "input", "link"}


@pytest.fixture
def report(tmp_path: Path) -> str:
    folder.write(tmp_path / "spirt", result=EXAMPLE.result(), records=EXAMPLE.records)
    return html.write_report(tmp_path / "spirt").read_text()


class Outline(HTMLParser):
    """Open elements, so that a tag that is never closed is found; visible words."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words)).replace(display.GAP, " ")


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    assert found.open == []
    return found


def test_the_page_is_whole_and_asks_for_nothing_from_elsewhere(report: str) -> None:
    page = outline(report)
    assert not page.tags & {"script", "link", "img", "iframe", "object"}
    assert all(link.startswith("#") for link in page.links)
    assert "@import" not in report and "url(http" not in report
    assert "default-src 'none'" in report
    ids = re.findall(r'\bid="([^"]+)"', report)
    assert len(ids) == len(set(ids))


def test_what_the_page_says(report: str) -> None:
    text = outline(report).text
    result = EXAMPLE.result()
    for words in (
        "Accuracy against time", "Accuracy against dollars", "Loss", "Time by stage", "Largest cost lines", "Traffic",
        "Every invocation", "Stages", "Steps", "Cost, line by line", "What the papers printed", "Configuration", "Versions",
        "projected from local seconds", "measured-local", "published", "training.batch_size", "default 20", "2.13.0",
        "cold start", "wait for a core", "failed or stale",
        display.usd(result["cost"]["full_usd"]), display.usd(result["cost"]["paper_method_usd"]),
    ):  # fmt: skip
        assert words in text, words
    for line in result["cost"]["lines"]:
        assert line["item"] in text
    for row in (*result["stages"], *result["steps"]):
        assert (row.get("stage") or row.get("step")) in text


@pytest.mark.slow
def test_what_is_missing_stands_on_the_page(tmp_path: Path) -> None:
    records = [r for r in EXAMPLE.records if r["step"] != "update_model"]
    result = EXAMPLE.result(records=records, failure="worker 2: Unavailable", final=None)
    folder.write(tmp_path, result=result, records=records)
    text = outline(html.write_report(tmp_path).read_text()).text
    assert "this run failed: worker 2: Unavailable" in text
    assert "incomplete: update_model: 16 of 16 records missing" in text


@pytest.mark.slow
def test_hostile_names_stay_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    run = folder.write(tmp_path / "<b>&amp;", result=EXAMPLE.result(failure=evil), records=EXAMPLE.records)
    versions = {evil: '"><img src=x>'}
    other = folder.write(tmp_path / "x", result=FAST.result(versions=versions), records=FAST.records)
    for text in (
        html.write_report(run).read_text(),
        html.write_report(other).read_text(),
        html.write_comparison(comparison.of([run, other]), tmp_path / "out").read_text(),
    ):
        page = outline(text)
        assert not page.tags & {"script", "img", "b>"}
        assert "<b>&amp;" not in text.replace("&lt;b&gt;&amp;amp;", "")


def test_a_run_without_epochs_or_records(tmp_path: Path) -> None:
    result = EXAMPLE.result(records=[], epochs=[], final=None, failure="nothing started")
    folder.write(tmp_path, result=result, records=[])
    assert "nothing started" in outline(html.write_report(tmp_path).read_text()).text


def test_no_run_no_report(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"result\.json: is not there"):
        html.write_report(tmp_path)


def comparison_page(tmp_path: Path) -> Path:
    runs = [
        folder.write(tmp_path / "spirt", result=EXAMPLE.result(), records=EXAMPLE.records),
        folder.write(tmp_path / "all-reduce", result=FAST.result(), records=FAST.records),
    ]
    return html.write_comparison(comparison.of(runs), tmp_path / "comparison")


def replication_page(out: Path) -> Path:
    parts, scale = chosen(["all"]), Scale(0.02)
    finished = made_up.outcome(measurements(parts, scale), scale)
    return write_book(book.of(parts, finished, scale, command="crossover replicate all"), out)


def projection_page(out: Path) -> Path:
    own = small("spirt", workers=4, epochs=5)
    found = breakeven.breakeven(
        [own, replace(own, name="other", architecture="all_reduce")], AWS, prices.load(), repetitions=3
    )
    return breakeven_page.write(found, out)


def advice_page(out: Path) -> Path:
    question, sizes, notes = subject.of(small("single", workers=1, epochs=2))
    with few_candidates():
        found = advice.advise(question, Wishes(on_hand=("lambda", "gpu")), sizes, processes=1, repetitions=5)
    return advised.write(found, out, notes)


def other_pages(tmp_path: Path) -> tuple[Path, ...]:
    return (
        replication_page(tmp_path / "replication"),
        projection_page(tmp_path / "projection"),
        advice_page(tmp_path / "advice"),
    )


def test_the_comparisons_page(tmp_path: Path) -> None:
    path = comparison_page(tmp_path)
    page = outline(path.read_text())
    for words in (
        "no verdict on measured seconds: no goal was named beforehand",
        "Side by side",
        "What the papers printed",
    ):
        assert words in page.text, words
    assert page.text.count("Cost, line by line") == 2
    assert (path.parent / "comparison.csv").read_text().startswith("name,architecture,label,cost_label,")


# --- by a browser -----------------------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
# Sizes as the laid-out page has them; appended to a copy of the report, which itself has no script. The copy lies in a frame
# of the wanted width, because a headless window is never narrower than 500 pixels.
FRAME = """<!doctype html><iframe width="{width}" height="900" style="border: 0" srcdoc="{page}"
onload="document.title = this.contentDocument.title"></iframe>"""
WATCH = """<script>
window.seen = [];
window.addEventListener("error", e => window.seen.push(String(e.message || e.target)), true);
console.error = (...words) => window.seen.push(words.join(" "));
</script>"""
PROBE = """<script>
const width = document.documentElement.clientWidth;
const drawn = [...document.querySelectorAll("svg.plot")].map(e => e.getBoundingClientRect());
const small = [...document.querySelectorAll("figure:not(.wide) svg text")].map(t => t.getBoundingClientRect().height);
const wide = [...document.querySelectorAll("section, figure, h1, p, .tile")].filter(e => e.getBoundingClientRect().right > width + 1);
const ink = getComputedStyle(document.querySelector(".plot")).color;
document.title = JSON.stringify({width, scroll: document.documentElement.scrollWidth, text: Math.min(...small),
  plots: drawn.length, flat: drawn.filter(r => r.width < 100 || r.height < 50).length, errors: window.seen || [],
  wide: wide.length, ink, page: getComputedStyle(document.body).backgroundColor});
</script>"""


def browse(page: Path, tmp_path: Path, *flags: str) -> str:
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    shutil.rmtree(tmp_path / "profile", ignore_errors=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize("width", [390, 820, 1280])
def test_nothing_sticks_out_and_plots_stay_legible(tmp_path: Path, width: int) -> None:
    page = comparison_page(tmp_path)
    folder.write(tmp_path / "run", result=EXAMPLE.result(), records=EXAMPLE.records)
    for path in (page, html.write_report(tmp_path / "run"), *other_pages(tmp_path)):
        framed = path.with_name("framed.html")
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text())
        text = text.replace("<head>", f"<head>{WATCH}").replace("</body>", f"{PROBE}</body>")
        framed.write_text(FRAME.format(width=width, page=escape(text)))
        dom = browse(framed, tmp_path, "--hide-scrollbars", "--window-size=1400,1000", "--dump-dom")
        found = re.search(r"<title>(\{.*?\})</title>", dom)
        assert found, dom[-500:]
        seen = json.loads(unescape(found[1]))
        assert width - 20 <= seen["width"] <= width  # less a scroll bar
        assert seen["plots"] == path.read_text().count("<svg") > 0, "a plot is not there"
        assert seen["flat"] == 0, "a plot has no area"
        assert seen["errors"] == [], "the console has errors"
        assert seen["scroll"] <= seen["width"], "the page scrolls sideways"
        assert seen["wide"] == 0
        assert seen["text"] >= 8.0, "text in plots is too small"


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")
def test_it_prints(tmp_path: Path) -> None:
    folder.write(tmp_path / "run", result=EXAMPLE.result(), records=EXAMPLE.records)
    for page in (html.write_report(tmp_path / "run"), *other_pages(tmp_path)):
        browse(page, tmp_path, f"--print-to-pdf={tmp_path / 'report.pdf'}", "--no-pdf-header-footer")
        assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
        (tmp_path / "report.pdf").unlink()

"""report.html: self-contained, escaped, and what it says. A real browser judges how it looks: tests/browser."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import Markup

from crossover.reports import comparison, display, folder, report_pages
from crossover.reports.pages import Page
from tests.browser.pages import EXAMPLE, FAST, comparison_page

VOID = {"meta", "br", "hr", "img", "input", "link"}


@pytest.fixture
def report(tmp_path: Path) -> str:
    """Return the HTML of an example's run page."""
    folder.write(tmp_path / "spirt", result=EXAMPLE.result(), records=EXAMPLE.records)
    return report_pages.write_report(tmp_path / "spirt").read_text()


class Outline(HTMLParser):
    """A parser that keeps a page's open elements, visible words, tags and links. A tag that is never closed stays in `open`."""

    def __init__(self) -> None:
        """Start without elements, words, tags and links."""
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag and its links, and open the element unless it is a void one."""
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag and its links; the element is closed at once."""
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element; fail if it is another one."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note the text unless it is a style sheet."""
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        """Return the page's text with plain single spaces."""
        return re.sub(r"\s+", " ", " ".join(self.words)).replace(display.GAP, " ")


def outline(text: str) -> Outline:
    """Return the outline of a page; fail if an element stays open."""
    found = Outline()
    found.feed(text)
    assert found.open == []
    return found


def test_the_page_is_whole_and_asks_for_nothing_from_elsewhere(report: str) -> None:
    """A report's page has no script and loads nothing; it links to its own parts and to two files of its folder only."""
    page = outline(report)
    assert not page.tags & {"script", "link", "img", "iframe", "object"}
    files = {link for link in page.links if not link.startswith(("#", "data:text/csv;", "data:image/svg+xml;"))}
    assert files == {"result.json", "metrics.jsonl"}, "files of the same folder"
    assert "@import" not in report and "url(http" not in report
    for directive in ("default-src", "base-uri", "form-action"):
        assert f"{directive} 'none';" in report or f"{directive} 'none'\"" in report
    ids = re.findall(r'\bid="([^"]+)"', report)
    assert len(ids) == len(set(ids))


def test_tables_and_plots_can_be_downloaded_from_the_page_alone(report: str) -> None:
    """The page contains its tables as CSV and its six plots as SVG, as links that need no other file."""
    links = [
        base64.b64decode(link.split(",", 1)[1]).decode() for link in outline(report).links if link.startswith("data:")
    ]
    tables = [link for link in links if not link.startswith("<svg")]
    stages = next(link for link in tables if link.startswith("stage,count,wall"))
    assert len(stages.splitlines()) == 1 + len(EXAMPLE.result()["stages"])
    pictures = [link for link in links if link.startswith("<svg")]
    assert len(pictures) == 6 and all("var(--" not in each and "currentColor" not in each for each in pictures)


def test_the_eight_largest_lines_of_the_bill_are_drawn() -> None:
    """The plot of costs has the eight largest lines of ten, the largest first."""
    result = EXAMPLE.result()
    result["cost"]["lines"] = [{"item": f"line {n}", "usd": float(n)} for n in range(10)]
    (bars,) = [each for each in report_pages._run_bars(result) if each.title == "Largest cost lines"]
    assert re.findall(r"line \d", str(bars.svg)) == [f"line {n}" for n in range(9, 1, -1)]


def test_what_the_page_says(report: str) -> None:
    """The page shows every plot, table, label and cost of the result, and all its stages, steps and cost lines."""
    text = outline(report).text
    result = EXAMPLE.result()
    for words in (
        "Accuracy against time", "Accuracy against dollars", "Loss", "Time by stage", "Largest cost lines", "Traffic",
        "Every invocation", "Stages", "Steps", "Cost by item", "Published results", "Configuration", "Versions",
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
    """The page states a run's failure and its missing records."""
    records = [r for r in EXAMPLE.records if r["step"] != "update_model"]
    result = EXAMPLE.result(records=records, failure="worker 2: Unavailable", final=None)
    folder.write(tmp_path, result=result, records=records)
    text = outline(report_pages.write_report(tmp_path).read_text()).text
    assert "this run failed: worker 2: Unavailable" in text
    assert "incomplete: update_model: 16 of 16 records are missing" in text


@pytest.mark.slow
def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """HTML in the names and messages of runs is shown as text in reports and comparisons."""
    evil = "<script>alert(1)</script>"
    run = folder.write(tmp_path / "<b>&amp;", result=EXAMPLE.result(failure=evil), records=EXAMPLE.records)
    versions = {evil: '"><img src=x>'}
    other = folder.write(tmp_path / "x", result=FAST.result(versions=versions), records=FAST.records)
    for text in (
        report_pages.write_report(run).read_text(),
        report_pages.write_report(other).read_text(),
        report_pages.write_comparison(comparison.compare_runs([run, other]), tmp_path / "out").read_text(),
    ):
        page = outline(text)
        assert not page.tags & {"script", "img", "b>"}
        assert "<b>&amp;" not in text.replace("&lt;b&gt;&amp;amp;", "")


def test_a_run_without_epochs_or_records(tmp_path: Path) -> None:
    """A run that failed at its start has a page with its failure."""
    result = EXAMPLE.result(records=[], epochs=[], final=None, failure="nothing started")
    folder.write(tmp_path, result=result, records=[])
    assert "nothing started" in outline(report_pages.write_report(tmp_path).read_text()).text


def test_the_comparisons_page(tmp_path: Path) -> None:
    """The comparison's page has the verdict, the runs' table, published results and each run's costs, and a CSV file lies beside it."""
    path = comparison_page(tmp_path)
    page = outline(path.read_text())
    for words in (
        "no winner by measured time: the runs have no common target",
        "On this machine: side by side",
        "Published results",
    ):
        assert words in page.text, words
    assert page.text.count("Cost by item") == 2
    assert "time papers' method projected dollars at AWS's prices projected" in page.text
    assert "total AWS bill" not in page.text, "these runs were on this machine, without a projection"
    assert page.text.count("spirt, 4 workers") == page.text.count("all_reduce, 4 workers") == 1
    assert "Dollars and traffic measured-local projected" in page.text
    assert (path.parent / "comparison.csv").read_text().startswith("name,architecture,label,cost_label,")


def test_sentences_have_no_raw_marks() -> None:
    """Backticks become code and bracketed labels badges, in escaped text; values of a configuration are written as people write them."""
    page = Page(title="t", subtitle="s", labels=[], verdict="[projected] `a<b>`, [other]", caveats=["`x`"])
    text = report_pages.render(page)
    assert '<span class="label projected">projected</span> <code>a&lt;b&gt;</code>, [other]' in text
    assert "<code>x</code>" in text
    values = [None, True, 1e-05, [], ["a", 2], 0.5]
    assert [display.plain(each) for each in values] == [display.DASH, "true", "0.00001", display.DASH, "a, 2", "0.5"]


def test_data_cannot_end_their_script_and_the_policy_names_ours_alone() -> None:
    """Data with HTML in it is embedded in a page without ending its script element; the policy allows the page's own script only."""
    evil, script = {"name": "</script><script>alert(1)</script><!--"}, 'say("<b>&")'
    text = report_pages.render(
        Page(title="t", subtitle="s", labels=[], data=json.dumps(evil), scripts=[Markup(script)])
    )
    found = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    assert [json.loads(found[0]), *found[1:]] == [evil, script]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'\">" in text

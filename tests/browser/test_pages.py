"""Every kind of page as a phone, a tablet, a desk and paper have it, light and dark, judged by axe-core in Chromium."""

from pathlib import Path

import pytest

from tests.browser.chromium import judged
from tests.browser.pages import PAGES

MOST_SHEETS = {"comparison": 10, "advice": 8}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PAGES)
def test_a_page_has_nothing_serious(kind: str, tmp_path: Path) -> None:
    """Check that axe-core has no serious finding, nothing sticks out, no error and no request occurs, and the page prints on few sheets."""
    wrong, sheets = judged(PAGES[kind](tmp_path), tmp_path)
    assert wrong == []
    assert 1 <= sheets <= MOST_SHEETS.get(kind, 40)


FAULTY = """<!doctype html><html><head><meta charset="utf-8"><title>faulty</title></head><body>
<p style="color: #999; background: #aaa">pale</p><section style="width: 3000px">wide</section>
<svg class="plot" aria-label="tiny" width="9" height="9"></svg><img src="http://192.0.2.1/a.png" alt="far">
<script>console.error("said")</script></body></html>"""


def test_the_judge_finds_planted_faults_of_a_page(tmp_path: Path) -> None:
    """Check that each planted fault of a page is found."""
    page = tmp_path / "faulty.html"
    page.write_text(FAULTY)
    wrong = "\n".join(judged(page, tmp_path)[0])
    for words in (
        "390: it scrolls sideways",
        "1440: it sticks out: SECTION wide",
        "820: a plot has no area: tiny",
        "the console: said",
        "it asks for http://192.0.2.1/a.png",
        "390, dark: axe: color-contrast",
        "axe: html-has-lang",
    ):
        assert words in wrong, words

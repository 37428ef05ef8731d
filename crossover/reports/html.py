"""Pages: one file each, without anything from elsewhere, for a screen of any width, for paper, dark or light. Those of `play` alone have
scripts, which the page's policy knows by their hashes.
"""

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from crossover.reports import comparison_page, folder, run_page
from crossover.reports.comparison import Comparison, to_csv
from crossover.reports.folder import RunFolder
from crossover.reports.looks import PALETTE
from crossover.reports.on_aws import OnAws
from crossover.reports.page import LABELS, Page

CSV = "comparison.csv"
SCRIPTS = Path(__file__).parent


def write_report(run: Path | RunFolder, on_aws: OnAws | None = None) -> Path:
    """Write `report.html` into a run's folder; `on_aws`: what the run would take there. Raises DataError for a folder that holds no run."""
    if isinstance(run, Path):
        run = folder.read(run)
    target = run.path / folder.REPORT
    folder.write_atomically(target, render(run_page.page(run, on_aws)).encode())
    return target


def write_comparison(found: Comparison, out: Path) -> Path:
    """Write `report.html` and `comparison.csv` into `out`; the path of the page."""
    out.mkdir(parents=True, exist_ok=True)
    folder.write_atomically(out / CSV, to_csv(found).encode())
    folder.write_atomically(out / folder.REPORT, render(comparison_page.page(found)).encode())
    return out / folder.REPORT


def render(page: Page) -> str:
    """`page` as HTML. Everything but our own SVG is escaped."""
    environment = Environment(
        loader=FileSystemLoader(SCRIPTS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.jinja").render(
        page=page,
        meanings=LABELS,
        palette=PALETTE,
        hashes=[_hash(script) for script in page.scripts],
        data=Markup(page.data.replace("<", "\\u003c")),  # in JSON the same, in HTML no tag
    )


def _hash(script: str) -> str:
    """As a content security policy names a script that stands in the page."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"

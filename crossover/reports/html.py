"""report.html: one file without scripts or anything from elsewhere, for a screen of any width, for paper, dark or light."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from crossover.reports import comparison_page, folder, run_page
from crossover.reports.comparison import Comparison, to_csv
from crossover.reports.folder import RunFolder
from crossover.reports.looks import PALETTE
from crossover.reports.on_aws import OnAws
from crossover.reports.page import LABELS, Page

CSV = "comparison.csv"


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
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.jinja").render(page=page, meanings=LABELS, palette=PALETTE)

"""The pictures of docs/pages.md, made anew from a break-even, advice and runs of today: `python -m tools.screenshots` (minutes; Chromium).

Each is the first screen of a page, in 256 colours, so that all together stay small.
"""

import contextlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from crossover.advice import advice, page
from crossover.advice import question as subject
from crossover.advice.question import Constraints, make_sizes_function
from crossover.cli.arguments import load_runnable
from crossover.reports import prices
from crossover.simulation import AWS, breakeven_page
from tests.browser.chromium import asked
from tests.browser.pages import comparison_page, run_page
from tools import refuse_arguments

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "config" / "all-reduce-cifar10.yaml"
OUT = ROOT / "docs" / "pages"


def write_sliders(out: Path) -> Path:
    """Simulate the project's example, write the break-even page with sliders into the folder `out`, and return the page's path."""
    experiment = load_runnable(CONFIG, None)
    return breakeven_page.write_sliders(
        breakeven_page.simulate_grid([experiment], AWS, prices.load(), sizes=make_sizes_function(experiment)), out
    )


def write_recommendation(out: Path) -> Path:
    """Compute the advice of README's quick start, write its page into the folder `out`, and return the page's path."""
    question, needs, notes = subject.build_question(load_runnable(CONFIG, None))
    found = advice.advise(question, Constraints(deadline_s=7_200.0, budget_usd=5.0), needs)
    files = page.plan_files(found, Path("advice"), config=CONFIG).yamls
    return page.write_page(found, out, notes, files)


SHOTS: tuple[tuple[str, Callable[[Path], Path], int, int, bool], ...] = (
    ("play", write_sliders, 1440, 960, False),
    ("play-phone-dark", write_sliders, 390, 844, True),
    ("advice", write_recommendation, 1440, 960, False),
    ("advice-phone-dark", write_recommendation, 390, 844, True),
    ("run-dark", run_page, 1440, 960, True),
    ("comparison-phone", comparison_page, 390, 844, False),
)


def main() -> None:
    """Write all pages of SHOTS in a temporary folder, and save a screenshot of each in docs/pages, replacing earlier ones. Changes the
    current folder while it works.
    """
    OUT.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
    ):  # so that a page names no path of this machine
        made = {of: of(Path("results") / of.__name__).resolve() for of in dict.fromkeys(of for _, of, *_ in SHOTS)}
        shots = [
            {"page": str(made[of]), "png": str(OUT / f"{name}.png"), "width": width, "height": height, "dark": dark}
            for name, of, width, height, dark in SHOTS
        ]
        for png in asked("shoot.mjs", Path(folder), json.dumps(shots)):
            with Image.open(png) as picture:
                picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(png, optimize=True)
            print(f"{Path(png).relative_to(ROOT)}: {Path(png).stat().st_size:,} bytes")


if __name__ == "__main__":
    refuse_arguments(__doc__)
    main()

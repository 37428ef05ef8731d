"""A real browser, driven by playwright-core as package-lock.json pins it."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
PATIENT_S = 1_500


def asked(script: str, tmp_path: Path, *arguments: str | Path) -> Any:
    """Run a script of this folder in Chromium, and return the JSON that it prints. `tmp_path`: folder for a browser profile, which is
    deleted afterwards. Raises AssertionError if Chromium is missing or the script fails.
    """
    assert CHROMIUM, "Chromium is not installed: make browser"
    assert (ROOT / "node_modules" / "playwright-core").is_dir(), "playwright-core is not installed: make node_modules"
    command = [str(ROOT / ".venv" / "bin" / "node"), str(Path(__file__).parent / script), CHROMIUM]
    done = subprocess.run(
        [*command, str(tmp_path / "profile"), *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=PATIENT_S,
        check=False,
    )
    shutil.rmtree(tmp_path / "profile", ignore_errors=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def judged(page: Path, tmp_path: Path) -> tuple[list[str], int]:
    """Return (what is wrong with a page at each width, in dark mode and printed, number of sheets that it prints on)."""
    ((_, found),) = asked("judge.mjs", tmp_path, page).items()
    return found["wrong"], found["sheets"]

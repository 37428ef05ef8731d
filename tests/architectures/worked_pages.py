"""Pages of docs/ whose code blocks are whole files and whose console blocks are run as they stand."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def written(page: str, folder: Path) -> list[str]:
    """The page's files in `folder`, each called as its first line says; its console blocks."""
    consoles = []
    for language, text in BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8")):
        name = text.partition("\n")[0].removeprefix("# ")
        if language == "console":
            consoles.append(text)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    return consoles


def words(line: str) -> str:
    """A line without what depends on the machine: figures, their width, the break where a terminal ends; the training loss, whose records
    may come after an epoch's end.
    """
    return " ".join(re.sub(r"\d[\d.,]*", "0", re.sub("  loss [0-9.]+", "", line)).split())


def run(command: str, folder: Path) -> str:
    program, *arguments = shlex.split(command)
    called = {"python": [sys.executable], "crossover": [sys.executable, "-m", "crossover.cli"]}[program]
    done = subprocess.run([*called, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def check(console: str, folder: Path) -> None:
    """Run the block's commands; every line that it shows is printed, in that order."""
    printed: list[str] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            printed += map(words, run(line[2:], folder).splitlines())
        elif line != "...":
            assert words(line) in printed, line
            del printed[: printed.index(words(line)) + 1]

"""Pages of docs/ whose code blocks are whole files and whose console blocks are run as they stand."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def written(page: str, folder: Path) -> list[str]:
    """Write the code blocks of a page in docs/ into `folder`, each under the name in its first line, and return the
    page's console blocks.
    """
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
    """Return a line of output with its numbers replaced by 0, its spaces normalized and the training loss removed, so that it does not
    depend on the machine.
    """
    return " ".join(re.sub(r"\d[\d.,]*", "0", re.sub("  loss [0-9.]+", "", line)).split())


def run(command: str, folder: Path) -> str:
    """Run a command of a page in `folder`, and return what it prints. Fails if the command fails."""
    program, *arguments = shlex.split(command)
    called = {"python": [sys.executable], "crossover": [sys.executable, "-m", "crossover.cli"]}[program]
    done = subprocess.run([*called, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def check(console: str, folder: Path) -> None:
    """Run the commands of a console block in `folder`, and check that each line that the block shows is printed, in this order."""
    printed: list[str] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            printed += map(words, run(line[2:], folder).splitlines())
        elif line != "...":
            assert words(line) in printed, line
            del printed[: printed.index(words(line)) + 1]

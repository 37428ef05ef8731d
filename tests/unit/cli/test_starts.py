"""How commands start: they import only what they need, and say what they are at before it takes long."""

import io
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from crossover.cli import arguments
from crossover.pools import PooledJobs

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "config"
MADE = str(CONFIG / "all-reduce-s3.yaml")


def test_help_imports_no_command_and_groups_them_by_what_they_are_for() -> None:
    """`--help` imports no command's module, and lists the commands by panels in their order."""
    code = (
        "import sys; from crossover.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in sys.modules if name.startswith('crossover')])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    *shown, imported = said.splitlines()
    assert not {"crossover.validation", "crossover.simulation", "crossover.cli.run"} & set(eval(imported))
    places = [
        next(n for n, line in enumerate(shown) if f"─ {panel} ─" in line) for panel in ("Train", "Decide", "Deploy")
    ]
    assert places == sorted(places)
    assert any("--version" in line for line in shown) and any("--install-completion" in line for line in shown)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("plan", MADE), ("plan", str(CONFIG / "spirt.yaml")), ("doctor", MADE)])
def test_what_looks_at_a_file_alone_imports_nothing_that_takes_seconds(arguments: tuple[str, ...]) -> None:
    """The command imports neither torch, matplotlib, boto3, the CDK nor numpy."""
    code = (
        "import sys; from crossover.cli.main import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'matplotlib', 'boto3', 'aws_cdk', 'numpy') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert said.splitlines()[-1] == "[]"


def test_sizes_of_every_codec_need_no_torch() -> None:
    """Each codec says how many bytes it exchanges before torch is imported, which would cost each process of a search seconds."""
    code = (
        "import sys; from crossover.algorithms.codecs import CODECS, build_codec; from crossover.experiment import Exchange\n"
        "for name in CODECS:\n"
        "    codec = build_codec(Exchange(compression=name))\n"
        "    assert codec.exchanged_bytes(12, 2, workers=3, shapes=lambda: [[4, 3]])\n"
        "print('torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert said.stdout == "False\n", said.stderr


@pytest.mark.slow
def test_a_first_estimate_stands_there_before_torch_is_imported(tmp_path: Path) -> None:
    """`advise` prints its first estimate for a built-in model before it imports torch."""
    code = (
        "import sys; from crossover.advice import explain\n"
        "from crossover.cli import advise\n"
        "advise._print_first_estimate = lambda words: sys.exit(f'{words.words} {\"torch\" in sys.modules}')\n"
        f"advise.advise(advise.Path({MADE!r}), on_hand='lambda,ec2')"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    ).stderr
    assert re.fullmatch(
        r"one .+: about .+ \(.+ to .+\), start-up among them, and \$[\d.]+ \(\$.+ to \$.+\) False\n", said
    ), said


class _Heard(io.StringIO):
    """A stream in the place of standard error. `told`: event that is set once `words` were written."""

    def __init__(self, words: str) -> None:
        """Wait for `words`."""
        super().__init__()
        self.words, self.told = words, threading.Event()

    def write(self, text: str, /) -> int:
        """Append the text and set `told` if all that was written now holds the words."""
        written = super().write(text)
        if self.words in self.getvalue():
            self.told.set()
        return written


def test_long_work_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting prints how many parts of the work are done, the time so far and the time left."""
    tally, heard = PooledJobs(), _Heard("2 of 6 parts")
    monkeypatch.setattr(arguments, "POOLED", tally)
    monkeypatch.setattr(sys, "stderr", heard)
    monkeypatch.setitem(arguments.UPDATE_EVERY_S, False, 0.01)
    with arguments.show_waiting("30 repetitions"):
        tally.given, tally.done = 6, 2
        assert heard.told.wait(60)
    assert re.search(r"30 repetitions: 2 of 6 parts, \d.* so far, about \d.* left", heard.getvalue())
    told = arguments.format_wait("searching", 100, 500, 10.0, usual=(300, 800))
    assert told == "searching: 100 parts of usually 300 to 800, 10.0 s so far"
    assert arguments.format_wait("searching", 900, 950, 90.0, usual=(300, 800)).endswith("800, 90.0 s so far")

"""`crossover run` killed with -9 at any of the moments at which it touches its folder: what stood there before stays whole, and never poses
as the new run's; `--resume` ends with the bits of a run that nobody disturbed.
"""

import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import WHOLE

# The command, in a process that ends without a word at the `at`th touch of its folder; else their number is the last line.
KILLED = """
import os, signal, sys
from crossover.cli.main import main
at, out, touched = int(sys.argv[1]), sys.argv[2], [0]
TOUCHES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link")

def count(event, given):
    if event in TOUCHES and any(isinstance(each, (str, os.PathLike)) and os.fspath(each).startswith(out) for each in given):
        touched[0] += 1
        if touched[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
try:
    main(sys.argv[3:])
finally:
    print(touched[0])
"""
MOMENTS, LOCAL_MOMENTS = 30, 10
EARLIER = ("result.json", "metrics.jsonl", "model.safetensors", "report.html")


def command(
    folder: Path, out: Path, *options: str, on: str = "inline", at: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run `crossover run` on mine.yaml of the folder, killed at its `at`-th touch of `out` (0: never), and return the ended process. The
    last line that it prints, unless killed, is the number of touches.
    """
    given = ["run", str(folder / "mine.yaml"), "--on", on, *options]
    code = [sys.executable, "-c", KILLED, str(at), str(out), *given]
    return subprocess.run(code, capture_output=True, text=True, check=False)


def written(folder: Path) -> None:
    """Write mine.yaml into the folder: an experiment of the architecture that is the folder's name without digits at its end."""
    name = folder.name.rstrip("0123456789")
    settings = (
        "workers: 2\ntraining: {epochs: 4, batch_size: 60}\ndata: {limit: 240}\nfunctions: {checkpoint_every: 2}\n"
    )
    (folder / "mine.yaml").write_text(f"name: mine\narchitecture: {name}\n{settings}")


@pytest.fixture(scope="module", params=["spirt", "all_reduce", "p2p_instance"])
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Return a folder with an experiment and a finished run of it, and how often a second run in the same folder touches that folder."""
    folder = tmp_path_factory.mktemp(request.param)
    written(folder)
    for _ in range(2):
        ended = command(folder, folder / "out", "--out", str(folder / "out"))
        assert ended.returncode == 0, ended.stderr
    return folder, int(ended.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize("moment", range(MOMENTS) if WHOLE else (7, 22))
def test_killed_at_a_touch_of_its_folder(moment: int, undisturbed: tuple[Path, int], tmp_path: Path) -> None:
    """Kill the command at a random touch of its folder, and check that an earlier run in the folder is kept whole, and that the killed run
    can be resumed or started again.
    """
    folder, touches = undisturbed
    out = tmp_path / "out"
    earlier = {name: (folder / "out" / name).read_bytes() for name in EARLIER}
    out.mkdir()
    for name in EARLIER:
        shutil.copy2(folder / "out" / name, out / name)
    span = touches / MOMENTS
    at = 1 + int(moment * span + random.Random(f"{folder.name} {moment}").random() * span)
    killed = command(folder, out, "--out", str(out), at=at)
    assert killed.returncode in (-signal.SIGKILL, 0)
    results = [path / "result.json" for path in (out, *out.glob("2*"))]
    kept = [path.parent for path in results if path.is_file() and path.read_bytes() == earlier["result.json"]]
    if kept == [out]:
        assert not (out / "unfinished").exists(), "the older run poses as this one"
    if kept and kept != [out]:
        # Killed while they moved, some lie where they were: the next run goes on with that.
        lie = {name: next(path / name for path in (kept[0], out) if (path / name).exists()) for name in earlier}
        assert all(lie[name].read_bytes() == body for name, body in earlier.items())
    if (out / "unfinished").exists():
        told = sum(line.startswith("epoch") for line in killed.stdout.splitlines())
        assert len(list((out / "unfinished").glob("runs/*/decision/*"))) >= told, "an epoch that was told of is kept"
        resumed = command(folder, out, "--resume", str(out))
        assert resumed.returncode == 0, resumed.stderr
        assert (out / "model.safetensors").read_bytes() == earlier["model.safetensors"]


@pytest.fixture(scope="module", params=["spirt", "all_reduce", "p2p_instance"] if WHOLE else ["spirt"])
def on_local(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Return a folder with an experiment and a finished run of it on this machine's local cloud, and how often that run touched
    the folder.
    """
    folder = tmp_path_factory.mktemp(request.param)
    written(folder)
    ended = command(folder, folder / "out", "--out", str(folder / "out"), on="local")
    assert ended.returncode == 0, ended.stderr
    return folder, int(ended.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize("moment", range(LOCAL_MOMENTS) if WHOLE else (LOCAL_MOMENTS // 2,))
def test_killed_on_the_cloud_on_this_machine(moment: int, on_local: tuple[Path, int], tmp_path: Path) -> None:
    """Check that a run on the local cloud, whose command is killed at some moment, can be resumed to the same model from its folder.

    The run's databases, broker and buckets end with the command.
    """
    folder, touches = on_local
    out, span = tmp_path / "out", touches / LOCAL_MOMENTS
    at = 1 + int(moment * span + random.Random(f"{folder.name} {moment}").random() * span)
    killed = command(folder, out, "--out", str(out), on="local", at=at)
    assert killed.returncode in (-signal.SIGKILL, 0)
    if (out / "unfinished").exists():
        told = sum(line.startswith("epoch") for line in killed.stdout.splitlines())
        assert len(list((out / "unfinished").glob("runs/*/decision/*"))) >= told, "an epoch that was told of is kept"
        resumed = command(folder, out, "--resume", str(out), on="local")
        assert resumed.returncode == 0, resumed.stderr
    assert (out / "model.safetensors").read_bytes() == (folder / "out" / "model.safetensors").read_bytes()

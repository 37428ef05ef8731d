"""An inline run that is stopped: its threads end, and what it had reached is kept."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from crossover import runtime
from crossover.running.inline import run_inline
from crossover.running.monitor import Progress
from crossover.running.resume import holds_unfinished
from tests.architectures.harness import claiming, small

ROOT = Path(__file__).parents[2]


def interrupt(progress: Progress) -> None:
    """Raise KeyboardInterrupt at the first report of progress, as Ctrl-C does."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("architecture", claiming("stops"))
def test_a_stopped_run_computes_no_more_and_keeps_its_checkpoint(architecture: str, tmp_path: Path) -> None:
    """Check that an interrupted run computes nothing afterwards and keeps its checkpoint. A notebook's process is needed for other work
    after the run.
    """
    with pytest.raises(KeyboardInterrupt):
        run_inline(small(architecture, epochs=1_000), tmp_path, interrupt)
    for thread in threading.enumerate():
        if isinstance(thread, runtime.ProcessThread):
            thread.join(120)
            assert not thread.is_alive()
    assert holds_unfinished(tmp_path)


WAITS_FOR_ITS_PEER = """
import sys, threading
from crossover import runtime
from crossover import processes
from crossover.stores.clients import MemoryClients
from crossover.workflow.context import Context, Resources
from crossover.workflow import ForEach, Step, execute, first_event

entered = threading.Event()

def body(ctx, event):
    entered.set()
    threading.Event().wait()

tree = ForEach("worker", "workers", Step("wait", "tests", body), together=True)
context = Context(Resources(MemoryClients(workers=2)), run="r")
runtime.thread(execute, tree, context, first_event("r", workers=2)).start()
entered.wait()
"""


@pytest.mark.parametrize(("end", "status"), [("sys.exit(3)", 3), ("print('told'); processes.exit_at_once(4)", 4)])
def test_a_process_ends_though_workers_still_wait(end: str, status: int) -> None:
    """Check that a process ends with its own exit status although a thread of it still waits for a peer."""
    ended = subprocess.run(
        [sys.executable, "-c", WAITS_FOR_ITS_PEER + end],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == status, ended.stderr
    assert ended.stdout == ("told\n" if status == 4 else "")


COMPUTES_ON = """
import sys, threading
import torch
from crossover import runtime
from crossover.cli.main import main

computes = threading.Event()

def compute():
    matrix = torch.ones(300, 300)
    while True:
        matrix @ matrix
        computes.set()

runtime.thread(compute).start()
computes.wait()
sys.argv = ["crossover", "schema"]
main()
"""


@pytest.mark.slow
def test_a_command_ends_as_it_should_though_torch_still_computes() -> None:
    """Check that a command ends with status 0 while torch still computes in a thread.

    The interpreter's own end would tear the thread out of torch: std::terminate, exit status -6.
    """
    ended = subprocess.run(
        [sys.executable, "-c", COMPUTES_ON], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("}\n")

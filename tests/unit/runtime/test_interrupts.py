"""A signal ends a command also if it arrives where Python ignores what is raised."""

import subprocess
import sys
import textwrap

import pytest

IN_FINALIZER = """
import os, signal, weakref
{block}
class Thing: pass
def finalize():
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000): pass
with {name}():
    thing = Thing()
    weakref.finalize(thing, finalize)
    del thing
    signal.pause()
print("it went on")
"""
BLOCKS = {
    "stop_on_signals": "from crossover.cli.signals import stop_on_signals",
    "exit_on_signals": "from crossover.local.servers import exit_on_signals",
}


@pytest.mark.parametrize("name", BLOCKS)
def test_sigterm_in_a_finalizer_ends_the_block(name: str) -> None:
    """Check that SIGTERM ends the process with status 143 even if it arrives in a finalizer. `name`: context manager that handles the
    signal.
    """
    script = IN_FINALIZER.format(block=BLOCKS[name], name=name)
    tried = textwrap.indent(script, "    ")
    script = f"import sys, typer\ntry:\n{tried}\nexcept typer.Exit as end: sys.exit(end.exit_code)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + 15, "", "")

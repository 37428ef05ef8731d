"""What computes with torch has first called its functions in one thread; the fault itself strikes about one process in a thousand."""

import subprocess
import sys

import pytest

ADAM = """
import torch
from crossover.algorithms.optimizers import Update, _move_by_adam
one = torch.ones(1)
_move_by_adam(one, one, [], Update(learning_rate=0.1), one.clone(), decoupled=False)
"""


@pytest.mark.parametrize(
    "what",
    ["import crossover.learning.samples", "import crossover.learning.flat", ADAM],
    ids=["samples", "flat", "adam"],
)
def test_every_first_call_was_made_in_one_thread(what: str) -> None:
    """Executing `what`, lines of Python that import computing code, also imports crossover.algorithms.first_calls."""
    code = f"import sys\n{what}\nassert 'crossover.algorithms.first_calls' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

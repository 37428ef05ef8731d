"""What every TensorCompute checks about the keys of an optimizer step."""

from crossover.algorithms.optimizers import OPTIMIZERS
from crossover.algorithms.update import Update
from crossover.dataplane.protocols import StateKeys
from crossover.errors import Refused


def optimizer_keys(state: StateKeys, out: StateKeys, update: Update) -> None:
    """Refused unless `out` names a key for each of the optimizer's vectors, and `state` too after the first step."""
    needed = len(OPTIMIZERS[update.optimizer].vectors(update.momentum))
    for name, keys in (("out", out), *(() if update.first else (("state", state),))):
        if len(keys.optimizer) != needed:
            raise Refused(
                f"{update.optimizer}: {name}.optimizer: {list(keys.optimizer)}; {needed} keys are needed here"
            )

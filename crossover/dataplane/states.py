"""What every TensorCompute checks about the keys of an optimizer step."""

from crossover.dataplane.protocols import StateKeys
from crossover.errors import Refused


def optimizer_keys(step: str, state: StateKeys, out: StateKeys, *, vectors: int, first: bool) -> None:
    """Refused unless `out` names `vectors` keys beside the model (SGD with momentum 1, Adam 2), and `state` too after the first step."""
    if len(out.optimizer) != vectors:
        raise Refused(f"{step}: out.optimizer: {list(out.optimizer)}; {vectors} keys are needed here")
    if not first and len(state.optimizer) != vectors:
        raise Refused(f"{step}: state.optimizer: {list(state.optimizer)}; {vectors} keys are needed here")

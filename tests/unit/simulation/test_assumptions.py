"""What an answer rests on without a measurement, and by which factor it would turn."""

import pytest

from crossover.simulation import AWS, calibration
from crossover.simulation.calibration import Calibration


def test_what_an_answer_rests_on_turns_it_by_the_factor_that_is_told() -> None:
    """An assumption's turning point is where the answer changes, and the sentence on it names both answers and the factor."""

    def cheapest(cloud: Calibration) -> str:
        """Return the cheaper of a function and a GPU: the GPU costs 2.5 times as much under the usual calibration."""
        usd = {"a function": cloud.mac_s / AWS.mac_s, "a GPU": 2.5 * cloud.gpu_pace}
        return min(usd, key=lambda name: usd[name])

    for what, paced in calibration.list_assumptions(AWS, gpus=True):
        (turn,) = calibration.find_turns(cheapest, paced)
        assert cheapest(paced(turn.before)) == cheapest(AWS) != cheapest(paced(turn.after)) == turn.other
        assert turn.after == pytest.approx(2.5 if "vCPU" in what else 0.4, rel=0.011)
    said = calibration.describe_assumptions(cheapest, AWS, gpus=True)
    assert (
        said.startswith("It depends on a core of this machine for a vCPU of ARM (2.5")
        and "x slower, it would be a GPU)" in said
    )

"""A run that does not fit what Step Functions does is refused before anything runs, also where only its data told how many minibatches."""

from dataclasses import replace
from typing import Any

import pytest

from crossover.errors import ConfigError
from crossover.experiment import Exchange, Experiment, Training
from crossover.running.monitor import DeployedParameters
from crossover.running.preparing import PreparedRun
from crossover.stores.memory import MemoryObjectStore
from crossover.stores.protocols import Traffic
from crossover.workflow.architecture import load


@pytest.mark.parametrize(("minibatches", "refused"), [(1_000, False), (1_001, True)])
def test_more_minibatches_than_a_map_is_given_are_refused_once_the_data_are_known(
    minibatches: int, refused: bool
) -> None:
    """A deployed stack refuses a prepared run with more than 1,000 minibatches per round, unless its workers compute them one after
    another.
    """
    experiment = Experiment(
        name="x", architecture="spirt", training=Training(batch_size=10), exchange=Exchange(every="epoch")
    )
    shape: dict[str, Any] = {
        "architecture": "spirt",
        "compute": experiment.database.compute,
        "channel": experiment.storage.channel,
        "workers": experiment.workers,
        "minibatches": None,  # distributed Maps: their size was not known when the stack was made
    }
    facts = {
        "experiment": experiment.to_plain(),
        "data": "",
        "data_manifest": {"minibatches": minibatches},
        "parameters": 1,
        "buffers": 0,
        "created_at": 0.0,
    }
    prepared = PreparedRun("run", experiment, load("spirt"), MemoryObjectStore(Traffic()), facts)
    deployed = DeployedParameters("bucket", "arn", "", (), shape)
    if not refused:
        deployed.check(prepared)
        return
    with pytest.raises(ConfigError, match=r"training\.batch_size: 10 gives a worker 1,001 minibatches .* at least 11"):
        deployed.check(prepared)
    one_after_another = replace(prepared, architecture=load("all_reduce"))
    deployed.check(one_after_another)

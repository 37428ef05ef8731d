"""The workers' databases of a deployed experiment, for this process: what is in them when a run fails is kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from crossover.dataplane import connecting
from crossover.dataplane.protocols import TensorStore
from crossover.dataplane.traffic import Traffic
from crossover.experiment import Experiment
from crossover.local.moto_patches.resource_types import ACCOUNT, REGION, secret

if TYPE_CHECKING:
    from crossover.local.cloud import LocalCloud


@contextmanager
def of(cloud: "LocalCloud", experiment: Experiment, *, function: str) -> Iterator[dict[int, TensorStore]]:
    """By worker, with the addresses that the deployed `function` has; a database whose server has ended is left out. Its connections are
    closed when the block ends.
    """
    from moto.awslambda.models import lambda_backends

    environment = cloud.function(lambda_backends[ACCOUNT][REGION].get_function(function)).environment
    stores = {
        worker: connecting.tensor_store(
            url,
            password=secret(environment["CROSSOVER_REDIS_SECRET"]),
            time_to_live_s=experiment.database.time_to_live_s,
            traffic=Traffic(),
        )
        for worker, url in enumerate(cloud.servers.reachable(environment["CROSSOVER_REDIS"]).split())
        if cloud.servers.runs(url)
    }
    try:
        yield dict(stores)
    finally:
        for store in stores.values():
            store.close()

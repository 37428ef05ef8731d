"""What the runner and the command line find from project and experiment alone, under `/crossover/<project>/<experiment>/`."""

import json

from aws_cdk import Stack

from cdk.fleets import Fleet
from cdk.functions import Functions
from cdk.parameters import publish
from cdk.redis_hosts import RedisHosts
from cdk.step_functions import StepFunctions
from cdk.storage import Storage
from crossover import __version__, own_code
from crossover.experiment import Experiment


def publish_facts(
    stack: Stack,
    experiment: Experiment,
    *,
    storage: Storage,
    hosts: RedisHosts | None = None,
    functions: Functions | None = None,
    machines: StepFunctions | None = None,
    fleet: Fleet | None = None,
    minibatches: int | None = None,
) -> None:
    """Plain strings. `shape` is what a run must fit into: more workers, or more minibatches than the Maps were made for, are refused."""
    shape = {
        "architecture": experiment.architecture,
        "workers": experiment.workers,
        "minibatches": minibatches,
        "compute": experiment.database.compute,
        "channel": experiment.storage.channel,
    }
    values = {
        "bucket": storage.bucket.bucket_name,
        "shape": json.dumps(shape),
        "version": __version__,
    }
    if own := own_code.fingerprint(experiment):
        values["own_code"] = own  # a run refuses functions that hold another state of it
    if experiment.storage.bucket_per_worker:
        values["data_buckets"] = " ".join(bucket.bucket_name for bucket in storage.data)
    if hosts:
        names = " ".join(host.ref for host in hosts.instances)
        values |= {"redis": " ".join(hosts.urls), "redis_secret": hosts.secret_arn, "redis_hosts": names}
    if functions:
        values["functions"] = " ".join(functions.names.values())
    if machines:
        if "run" in machines.arns:
            values["run_machine"] = machines.arns["run"]
        values["machines"] = " ".join(machines.names.values())
    if fleet:
        values["fleet"] = fleet.name
    publish(stack, experiment.project, experiment.name, values)

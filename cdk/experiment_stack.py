"""What the stacks of all experiments have in common: whose they are, when they end, and what is told of them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from aws_cdk import Stack
from constructs import Construct

from cdk import organisation
from cdk.expiry_machine import EXPERIMENT
from cdk.guards import stack_tags, tag
from cdk.names import stack_name
from cdk.parameters import leaning, publish
from crossover import __version__, own_code
from crossover.architecture import architecture_of, steps
from crossover.architecture.infrastructure import most_minibatches, shared_stacks
from crossover.experiment import Experiment

# Of what `run` reads, that which a person wants to see after `cdk deploy`.
OUTPUTS = {
    "bucket": "Runs leave records, checkpoints and models here",
    "run_machine": "The state machine; an execution is a run",
    "fleet": "The Auto Scaling group of the programs, empty between runs",
    "redis_hosts": "The databases' instances, by rank",
}


@dataclass(frozen=True, kw_only=True)
class Props:
    """`built`: the folder with layers and tensor modules. `now`: when the lifetime begins."""

    experiment: Experiment
    built: Path
    now: datetime


class ExperimentStack(Stack):
    """Named and tagged; a subclass adds its constructs, and last publishes their facts."""

    def __init__(self, scope: Construct, props: Props) -> None:
        experiment = props.experiment
        super().__init__(
            scope,
            stack_name(experiment.project, experiment.name),
            description=f"Crossover experiment {experiment.name}: {experiment.architecture}",
            tags={**organisation.of(scope).tags, **stack_tags(experiment, EXPERIMENT, now=props.now)},
            analytics_reporting=False,
        )
        tag(self, experiment, EXPERIMENT)
        organisation.bound(self)
        self._experiment = experiment

    def publish(self, facts: Mapping[str, str]) -> None:
        """Under `/crossover/<project>/<experiment>/`, where a run looks. `shape` is what a run must fit into: more workers,
        or more minibatches than the Maps were made for, are refused.
        """
        experiment = self._experiment
        shape = {
            "architecture": experiment.architecture,
            "workers": experiment.workers,
            "minibatches": most_minibatches(experiment) if steps(architecture_of(experiment)) else None,
            "compute": experiment.database.compute,
            "channel": experiment.storage.channel,
        }
        leans = leaning(experiment.project, shared_stacks(experiment))
        values = {"shape": json.dumps(shape), "version": __version__, **leans, **facts}
        if own := own_code.fingerprint(experiment):
            values["own_code"] = own  # a run refuses functions that hold another state of it
        publish(self, experiment.project, experiment.name, values, OUTPUTS)

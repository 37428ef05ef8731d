"""The base of all experiments' stacks: name, tags, end of life, and the values that each publishes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from aws_cdk import Environment, Stack
from constructs import Construct

from cdk import organisation
from cdk.expiry_machine import EXPERIMENT
from cdk.guards import stack_tags, tag_resources
from cdk.names import stack_name
from cdk.parameters import import_shared_words, publish
from crossover import __version__, bundling
from crossover.experiment import Experiment
from crossover.user_code import Dependencies
from crossover.workflow import state_machines
from crossover.workflow.architecture import architecture_of, steps
from crossover.workflow.infrastructure import most_minibatches, shared_stacks

# Of what `run` reads, that which a person wants to see after `cdk deploy`.
OUTPUTS = {
    "bucket": "Runs leave records, checkpoints and models here",
    "run_machine": "The state machine; an execution is a run",
    "fleet": "The Auto Scaling group of the programs, empty between runs",
    "redis_hosts": "The databases' instances, by rank",
}


@dataclass(frozen=True, kw_only=True)
class Props:
    """The arguments of an experiment's stack. `built`: folder with the built layers and tensor modules; `now`: when the stack's lifetime
    begins; `env`: account and region; if None, the template fits any.
    """

    experiment: Experiment
    built: Path
    now: datetime
    env: Environment | None = None


class ExperimentStack(Stack):
    """Base class of the stacks of experiments: a named and tagged CDK stack. A subclass adds its constructs and then publishes their values
    for the runner.
    """

    def __init__(self, scope: Construct, props: Props) -> None:
        """Name and tag the stack, and apply the account file's permissions boundary and tags to it. Adds no resources."""
        experiment = props.experiment
        super().__init__(
            scope,
            stack_name(experiment.project, experiment.name),
            env=props.env,
            description=f"Crossover experiment {experiment.name}: {experiment.architecture}",
            tags={**organisation.account_of(scope).tags, **stack_tags(experiment, EXPERIMENT, now=props.now)},
            analytics_reporting=False,
        )
        tag_resources(self, experiment, EXPERIMENT)
        organisation.apply_account_policy(self)
        self._experiment = experiment

    @property
    def identity(self) -> dict[str, str]:
        """The environment variables by which functions and programs know their experiment: PROJECT, EXPERIMENT (its name) and
        ARCHITECTURE. Constructs that use them add the prefix CROSSOVER_ to the names.
        """
        experiment = self._experiment
        return {
            "PROJECT": experiment.project,
            "EXPERIMENT": experiment.name,
            "ARCHITECTURE": experiment.architecture,
        }

    @property
    def user_code(self) -> Dependencies:
        """The files and dependencies of the user's own modules that functions and programs must contain."""
        return bundling.collect_files(self._experiment)

    @property
    def computing_steps(self) -> frozenset[str]:
        """The names of the architecture's steps whose functions get torch, because they need it for this experiment."""
        experiment = self._experiment
        return frozenset(step.name for step in steps(architecture_of(experiment)) if step.needs_torch(experiment))

    @property
    def state_machines(self) -> dict[str, state_machines.Machine]:
        """The definitions of the architecture's state machines by short name, generated for the experiment's numbers of workers and
        minibatches. Nothing is added to the stack.
        """
        architecture, minibatches = architecture_of(self._experiment), most_minibatches(self._experiment)
        return state_machines.build_machines(architecture, self._experiment, minibatches=minibatches)

    def publish(self, facts: Mapping[str, str]) -> None:
        """Add an SSM parameter for each of `facts`, values by name, under `/crossover/<project>/<experiment>/`, where the runner reads
        them.

        Adds further ones: `version` (of Crossover), `shape` (JSON: architecture, workers, minibatches that one worker computes side by
        side, compute and channel), with user code its fingerprint `own_code`, and with shared stacks an import of their exports, so that
        they cannot be deleted before this stack. Call it once. The runner refuses a run that does not fit `shape` or has another
        `own_code`.
        """
        experiment = self._experiment
        shape = {
            "architecture": experiment.architecture,
            "workers": experiment.workers,
            "minibatches": most_minibatches(experiment) if steps(architecture_of(experiment)) else None,
            "compute": experiment.database.compute,
            "channel": experiment.storage.channel,
        }
        leans = import_shared_words(experiment.project, shared_stacks(experiment))
        values = {"shape": json.dumps(shape), "version": __version__, **leans, **facts}
        if own := bundling.compute_fingerprint(experiment):
            values["own_code"] = own  # a run refuses functions that hold another state of it
        publish(self, experiment.project, experiment.name, values, OUTPUTS)

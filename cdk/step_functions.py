"""The state machines of an architecture, from the definitions that `crossover/asl` generates.

`DefinitionBody.from_string` grants nothing: what each machine may do is read off its definition. Names are fixed, and ARNs are formatted
from them, so machines may start one another without circular references.
"""

import json
from collections.abc import Mapping

from aws_cdk import RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from cdk import grants
from cdk.functions import LambdaFunctions
from cdk.nag import acknowledge
from cdk.names import arn, resource_name
from crossover import asl
from crossover.architecture import Architecture
from crossover.architecture.infrastructure import most_minibatches
from crossover.asl.placeholders import PLACEHOLDER
from crossover.experiment import Experiment


class StateMachines(Construct):
    """Of the trees: `run`, one per Child, one per entry of `machines`; `names` and `arns` are by these short names. `environment` and
    `grants`: of a program that starts them.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        architecture: Architecture,
        experiment: Experiment,
        functions: LambdaFunctions,
    ) -> None:
        super().__init__(scope, id)
        definitions = asl.definitions(architecture, experiment, minibatches=most_minibatches(experiment))
        self._functions = functions.by_step
        self.names = {name: resource_name(self, name) for name in definitions}
        self.arns = {name: arn("states", f"stateMachine:{full}") for name, full in self.names.items()}
        self.environment = {f"MACHINE_{name.upper()}": machine for name, machine in self.arns.items()}
        self.grants = grants.start_machines(self.names.values())
        self.facts = {"machines": " ".join(self.names.values())}
        if architecture.run:
            self.facts["run_machine"] = self.arns[asl.RUN_MACHINE]
        for name, definition in definitions.items():
            self._machine(name, json.dumps(definition, indent=1))

    def _machine(self, name: str, text: str) -> None:
        used = {whole: (kind, target) for whole, kind, target in PLACEHOLDER.findall(text)}
        role = self._role(name, used, distributed='"DISTRIBUTED"' in text)
        machine = sfn.StateMachine(
            self,
            f"{name}-machine",
            state_machine_name=self.names[name],
            state_machine_type=sfn.StateMachineType.STANDARD,
            definition_body=sfn.DefinitionBody.from_string(text),
            definition_substitutions={whole: self._value(*target) for whole, target in used.items()},
            role=role,
            removal_policy=RemovalPolicy.DESTROY,
        )
        acknowledge(
            machine,
            {
                "AwsSolutions-SF1": "Standard executions keep their history for 90 days; a log of the same events costs more.",
                "AwsSolutions-SF2": "Steps write their own timed records, which the reports are made from.",
            },
        )

    def _value(self, kind: str, target: str) -> str:
        if kind == "step":
            return self._functions[target].function_arn
        return arn("states", f"{'stateMachine' if kind == 'machine' else 'execution'}:{self.names[target]}")

    def _role(self, name: str, used: Mapping[str, tuple[str, str]], *, distributed: bool) -> iam.Role:
        functions = [self._functions[target].function_arn for kind, target in used.values() if kind == "step"]
        machines = [self.names[target] for kind, target in used.values() if kind == "machine"]
        allowed = [grants.Grant(actions=["lambda:InvokeFunction"], resources=functions)] if functions else []
        allowed += grants.start_machines(machines) if machines else []
        allowed += grants.run_distributed_maps(self.names[name]) if distributed else []
        return grants.role(self, f"{name}-role", service="states", grants=allowed)

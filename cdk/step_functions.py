"""The state machines of an architecture, from the definitions that `crossover/asl` generates.

`DefinitionBody.from_string` grants nothing: what each machine may do is read off its definition. Names are fixed, and ARNs are formatted
from them, so machines may start one another without circular references.
"""

import json
from collections.abc import Mapping
from typing import Any

from aws_cdk import RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from cdk import grants
from cdk.nag import acknowledge
from cdk.names import arn, resource_name
from crossover.asl.placeholders import PLACEHOLDER
from crossover.experiment import Experiment


class StepFunctions(Construct):
    """`arns` by the machines' short names: `run`, and one per Child."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        experiment: Experiment,
        definitions: Mapping[str, Mapping[str, Any]],
        functions: Mapping[str, lambda_.IFunction],
    ) -> None:
        super().__init__(scope, id)
        self._experiment, self._functions = experiment, functions
        self.names = {name: resource_name(experiment, name) for name in definitions}
        self.arns = {name: arn("states", f"stateMachine:{full}") for name, full in self.names.items()}
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

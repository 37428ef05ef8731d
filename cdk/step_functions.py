"""The state machines of an architecture, as `crossover/workflow/state_machines.py` makes them from its tree.

`DefinitionBody.from_string` grants nothing: the permissions of each machine follow from what it refers to. Names are fixed, and ARNs are
formatted from them, so machines may start one another without circular references.
"""

import json
from collections.abc import Mapping

from aws_cdk import Aws, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from cdk import grants
from cdk.functions import LambdaFunctions
from cdk.nag import acknowledge
from cdk.names import arn, resource_name
from crossover.workflow.state_machines import RUN_MACHINE, Machine, References, integration_arn


class StateMachines(Construct):
    """The state machines of an architecture: `run`, one per Child, and one per entry of `Architecture.machines`. `names` and `arns` give
    the full names and ARNs by these short names.

    `environment` and `grants`: what a program needs to start them; the variables lack the prefix CROSSOVER_. `facts`: values to publish.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        machines: Mapping[str, Machine],
        functions: LambdaFunctions,
    ) -> None:
        """Build each of `machines` (definitions by short name) with its role. `functions`: the Lambda functions that they invoke. Raises
        ConfigError if a machine's name would be too long.
        """
        super().__init__(scope, id)
        self._functions = functions.by_step
        self.names = {name: resource_name(self, name) for name in machines}
        self.arns = {name: arn("states", f"stateMachine:{full}") for name, full in self.names.items()}
        self.environment = {f"MACHINE_{name.upper()}": machine for name, machine in self.arns.items()}
        self.grants = grants.start_machines(self.names.values())
        self.facts = {"machines": " ".join(self.names.values())}
        if RUN_MACHINE in machines:
            self.facts["run_machine"] = self.arns[RUN_MACHINE]
        for name, made in machines.items():
            self._machine(name, made)

    def _machine(self, name: str, made: Machine) -> None:
        """Build the state machine `name` from the definition `made`, with its role."""
        role = self._role(name, made.references)
        machine = sfn.StateMachine(
            self,
            f"{name}-machine",
            state_machine_name=self.names[name],
            state_machine_type=sfn.StateMachineType.STANDARD,
            definition_body=sfn.DefinitionBody.from_string(json.dumps(made.definition, indent=1)),
            definition_substitutions={
                f"{kind}_{target}": self._value(kind, target) for kind, target in made.references.placeholders()
            },
            role=role,
            removal_policy=RemovalPolicy.DESTROY,
        )
        grants.depend_by_reference(machine, role)
        acknowledge(
            machine,
            {
                "AwsSolutions-SF1": "Standard executions keep their history for 90 days; a log of the same events costs more.",
                "AwsSolutions-SF2": "Steps write their own timed records, which the reports are made from.",
            },
        )

    def _value(self, kind: str, target: str) -> str:
        """Return the ARN that replaces one placeholder of a definition. `kind`: "step" (a function), "machine" (a state machine),
        "executions" (of a state machine) or "call" (of an AWS API); `target`: the short name, or for a call service and action.
        """
        if kind == "call":
            return integration_arn(target, partition=Aws.PARTITION)
        if kind == "step":
            return self._functions[target].function_arn
        return arn("states", f"{'stateMachine' if kind == 'machine' else 'execution'}:{self.names[target]}")

    def _role(self, name: str, references: References) -> iam.Role:
        """Build the role of the machine `name`, with the permissions for what it refers to: functions, child machines, distributed Maps."""
        functions = [self._functions[step].function_arn for step in references.steps]
        machines = [self.names[child] for child in references.children]
        allowed = [grants.Grant(actions=["lambda:InvokeFunction"], resources=functions)] if functions else []
        allowed += grants.start_machines(machines) if machines else []
        allowed += grants.run_distributed_maps(self.names[name]) if references.distributed else []
        return grants.role(self, f"{name}-role", service="states", grants=allowed)

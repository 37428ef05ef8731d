"""State machines from the generated definitions, each with exactly the permissions that its definition needs."""

import json
import re
from typing import Any

import pytest

from crossover.experiment import Experiment
from crossover.workflow import state_machines
from crossover.workflow.architecture import architectures, load
from functions.spirt import ARCHITECTURE
from tests.infrastructure.assemblies import Assembly, actions_of, flat, resources
from tests.infrastructure.cases import Case
from tests.infrastructure.conftest import Assembled

RULE = "rule/StepFunctionsGetEventsForStepFunctionsExecutionRule"
HERE = "<AWS::Region>:<AWS::AccountId>"


def machines(assembly: Assembly) -> dict[str, dict[str, Any]]:
    """Return the properties of the experiment's state machines, by name without the stack's."""
    found = resources(assembly.experiment, "AWS::StepFunctions::StateMachine").values()
    return {m["StateMachineName"].removeprefix(f"{assembly.name}-"): m for m in found}


def test_the_definitions_are_the_generated_ones(assembly: Assembly, spirt: Experiment) -> None:
    """Check that the deployed state machines have exactly the generated definitions."""
    generated = state_machines.build_definitions(ARCHITECTURE, spirt, minibatches=6)
    deployed = machines(assembly)
    assert {name: json.loads(m["DefinitionString"]) for name, m in deployed.items()} == generated
    assert {m["StateMachineType"] for m in deployed.values()} == {"STANDARD"}


@pytest.mark.parametrize("minibatches", [6, None])
@pytest.mark.parametrize("name", architectures())
def test_references_are_what_the_definition_names(name: str, minibatches: int | None) -> None:
    """Check that what a stack substitutes and grants is recorded while a definition is made, and not read off its text."""
    experiment = Experiment(name="x", architecture=name)
    for made in state_machines.build_machines(load(name), experiment, minibatches=minibatches).values():
        text = json.dumps(made.definition)
        named = {whole for whole, _, _ in state_machines.PLACEHOLDER.findall(text)}
        assert {f"{kind}_{target}" for kind, target in made.references.placeholders()} == named
        assert made.references.distributed == ('"DISTRIBUTED"' in text)


def test_every_placeholder_is_substituted(assembly: Assembly) -> None:
    """Check that each placeholder of a definition is replaced by the ARN of the function, machine or call that it names."""
    for name, machine in machines(assembly).items():
        keys = set(re.findall(r"\$\{(.*?)\}", machine["DefinitionString"]))
        assert keys == set(machine["DefinitionSubstitutions"]), name
        for key, value in machine["DefinitionSubstitutions"].items():
            kind, _, target = key.partition("_")
            text = flat(value)
            match kind:
                case "step":
                    handler = resources(assembly.experiment, "AWS::Lambda::Function")[value["Fn::GetAtt"][0]]["Handler"]
                    assert handler.endswith(f".{target}")
                case "machine":
                    assert text == f"arn:<AWS::Partition>:states:{HERE}:stateMachine:crossover-spirt-{target}"
                case "call":
                    calls = {"states_startExecution": "states:startExecution.sync:2"}
                    call = calls.get(target) or f"aws-sdk:{target.replace('_', ':')}"
                    assert text == f"arn:<AWS::Partition>:states:::{call}"
                case "executions":
                    assert text == f"arn:<AWS::Partition>:states:{HERE}:execution:crossover-spirt-{target}"


def expected(assembly: Assembly, name: str) -> dict[str, set[str]]:
    """Return the resources that a state machine needs, by action. They are derived from its definition alone, independently of the code
    that grants permissions.
    """
    machine = machines(assembly)[name]
    text, substitutions = machine["DefinitionString"], machine["DefinitionSubstitutions"]
    needs: dict[str, set[str]] = {}

    def need(resource: str, *actions: str) -> None:
        """Record that the machine needs these actions on the resource."""
        for action in actions:
            needs.setdefault(action, set()).add(resource)

    states = f"arn:<AWS::Partition>:states:{HERE}"
    for key, value in substitutions.items():
        if key.startswith("step_"):
            need(flat(value), "lambda:InvokeFunction")
        if key.startswith("machine_"):
            child = f"{assembly.name}-{key.removeprefix('machine_')}"
            need(f"{states}:stateMachine:{child}", "states:StartExecution")
            need(f"{states}:execution:{child}:*", "states:DescribeExecution", "states:StopExecution")
            rule = f"arn:<AWS::Partition>:events:{HERE}:{RULE}"
            need(rule, "events:PutTargets", "events:PutRule", "events:DescribeRule")
    if "DISTRIBUTED" in text:
        own = f"{assembly.name}-{name}"
        need(f"{states}:stateMachine:{own}", "states:StartExecution")
        need(f"{states}:execution:{own}:*", "states:DescribeExecution", "states:StopExecution")
        need(
            f"{states}:execution:{own}/*:*",
            "states:DescribeExecution",
            "states:StopExecution",
            "states:RedriveExecution",
        )
    return needs


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "all-reduce",
        "mlless",
        "p2p-serverless",
        "scatter-reduce",
        "spirt",
        "spirt of unknown size",
        "spirt from snapshots",
    ],
)
def test_a_machine_may_do_what_its_definition_does_and_nothing_else(case: str, assembled: Assembled) -> None:
    """Check that each machine's role has exactly the permissions that follow from its definition."""
    made, found = assembled(case), Case.of(case)
    names = {*found.architecture.machines, *(["run"] if found.architecture.run else [])}
    assert names <= machines(made).keys()
    for name, machine in machines(made).items():
        assert actions_of(made.experiment, machine["RoleArn"]) == expected(made, name), name


def test_a_machine_waits_for_its_permissions(assembly: Assembly) -> None:
    """Check that each state machine's role contains its policies, so that no machine is created before them.

    Creation fails with .sync:2 while the role lacks the events permissions (aws.md 5).
    """
    for resource in assembly.experiment["Resources"].values():
        if resource["Type"] == "AWS::StepFunctions::StateMachine":
            assert assembly.experiment["Resources"][resource["Properties"]["RoleArn"]["Fn::GetAtt"][0]]["Properties"][
                "Policies"
            ]
    # Policies are part of their role; none comes later as a resource of its own.
    assert not resources(assembly.experiment, "AWS::IAM::Policy")


def test_the_runner_is_told_for_how_many_the_machines_are_made(assembly: Assembly, large: Assembly) -> None:
    """Check the numbers of workers and parallel minibatches in the published parameter `shape`."""
    shapes = [
        json.loads(p["Value"])
        for made in (assembly, large)
        for p in resources(made.experiment, "AWS::SSM::Parameter").values()
        if p["Name"].endswith("/shape")
    ]
    assert [(s["workers"], s["minibatches"]) for s in shapes] == [(4, 6), (64, 79)]

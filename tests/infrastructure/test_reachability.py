"""Every (function, service) has its route, pair of security group rules, endpoint and permission; without any one of them this says so."""

import pytest

from crossover import workflow
from functions.spirt import ARCHITECTURE
from tests.infrastructure.assemblies import Assembly
from tests.infrastructure.reachability import Check, without

STEPS = workflow.steps(ARCHITECTURE)


def check(assembly: Assembly, step: workflow.Step, templates: dict[str, dict[str, object]] | None = None) -> Check:
    return Check(templates or assembly.templates, experiment=assembly.name, step=step.name, uses=step.uses)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_function_reaches_what_its_step_declares(assembly: Assembly, step: workflow.Step) -> None:
    assert check(assembly, step).missing == []


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_take_any_piece_away_and_it_does_not(assembly: Assembly, step: workflow.Step) -> None:
    evidence = list(dict.fromkeys(check(assembly, step).evidence))
    assert len(evidence) > (20 if step.uses & {"tensors", "bus"} else 4)
    unnoticed = [
        pointer for pointer in evidence if not check(assembly, step, without(assembly.templates, pointer)).missing
    ]
    assert unnoticed == []


def test_the_check_looks_at_every_kind_of_piece(assembly: Assembly) -> None:
    """Else it could pass by looking at little."""
    (step,) = (step for step in STEPS if step.name == "initialise")  # uses everything
    kinds = set()
    for stack, _, name, *rest in check(assembly, step).evidence:
        kind = assembly.templates[str(stack)]["Resources"][name]["Type"]
        kinds.add(kind if not rest else f"{kind} {'.'.join(str(part) for part in rest[1:2])}")
    assert kinds >= {
        "AWS::EC2::SecurityGroupIngress",
        "AWS::EC2::SecurityGroupEgress",
        "AWS::EC2::SecurityGroup SecurityGroupEgress",
        "AWS::EC2::SubnetRouteTableAssociation",
        "AWS::EC2::VPCEndpoint",
        "AWS::SSM::Parameter",
        "AWS::AmazonMQ::Broker",
        "AWS::IAM::Role Policies",
        "AWS::Lambda::Function VpcConfig",
        "AWS::Lambda::Function Environment",
        "AWS::EC2::Instance SecurityGroupIds",
    }

"""Templates as wholes, of every architecture and option: cdk-nag, cfn-lint, wildcards with their reasons, snapshots."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.infrastructure.assemblies import Assembly, flat, listed, masked, statements
from tests.infrastructure.cases import CASES, OPTIONS, PLAIN
from tests.infrastructure.conftest import Assembled

SNAPSHOTS = Path(__file__).parent / "snapshots"


# --- lint ---------------------------------------------------------------------------------------------------------------


every_option = pytest.mark.skipif(
    not os.environ.get("CROSSOVER_EVERY_CALL"),
    reason="a minute for all options: `make test-every-call` runs it, or CROSSOVER_EVERY_CALL=1",
)


@pytest.mark.parametrize("name", [*PLAIN, *(pytest.param(name, marks=every_option) for name in OPTIONS)])
def test_cfn_lint_finds_no_error(name: str, assembled: Assembled) -> None:
    from cfnlint.api import lint_file
    from cfnlint.config import ManualArgs

    made = assembled(name)
    shared = {"crossover-network", "crossover-broker"}  # the same in every case: test_shared_stacks; linted once
    for stack in made.templates.keys() - (shared if name != "spirt" else set()):
        found = lint_file(made.folder / f"{stack}.template.json", config=ManualArgs(regions=["us-east-1"]))
        assert [str(match) for match in found if match.rule.severity == "error"] == [], stack


# --- findings that stand ------------------------------------------------------------------------------------------------

# Every rule that is acknowledged somewhere, but for wildcards. A new one must be meant.
ACKNOWLEDGED = {
    "AwsSolutions-AS3": "notifications of the Auto Scaling group",
    "AwsSolutions-EC28": "detailed monitoring of hosts",
    "AwsSolutions-EC29": "termination protection of hosts",
    "AwsSolutions-L1": "the newest runtime",
    "AwsSolutions-S1": "access logs of buckets",
    "AwsSolutions-SF1": "logs of state machines",
    "AwsSolutions-SF2": "tracing of state machines",
    "AwsSolutions-SMG4": "rotation of secrets",
    "AwsSolutions-VPC7": "flow logs",
}


def test_findings_stand_for_written_reasons_and_nothing_else_stands(assembled: Assembled) -> None:
    """That no finding is without an acknowledgement is what `assembled` checks at every synthesis."""
    rules = set[str]()
    for name in CASES:
        for construct, findings in assembled(name).acknowledged().items():
            for rule, reasons in (
                (r, w) for r, w in findings.items() if r.startswith("AwsSolutions-")
            ):  # others are CDK's own
                assert all(len(reason.split()) >= 4 for reason in reasons), f"{name} {construct} {rule}"
                rules.add(rule.partition("[")[0])
    assert rules == ACKNOWLEDGED.keys() | {"AwsSolutions-IAM5"}


# --- wildcards ----------------------------------------------------------------------------------------------------------

RUN = "Keys are made as the run goes on."
CHILD = "Executions of these machines, whose names carry run, worker and round."
DEADLINE = "Which run is under way and when it ends; the bucket's name CloudFormation makes."
BEFOREHAND = "there will be is not known beforehand"
KEPT, UNTAGGED = "; name and tag keep it to this project's.", "; executions have no tags to go by."
MAPS = "Iterations of this machine's own Maps, whose names Step Functions makes."
# (actions, resource without names): why AWS or the design leaves no other way. {x} stands for a name.
WILDCARDS: dict[tuple[str, str], str] = {
    ("s3:DeleteObject s3:GetObject s3:PutObject", "<{bucket}>/runs/*"): RUN,
    ("s3:GetObject", "<{bucket}>/data/*"): RUN,
    ("s3:GetObject", "<{bucket}>/hosts/redis/*"): "One certificate per host.",
    ("s3:PutObject", "<{bucket}>/hosts/redis/*"): "One certificate per host.",
    ("s3:GetObject", "<{bucket}>/fleet/*"): "Which run to join: one pointer per fleet.",
    ("logs:CreateLogStream logs:PutLogEvents", "logs:log-group:/aws/lambda/{name}:*"): "Streams of its own log group.",
    (
        "logs:CreateLogStream logs:PutLogEvents",
        "logs:log-group:/crossover/crossover/boot:*",
    ): "Streams of the hosts' log group.",
    (
        "ec2:AssignPrivateIpAddresses ec2:CreateNetworkInterface ec2:DeleteNetworkInterface "
        "ec2:DescribeNetworkInterfaces ec2:DescribeSubnets ec2:UnassignPrivateIpAddresses",
        "*",
    ): "Lambda demands these actions on every resource before it accepts a VPC.",
    (
        "ssm:UpdateInstanceInformation ssmmessages:CreateControlChannel ssmmessages:CreateDataChannel "
        "ssmmessages:OpenControlChannel ssmmessages:OpenDataChannel",
        "*",
    ): "These actions of the session manager's agent know no resources.",
    ("states:DescribeExecution states:StopExecution", "states:execution:{name}:*"): f"{CHILD}|{MAPS}",
    ("states:DescribeExecution states:RedriveExecution states:StopExecution", "states:execution:{name}/*:*"): MAPS,
    (
        "autoscaling:TerminateInstanceInAutoScalingGroup",
        "autoscaling:autoScalingGroup:*:autoScalingGroupName/{name}",
    ): "The group's ARN holds an id that is made when it is deployed.",
    # The expiry's: of a whole project, and of one stack that stands alone.
    (
        "cloudformation:DeleteStack cloudformation:DescribeStacks cloudformation:ListStackResources",
        "cloudformation:stack/crossover-*/*",
    ): f"Which experiments {BEFOREHAND}{KEPT}",
    (
        "cloudformation:DeleteStack cloudformation:DescribeStacks cloudformation:ListStackResources",
        "cloudformation:stack/{name}/*",
    ): f"The id in a stack's ARN is made by CloudFormation{KEPT}",
    ("cloudformation:ListStacks", "*"): "A listing has no resources to name.",
    ("states:ListExecutions", "states:stateMachine:crossover-*"): f"Which machines and fleets {BEFOREHAND}{KEPT}",
    ("states:ListExecutions", "states:stateMachine:{name}*"): f"Which machines and fleets {BEFOREHAND}{KEPT}",
    ("states:StopExecution", "states:execution:crossover-*:*"): f"Which machines and fleets {BEFOREHAND}{UNTAGGED}",
    ("states:StopExecution", "states:execution:{name}*:*"): f"Which machines and fleets {BEFOREHAND}{UNTAGGED}",
    (
        "autoscaling:SetDesiredCapacity",
        "autoscaling:autoScalingGroup:*:autoScalingGroupName/crossover-*",
    ): f"Which machines and fleets {BEFOREHAND}{KEPT}",
    (
        "ssm:GetParameter",
        "ssm:parameter/crossover/crossover/*/bucket",
    ): "Each experiment publishes the name of its bucket.",
    ("s3:GetObject", "arn:<AWS::Partition>:s3:::{name}*/runs/under-way"): DEADLINE,
    ("s3:GetObject", "arn:<AWS::Partition>:s3:::{name}*/runs/*/deadline/*"): DEADLINE,
}


def nameless(resource: str) -> str:
    text = re.sub(r"arn:<AWS::Partition>:(\w+):<AWS::Region>:<AWS::AccountId>:", r"\1:", resource)
    text = re.sub(r"<Storage\w+\.Arn>", "<{bucket}>", text)
    text = re.sub(r"(:s3:::)crossover[\w-]*", r"\1{name}", text)
    return re.sub(
        r"(/aws/lambda/|execution:|stateMachine:|autoScalingGroupName/|:stack/)crossover-[\w-]+", r"\1{name}", text
    )


def wildcards(made: Assembly) -> set[tuple[str, str]]:
    """(what somebody may do there, a resource with a wildcard)"""
    found: dict[tuple[str, str, str], set[str]] = {}
    for stack, template in made.templates.items():
        for owner, statement in statements(template):
            for resource in map(flat, listed(statement["Resource"])):
                if "*" in resource and statement["Effect"] == "Allow":
                    found.setdefault((stack, owner, resource), set()).update(listed(statement["Action"]))
    return {(" ".join(sorted(actions)), nameless(resource)) for (_, _, resource), actions in found.items()}


def test_every_wildcard_is_listed_here_and_has_its_reason_in_the_code(assembled: Assembled) -> None:
    used = set[tuple[str, str]]()
    for name in CASES:
        made = assembled(name)
        reasons = {
            (nameless(finding.removeprefix("AwsSolutions-IAM5[Resource::").removesuffix("]")), reason)
            for findings in made.acknowledged().values()
            for finding, written in findings.items()
            if finding.startswith("AwsSolutions-IAM5")
            for reason in written
        }
        found = wildcards(made)
        assert not found - WILDCARDS.keys(), name
        for actions, resource in found:
            expected = WILDCARDS[actions, resource].split("|")
            assert any((resource, reason) in reasons for reason in expected), (name, resource)
        used |= found
    assert used == WILDCARDS.keys(), "listed, but nobody has it any more"


def test_no_action_has_a_wildcard_and_nobody_has_a_policy_from_elsewhere(assembled: Assembled) -> None:
    for name in CASES:
        for stack, template in assembled(name).templates.items():
            for owner, statement in statements(template):
                assert not any("*" in action for action in listed(statement["Action"])), f"{name} {stack} {owner}"
            for resource in template["Resources"].values():
                assert resource["Type"] not in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy", "AWS::IAM::User")
                assert "ManagedPolicyArns" not in resource.get("Properties", {})


# --- snapshots ----------------------------------------------------------------------------------------------------------


def _structure(template: Any) -> Any:
    """Types, references and settings; definitions and the module's hash have tests of their own."""
    found = masked(template)
    for mapping in found.get("Mappings", {}).values():
        mapping["redis"]["script"] = "<boot script>"
    for resource in found["Resources"].values():
        properties = resource.get("Properties", {})
        if "DefinitionString" in properties:
            properties["DefinitionString"] = "<definition>"
        for holder in (properties, properties.get("LaunchTemplateData", {})):
            if "UserData" in holder:
                holder["UserData"] = "<boot script>"
    return found


@pytest.mark.parametrize("stack", ["network", "broker", "all-reduce-s3", *PLAIN])
def test_snapshots(stack: str, assembled: Assembled) -> None:
    """A change of the templates must be seen and meant: UPDATE_SNAPSHOTS=1 writes them anew."""
    made = assembled({"all-reduce-s3": "all-reduce over s3", "network": "spirt", "broker": "spirt"}.get(stack, stack))
    path, found = SNAPSHOTS / f"{stack}.json", _structure(made.templates[f"crossover-{stack}"])
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    assert found == json.loads(path.read_text())

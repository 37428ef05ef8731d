"""Templates as wholes, of every architecture and option: cdk-nag, cfn-lint, wildcards with their reasons, snapshots."""

import hashlib
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


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PLAIN, *(pytest.param(name, marks=pytest.mark.deep) for name in OPTIONS)])
def test_cfn_lint_finds_no_error(name: str, assembled: Assembled) -> None:
    """Check that cfn-lint finds no error in the templates of a case."""
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
    "AwsSolutions-SQS3": "a dead-letter queue for a dead-letter queue",
    "AwsSolutions-VPC7": "flow logs",
}


@pytest.mark.slow
def test_findings_stand_for_written_reasons_and_nothing_else_stands(assembled: Assembled) -> None:
    """Check that each acknowledgement of a cdk-nag finding has a reason of four words at least, and that the rules are the expected ones.

    `assembled` checks at every synthesis that no finding is without an acknowledgement.
    """
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
    ("sns:Publish", "sns:*"): "Which topic learns of a failure, lifetime.notify of each experiment says.",
    ("s3:GetObject", "<{bucket}>/hosts/redis/*"): "One certificate per host.",
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
    """Return an ARN with its partition, region and account removed and generated names replaced by placeholders."""
    text = re.sub(r"arn:<AWS::Partition>:(\w+):<AWS::Region>:<AWS::AccountId>:", r"\1:", resource)
    text = re.sub(r"<Storage\w+\.Arn>", "<{bucket}>", text)
    text = re.sub(r"(:s3:::)crossover[\w-]*", r"\1{name}", text)
    return re.sub(
        r"(/aws/lambda/|execution:|stateMachine:|autoScalingGroupName/|:stack/)crossover-[\w-]+", r"\1{name}", text
    )


def wildcards(made: Assembly) -> set[tuple[str, str]]:
    """Return all grants on resources with a wildcard, as (actions, resource without its names)."""
    found: dict[tuple[str, str, str], set[str]] = {}
    for stack, template in made.templates.items():
        for owner, statement in statements(template):
            for resource in map(flat, listed(statement["Resource"])):
                if "*" in resource and statement["Effect"] == "Allow":
                    found.setdefault((stack, owner, resource), set()).update(listed(statement["Action"]))
    return {(" ".join(sorted(actions)), nameless(resource)) for (_, _, resource), actions in found.items()}


@pytest.mark.slow
def test_every_wildcard_is_listed_here_and_has_its_reason_in_the_code(assembled: Assembled) -> None:
    """Check that all permissions with wildcards are those of WILDCARDS, each with an acknowledged reason."""
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
    """Check that no permission has a wildcard in its actions, and that there are no managed policies, separate policies or users."""
    for name in CASES:
        for stack, template in assembled(name).templates.items():
            for owner, statement in statements(template):
                assert not any("*" in action for action in listed(statement["Action"])), f"{name} {stack} {owner}"
            for resource in template["Resources"].values():
                assert resource["Type"] not in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy", "AWS::IAM::User")
                assert "ManagedPolicyArns" not in resource.get("Properties", {})


# --- snapshots ----------------------------------------------------------------------------------------------------------


def _structure(template: Any) -> Any:
    """Return the masked template with placeholders also for state machine definitions and boot scripts, which have tests of their own."""
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


def outline(template: Any) -> str:
    """Return the template as text with a line for each resource: its name, its type, a digest of its settings and the resources that it
    names. Below a role follow the lines of what it may do.
    """
    structure = _structure(template)
    made = structure.pop("Resources")
    lines = [f"{part} {_digest(content)}" for part, content in sorted(structure.items())]
    grants = list(statements({"Resources": made}))
    for name, resource in sorted(made.items()):
        named = [other for other in sorted(made) if other != name and other in json.dumps(resource)]
        lines.append(" ".join([name, resource["Type"], _digest(resource), *named]))
        for owner, each in grants:
            if owner == name:
                where = ", ".join(sorted(flat(resource) for resource in listed(each["Resource"])))
                lines.append(f"    {each['Effect']} {' '.join(sorted(listed(each['Action'])))}: {where}")
    return "\n".join(lines) + "\n"


def _digest(content: Any) -> str:
    """Return eight hexadecimal digits of the content's SHA-256; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


@pytest.mark.parametrize("stack", sorted(path.stem for path in SNAPSHOTS.glob("*.txt")))
def test_a_change_of_the_templates_is_seen_and_meant(stack: str, assembled: Assembled) -> None:
    """Check that the outline of a stack's template equals the stored one. With UPDATE_SNAPSHOTS=1 it is stored anew.

    An architecture of one's own is watched from when there is an empty file for it.
    """
    made = assembled({"all-reduce-s3": "all-reduce over s3", "network": "spirt", "broker": "spirt"}.get(stack, stack))
    path, found = SNAPSHOTS / f"{stack}.txt", outline(made.templates[f"crossover-{stack}"])
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(found)
    assert found == path.read_text()


def test_scatter_reduce_is_all_reduce_under_another_name(assembled: Assembled) -> None:
    """Check that the templates of ScatterReduce and AllReduce differ only in names."""

    def renamed(name: str) -> str:
        """Return the outline of a case's template with AllReduce's names in the place of ScatterReduce's, without what depends on names."""
        text = re.sub("scatter(.?)reduce", r"all\1reduce", outline(assembled(name).experiment))
        # Digests cover names; hosts' names end in what their boot script gives.
        return re.sub(r"(?<= )[0-9a-f]{8}\b|(?<=Redis)(Host|Ready|IsReady)\S*", "", text)

    assert sorted(renamed("scatter-reduce").splitlines()) == sorted(renamed("all-reduce").splitlines())

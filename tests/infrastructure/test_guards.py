"""Tags, lifetime and budget: what people forget ends by itself."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Any

import botocore.session
import pytest

from cdk import expiry_machine
from crossover.errors import ConfigError
from crossover.experiment import Experiment
from tests.infrastructure.assemblies import (
    Assembly,
    Json,
    actions_of,
    flat,
    listed,
    masked,
    only,
    resources,
    statements,
)
from tests.infrastructure.cases import Case
from tests.infrastructure.conftest import NOW, Assembled, Synthesize

HERE = "arn:<AWS::Partition>:{}:<AWS::Region>:<AWS::AccountId>"
STACKS = f"{HERE.format('cloudformation')}:stack/crossover-*/*"
TAGGED = (
    "AWS::Lambda::Function",
    "AWS::EC2::Instance",
    "AWS::S3::Bucket",
    "AWS::IAM::Role",
    "AWS::SecretsManager::Secret",
    "AWS::StepFunctions::StateMachine",
    "AWS::Logs::LogGroup",
    "AWS::AmazonMQ::Broker",
    "AWS::EC2::VPC",
    "AWS::EC2::VPCEndpoint",
)


def tags_of(properties: dict[str, Any]) -> dict[str, str]:
    """Return a resource's tags by name, whether its type takes a dict or a list of pairs; empty if it has none."""
    tags = properties.get("Tags", [])
    return tags if isinstance(tags, dict) else {tag["Key"]: tag["Value"] for tag in tags}


def stack_tags(assembly: Assembly, stack: str) -> dict[str, str]:
    """Return the tags that the assembly's manifest gives to a stack, by name."""
    found: dict[str, str] = assembly.manifest["artifacts"][stack]["properties"]["tags"]
    return found


def test_everything_is_tagged(assembly: Assembly) -> None:
    """Check that resources have tags with project, experiment and owner."""
    for stack, template in assembly.templates.items():
        for kind in TAGGED:
            for name, properties in resources(template, kind).items():
                if name.startswith("CustomS3AutoDelete"):
                    continue  # CDK's own; the stack's tags reach it
                tags = tags_of(properties)
                assert tags["project"] == "crossover", f"{stack} {name}"
                assert tags["experiment"] == ("spirt" if stack == "crossover-spirt" else "shared")
                if stack == "crossover-spirt":
                    assert tags["owner"] == "unknown"


def test_stacks_say_when_they_end(assembly: Assembly, spirt: Experiment) -> None:
    """Check that each stack's tags say when it expires, which project it belongs to and what kind it is.

    CloudFormation hands a stack's tags down to every resource, at each deployment.
    """
    ends = (NOW + timedelta(hours=spirt.lifetime.ttl_hours)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for stack in assembly.templates:
        tags = stack_tags(assembly, stack)
        assert tags["expires-at"] == ends
        assert tags["project"] == "crossover"
        assert tags["stack-kind"] == {"crossover-spirt": "experiment"}.get(stack, stack.removeprefix("crossover-"))


@pytest.mark.slow
def test_time_passes_and_templates_stay(assembly: Assembly, synth: Synthesize, spirt: Experiment) -> None:
    """Check that a later synthesis changes the expiry time in the manifest and no template."""
    later = synth(now=NOW + timedelta(days=1))
    assert stack_tags(later, "crossover-spirt")["expires-at"] > stack_tags(assembly, "crossover-spirt")["expires-at"]
    for stack in assembly.templates:
        assert masked(later.templates[stack]) == masked(assembly.templates[stack])


@pytest.mark.slow
def test_the_lifetime_is_the_yamls(synth: Synthesize, spirt: Experiment) -> None:
    """Check that a stack expires `lifetime.ttl_hours` after its synthesis."""
    made = synth(lifetime=replace(spirt.lifetime, ttl_hours=2.5))
    ends = datetime.fromisoformat(stack_tags(made, "crossover-spirt")["expires-at"])
    assert ends - NOW == timedelta(hours=2.5)


# --- the machine that deletes -----------------------------------------------------------------------------------------


def test_the_schedule_starts_the_machine_and_nothing_else(assembly: Assembly) -> None:
    """Check the schedule of the clean-up: every 15 minutes it starts the expiry machine with the time, and its role allows only that."""
    schedule = only(assembly.network, "AWS::Scheduler::Schedule")
    assert schedule["ScheduleExpression"] == "rate(15 minutes)"
    assert schedule.get("State", "ENABLED") == "ENABLED"
    assert json.loads(schedule["Target"]["Input"]) == {"now": "<aws.scheduler.scheduled-time>"}
    (machine,) = resources(assembly.network, "AWS::StepFunctions::StateMachine")
    assert flat(schedule["Target"]["Arn"]) == f"<{machine}>"
    assert actions_of(assembly.network, schedule["Target"]["RoleArn"]) == {
        "states:StartExecution": {
            "arn:<AWS::Partition>:states:<AWS::Region>:<AWS::AccountId>:stateMachine:crossover-expiry"
        },
        "sqs:SendMessage": {flat(schedule["Target"]["DeadLetterConfig"]["Arn"])},
    }


def test_a_check_that_cannot_start_is_kept_with_its_reason_before_the_next_one(assembly: Assembly) -> None:
    """Check that the scheduler puts a start that fails into the queue within 15 minutes."""
    schedule = only(assembly.network, "AWS::Scheduler::Schedule")
    (queue,) = resources(assembly.network, "AWS::SQS::Queue")
    assert flat(schedule["Target"]["DeadLetterConfig"]["Arn"]) == f"<{queue}.Arn>"
    assert schedule["Target"]["RetryPolicy"] == {"MaximumEventAgeInSeconds": 15 * 60}


def test_who_has_a_topic_is_told_that_the_clean_up_does_not_start(
    assembly: Assembly, synth: Synthesize, spirt: Experiment
) -> None:
    """Check that only an experiment with a topic has an alarm, which watches the queue of undelivered expiries and notifies the topic.

    An alarm costs by the hour. The shared stacks are the same with and without it.
    """
    topic = "arn:aws:sns:us-east-1:123456789012:told"
    made = synth(lifetime=replace(spirt.lifetime, notify=topic))
    assert not resources(assembly.experiment, "AWS::CloudWatch::Alarm")
    assert masked(made.network) == masked(assembly.network)
    alarm = only(made.experiment, "AWS::CloudWatch::Alarm")
    (watched,) = alarm["Dimensions"]
    published = made.experiment["Parameters"][watched["Value"]["Ref"]]["Default"]
    assert alarm["AlarmActions"] == [topic] and published == "/crossover/crossover/network/undelivered"
    assert (
        flat(only_named(made.network, published)["Value"])
        == f"<{next(iter(resources(made.network, 'AWS::SQS::Queue')))}.QueueName>"
    )


def only_named(template: Json, path: str) -> Json:
    """Return the properties of the one parameter that the template publishes under `path`."""
    (found,) = (each for each in resources(template, "AWS::SSM::Parameter").values() if each["Name"] == path)
    return found


def test_a_stack_that_stands_alone_watches_its_own_queue(synth: Synthesize, spirt: Experiment) -> None:
    """Check that a standalone stack with a topic has an alarm on its own queue of failed starts."""
    topic = "arn:aws:sns:us-east-1:123456789012:told"
    alone = Case.of("all-reduce over s3").experiment
    given = {field.name: getattr(alone, field.name) for field in fields(alone)}
    made = synth(**{**given, "lifetime": replace(alone.lifetime, notify=topic)})
    (queue,) = resources(made.experiment, "AWS::SQS::Queue")
    (watched,) = only(made.experiment, "AWS::CloudWatch::Alarm")["Dimensions"]
    assert flat(watched["Value"]) == f"<{queue}.QueueName>"


def test_its_role_ends_what_is_the_projects_and_nothing_else(assembly: Assembly) -> None:
    """Check the permissions of the expiry machine's role, action by action."""
    machine = only(assembly.network, "AWS::StepFunctions::StateMachine")
    assert actions_of(assembly.network, machine["RoleArn"]) == {
        "cloudformation:DeleteStack": {STACKS},
        "cloudformation:DescribeStacks": {STACKS},
        "cloudformation:ListStackResources": {STACKS},
        "cloudformation:ListStacks": {"*"},
        "sns:Publish": {f"{HERE.format('sns')}:*"},
        "ssm:GetParameter": {f"{HERE.format('ssm')}:parameter/crossover/crossover/*/bucket"},
        "s3:GetObject": {f"arn:<AWS::Partition>:s3:::crossover*/runs/{key}" for key in ("under-way", "*/deadline/*")},
        "states:ListExecutions": {f"{HERE.format('states')}:stateMachine:crossover-*"},
        "states:StopExecution": {f"{HERE.format('states')}:execution:crossover-*:*"},
        "autoscaling:SetDesiredCapacity": {
            f"{HERE.format('autoscaling')}:autoScalingGroup:*:autoScalingGroupName/crossover-*"
        },
    }
    conditions = {json.dumps(s["Action"]): s.get("Condition") for _, s in statements(assembly.network)}
    for action in ("cloudformation:DeleteStack", "states:ListExecutions", "autoscaling:SetDesiredCapacity"):
        assert conditions[json.dumps(action)] == {"StringEquals": {"aws:ResourceTag/project": "crossover"}}


def test_the_role_outlives_what_it_deletes(assembly: Assembly) -> None:
    """Check that neither the experiment's stack nor the broker's contains the expiry or its permission: the network's does, deleted
    last.
    """
    for stack in ("crossover-spirt", "crossover-broker"):
        assert not resources(assembly.templates[stack], "AWS::Scheduler::Schedule")
        assert "cloudformation:DeleteStack" not in json.dumps(assembly.templates[stack])


def test_every_status_of_a_stack_that_is_there_is_asked_for() -> None:
    """Check that the expiry machine lists stacks in every status except DELETE_COMPLETE."""
    known = botocore.session.get_session().get_service_model("cloudformation").shape_for("StackStatus").enum
    assert set(expiry_machine.STANDING) == set(known) - {"DELETE_COMPLETE"}


def state_names(block: dict[str, Any]) -> Iterator[str]:
    """Yield the names of a state machine's states, those in maps and branches included."""
    for name, state in block["States"].items():
        yield name
        for inner in (state.get("ItemProcessor"), *state.get("Branches", [])):
            if inner:
                yield from state_names(inner)


@pytest.mark.parametrize("only", ["", "crossover-alone"])
def test_state_names_are_unique_in_the_whole_machine(only: str) -> None:
    """Check that no name occurs twice in the expiry machine, in Maps either, which Step Functions would refuse as DUPLICATE_STATE_NAME."""
    names = list(state_names(expiry_machine.definition("crossover", only=only)))
    assert len(names) == len(set(names))


def test_what_stands_alone_brings_its_own_expiry_and_says_so(assembled: Assembled, assembly: Assembly) -> None:
    """Check that a stack without shared stacks has a tag that says so, and an expiry of its own that may delete only this stack.

    All other resources depend on its schedule, which is so deleted last: a deletion that fails half way is tried again.
    """
    made = assembled("all-reduce over s3")
    assert stack_tags(made, made.name)["stands"] == "alone" and "stands" not in stack_tags(assembly, "crossover-spirt")
    machine = next(
        each
        for each in resources(made.experiment, "AWS::StepFunctions::StateMachine").values()
        if each["StateMachineName"] == f"{made.name}-expiry"
    )
    allowed = actions_of(made.experiment, machine["RoleArn"])
    assert allowed["cloudformation:DeleteStack"] == {f"{HERE.format('cloudformation')}:stack/{made.name}/*"}
    assert "cloudformation:ListStacks" not in allowed
    (schedule,) = resources(made.experiment, "AWS::Scheduler::Schedule")
    for name, resource in made.experiment["Resources"].items():
        if not name.startswith("Expiry"):
            assert schedule in listed(resource.get("DependsOn", [])), name


# --- budget -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_budget_writes_to_the_owner(synth: Synthesize, spirt: Experiment, assembly: Assembly) -> None:
    """Check that a budget notifies the owner's e-mail address, that there is none without a limit, and that an owner without an address is
    refused.
    """
    assert not resources(assembly.experiment, "AWS::Budgets::Budget")
    made = synth(owner="ada@example.org", lifetime=replace(spirt.lifetime, budget_usd=12.5))
    budget = only(made.experiment, "AWS::Budgets::Budget")
    assert budget["Budget"]["BudgetLimit"] == {"Amount": 12.5, "Unit": "USD"}
    assert budget["Budget"]["CostFilters"] == {"TagKeyValue": ["user:experiment$spirt"]}
    addresses = [s["Address"] for n in budget["NotificationsWithSubscribers"] for s in n["Subscribers"]]
    assert addresses == ["ada@example.org"] * 2
    with pytest.raises(ConfigError, match=r"owner: 'unknown' cannot be written to"):
        synth(lifetime=replace(spirt.lifetime, budget_usd=12.5))

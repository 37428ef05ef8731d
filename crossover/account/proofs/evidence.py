"""What a verification gathers of one deployment, run and destruction: each thing asked of AWS once, when a check first needs it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from crossover.account.resources import inventory, ownership
from crossover.account.resources.listings import FUNCTION
from crossover.account.resources.ownership import Owner, Whose
from crossover.architecture import architecture_of, steps
from crossover.clients import aws_calls
from crossover.costs import platform_reports
from crossover.costs.invocations import on_instance
from crossover.costs.platform_reports import Report
from crossover.experiment import Experiment
from crossover.reports.folder import RunFolder
from crossover.reports.result import Label


class Lacking(Exception):
    """There is no evidence of a fact, and why."""


CHILDREN = ("worker", "epoch", "round")  # state machines that another one starts


@dataclass(frozen=True, kw_only=True)
class Redriven:
    """How a run's execution ended after it was redriven, and whether it took up a child that existed."""

    status: str
    error: str
    adopted: bool


@dataclass(frozen=True, kw_only=True)
class Made:
    """One resource of a stack: from when to when CloudFormation made it."""

    stack: str
    kind: str
    logical_id: str
    began: datetime
    ended: datetime

    @property
    def minutes(self) -> float:
        return (self.ended - self.began).total_seconds() / 60


@dataclass(kw_only=True)
class Evidence:
    """`on_aws`: a real account answered, not the cloud on one machine. `minutes`: of each phase, by its name."""

    session: Any
    experiment: Experiment
    on_aws: bool
    run: RunFolder | None = None
    minutes: dict[str, float] = field(default_factory=dict)
    alone: bool = False  # no other experiment of the project stands
    updated: RunFolder | None = None  # with one worker more, on the stack that was updated in place
    redriven: Redriven | None = None  # after its children were redriven first
    redriven_alone: Redriven | None = None  # while its children stayed stopped
    fired: bool | None = None  # whether the schedule deleted the stack by itself
    expiry_state: str | None = None  # of the stack after the expiry's machine was told to delete it; "" is gone
    interfaces_left: int | None = None  # of functions, once the experiment was gone
    shared_stay: bool = False  # network and broker stood before
    network_deleted: bool = False

    def client(self, service: str, **arguments: Any) -> Any:
        return self.session.client(service, **arguments)

    @property
    def stack(self) -> str:
        return f"{self.experiment.project}-{self.experiment.name}"

    @property
    def result(self) -> Mapping[str, Any]:
        """Of the run. Raises Lacking where none ended."""
        if self.run is None:
            raise Lacking("no run ended")
        return self.run.result

    @property
    def label(self) -> Label:
        """measured-aws is for what a real account answered, by a run that says so itself."""
        ran_elsewhere = self.run is not None and self.run.result["label"] != "measured-aws"
        return "measured-aws" if self.on_aws and not ran_elsewhere else "measured-local"

    @cached_property
    def owner(self) -> Owner:
        return ownership.of(self.session, self.experiment.project, self.experiment.name)

    @property
    def records(self) -> list[Mapping[str, Any]]:
        return list(self.run.records) if self.run else []

    @cached_property
    def reports(self) -> dict[str, Report]:
        """Lambda's own, of the run's records; waited for as long as they may take on AWS."""
        recorded = {each["request_id"] for each in self.records if not on_instance(each)}
        wait_s = platform_reports.WAIT_S if self.on_aws else 5.0
        found = platform_reports.wait_for(self.session, self.stack, self.records, wait_s=wait_s) if recorded else {}
        return {key: report for key, report in found.items() if key in recorded}

    @cached_property
    def torch_functions(self) -> set[str]:
        """Names of the functions that carry the torch layer."""
        found = steps(architecture_of(self.experiment))
        torch = [step.name for step in found if step.needs_torch(self.experiment)]
        return {f"{self.stack}-{name.replace('_', '-')}" for name in torch}

    @cached_property
    def functions(self) -> list[Mapping[str, Any]]:
        listed = aws_calls.entries(self.session, "lambda", "list_functions", "Functions")
        return [each for each in listed if self.owner.named(FUNCTION, each["FunctionName"])]

    @cached_property
    def made(self) -> list[Made]:
        """Resources of the project's stacks, by CloudFormation's events; empty where it keeps none (the cloud on one machine)."""
        shared = (f"{self.experiment.project}-{part}" for part in ("network", "broker"))
        return [made for stack in (*shared, self.stack) for made in _made(self.session, stack)]

    @cached_property
    def state_machines(self) -> dict[str, str]:
        """ARNs by name, of everybody's."""
        listed = aws_calls.entries(self.session, "stepfunctions", "list_state_machines", "stateMachines")
        return {each["name"]: str(each["stateMachineArn"]) for each in listed}

    @cached_property
    def zones(self) -> set[str]:
        """Availability zones of the subnets that the network stack made."""
        subnets = self._ids(f"{self.experiment.project}-network", "AWS::EC2::Subnet")
        if not subnets:
            return set()
        listed = self.client("ec2").describe_subnets(SubnetIds=subnets)["Subnets"]
        return {str(each["AvailabilityZone"]) for each in listed}

    @cached_property
    def bucket(self) -> str:
        """The experiment's; empty where its stack has none."""
        return next(iter(self._ids(self.stack, "AWS::S3::Bucket")), "")

    def _ids(self, stack: str, type: str) -> list[str]:
        found = self.client("cloudformation").describe_stack_resources(StackName=stack)["StackResources"]
        return [str(each["PhysicalResourceId"]) for each in found if each["ResourceType"] == type]

    def executions(self, name: str, *, status: str = "") -> Iterator[Mapping[str, Any]]:
        """Of the state machine `name`, the newest first, with input and output; none where there is no such machine."""
        if arn := self.state_machines.get(name):
            chosen = {"stateMachineArn": arn} | ({"statusFilter": status} if status else {})
            for each in aws_calls.entries(self.session, "stepfunctions", "list_executions", "executions", **chosen):
                yield self.client("stepfunctions").describe_execution(executionArn=each["executionArn"])

    def function_interfaces(self) -> int:
        """Network interfaces that Lambda made for the functions of the project."""
        everyone = ownership.of(self.session, self.experiment.project)
        found = inventory.take(self.session, everyone, ["network interface"])
        return sum(each.whose is not Whose.UNPROVEN for each in found)


def is_aws(session: Any) -> bool:
    """Whether clients of `session` talk to AWS, whatever redirected them: a variable, a profile, a service's own endpoint."""
    hosts = [
        urlsplit(str(session.client(name).meta.endpoint_url)).hostname or ""
        for name in ("sts", "lambda", "stepfunctions")
    ]
    return all(re.search(r"(^|\.)(amazonaws\.com(\.cn)?|api\.aws)$", host) for host in hosts)


def _made(session: Any, stack: str) -> Iterator[Made]:
    events, began = list[Mapping[str, Any]](), dict[str, Mapping[str, Any]]()
    with aws_calls.Tolerating("does not exist"):
        events += aws_calls.entries(session, "cloudformation", "describe_stack_events", "StackEvents", StackName=stack)
    for event in sorted(events, key=lambda each: each["Timestamp"]):
        name, state = event["LogicalResourceId"], event.get("ResourceStatus")
        if state == "CREATE_IN_PROGRESS":
            began.setdefault(name, event)
        elif state == "CREATE_COMPLETE" and name in began and name != stack:
            kind, start = event["ResourceType"], began[name]["Timestamp"]
            yield Made(stack=stack, kind=kind, logical_id=name, began=start, ended=event["Timestamp"])

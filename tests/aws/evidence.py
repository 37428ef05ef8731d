"""What a verification gathers of one deployment, run and destruction: each thing asked of AWS once, when a check first needs it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar, cast

from crossover.experiment import Experiment
from crossover.reports import usage
from crossover.reports.folder import Label, RunFolder
from crossover.reports.usage import Report, is_on_instance
from crossover.running import account
from crossover.running.account import FUNCTION, Owner, Ownership
from crossover.stores import deployed_clients
from crossover.workflow.architecture import architecture_of, steps

T = TypeVar("T")


class Lacking(Exception):
    """The lack of evidence for a fact, raised with the reason."""


def needs(there: object, otherwise: str) -> None:
    """Raise Lacking with the reason `otherwise` unless `there` is true."""
    if not there:
        raise Lacking(otherwise)


def known(value: T | None, otherwise: str) -> T:
    """Return `value`. Raises Lacking with the reason `otherwise` if it is None."""
    needs(value is not None, otherwise)
    return cast(T, value)


CHILDREN = ("worker", "epoch", "round")  # state machines that another one starts


@dataclass(frozen=True, kw_only=True)
class Redriven:
    """The end of a run's execution that was redriven, and whether it adopted an existing child."""

    status: str
    error: str
    adopted: bool


@dataclass(kw_only=True)
class Evidence:
    """The evidence that a verification collects. `on_aws`: whether a real account answered, not the local cloud; `minutes`: duration of
    each phase, by name.
    """

    session: Any
    experiment: Experiment
    on_aws: bool
    run: RunFolder | None = None
    minutes: dict[str, float] = field(default_factory=dict)
    alone: bool = True  # no other experiment of the project stands, as far as is known
    updated: RunFolder | None = None  # with one worker more, on the stack that was updated in place
    redriven: Redriven | None = None  # after its children were redriven first
    redriven_alone: Redriven | None = None  # while its children stayed stopped
    fired: bool | None = None  # whether the schedule deleted the stack by itself
    expiry_state: str | None = None  # of the stack after the expiry's machine was told to delete it; "" is gone
    interfaces_left: int | None = None  # of functions, once the experiment was gone
    shared_stay: bool = False  # network and broker stood before
    network_deleted: bool = False

    def client(self, service: str, **arguments: Any) -> Any:
        """Return a boto3 client."""
        return self.session.client(service, **arguments)

    @property
    def stack(self) -> str:
        """The name of the experiment's stack."""
        return f"{self.experiment.project}-{self.experiment.name}"

    @property
    def result(self) -> Mapping[str, Any]:
        """The run's result. Raises Lacking if no run ended."""
        return known(self.run, "no run ended").result

    @property
    def label(self) -> Label:
        """The label of the evidence: measured-aws if a real account answered and the run, if there is one, says so itself; else
        measured-local.
        """
        ran_elsewhere = self.run is not None and self.run.result["label"] != "measured-aws"
        return "measured-aws" if self.on_aws and not ran_elsewhere else "measured-local"

    @cached_property
    def owner(self) -> Owner:
        """The owner of the experiment's resources, which finds them by their tags."""
        return account.load_owner(self.session, self.experiment.project, self.experiment.name)

    @property
    def records(self) -> list[Mapping[str, Any]]:
        """The records of the run; [] without a run."""
        return list(self.run.records) if self.run else []

    @cached_property
    def reports(self) -> dict[str, Report]:
        """Lambda's reports on the run's records, by request id. The first use waits for them: on AWS up to `usage.WAIT_S`, else 5
        seconds.
        """
        recorded = {each["request_id"] for each in self.records if not is_on_instance(each)}
        wait_s = usage.WAIT_S if self.on_aws else 5.0
        found = usage.wait_for_reports(self.session, self.stack, self.records, wait_s=wait_s) if recorded else {}
        return {key: report for key, report in found.items() if key in recorded}

    @cached_property
    def torch_functions(self) -> set[str]:
        """The names of the functions that carry the torch layer."""
        found = steps(architecture_of(self.experiment))
        torch = [step.name for step in found if step.needs_torch(self.experiment)]
        return {f"{self.stack}-{name.replace('_', '-')}" for name in torch}

    @cached_property
    def functions(self) -> list[Mapping[str, Any]]:
        """The configurations of the experiment's Lambda functions."""
        listed = deployed_clients.list_items(self.session, "lambda", "list_functions", "Functions")
        return [each for each in listed if self.owner.has_resource(FUNCTION, each["FunctionName"])]

    @cached_property
    def made(self) -> dict[str, list[float]]:
        """The minutes that CloudFormation took to create each resource of the project's stacks, by type; empty if it keeps no events (the
        local cloud).
        """
        shared = (f"{self.experiment.project}-{kind}" for kind in account.SHARED_KINDS)
        found: dict[str, list[float]] = {}
        for stack in (*shared, self.stack):
            for kind, minutes in _made(self.session, stack):
                found.setdefault(kind, []).append(minutes)
        return found

    @cached_property
    def state_machines(self) -> dict[str, str]:
        """The ARNs of all state machines of the account, other people's too, by name."""
        listed = deployed_clients.list_items(self.session, "stepfunctions", "list_state_machines", "stateMachines")
        return {each["name"]: str(each["stateMachineArn"]) for each in listed}

    @cached_property
    def zones(self) -> set[str]:
        """The availability zones of the subnets in the project's network."""
        networks = [{"Name": "vpc-id", "Values": sorted(self.owner.networks)}]
        listed = self.client("ec2").describe_subnets(Filters=networks)["Subnets"] if self.owner.networks else []
        return {str(each["AvailabilityZone"]) for each in listed}

    def executions(self, name: str, *, status: str = "") -> Iterator[Mapping[str, Any]]:
        """Yield the executions of the state machine `name`, newest first, with input and output; none if there is no such machine.
        `status`: only executions with this status.
        """
        if arn := self.state_machines.get(name):
            chosen = {"stateMachineArn": arn} | ({"statusFilter": status} if status else {})
            for each in deployed_clients.list_items(
                self.session, "stepfunctions", "list_executions", "executions", **chosen
            ):
                yield self.client("stepfunctions").describe_execution(executionArn=each["executionArn"])

    def function_interfaces(self) -> int:
        """Return the number of network interfaces that Lambda created for the project's functions."""
        everyone = account.load_owner(self.session, self.experiment.project)
        found = account.find_resources(self.session, everyone, ["network interface"])
        return sum(each.whose is not Ownership.UNPROVEN for each in found)


def _made(session: Any, stack: str) -> Iterator[tuple[str, float]]:
    """Yield (type, minutes from the first event of its creation to the last) of each resource of a stack."""
    events, began = list[Mapping[str, Any]](), dict[str, datetime]()
    with deployed_clients.ToleratedErrors("does not exist"):
        events += deployed_clients.list_items(
            session, "cloudformation", "describe_stack_events", "StackEvents", StackName=stack
        )
    for event in sorted(events, key=lambda each: each["Timestamp"]):
        name, state, at = event["LogicalResourceId"], event.get("ResourceStatus"), event["Timestamp"]
        if state == "CREATE_IN_PROGRESS":
            began.setdefault(name, at)
        elif state == "CREATE_COMPLETE" and name in began and name != stack:
            yield event["ResourceType"], (at - began[name]).total_seconds() / 60

"""An account with stacks whose time is over or not, where the expiry's machine looks: on the stand-in, or on another."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from cdk import expiry_machine
from crossover.stores.keys import CURRENT_DEADLINE, Keys
from crossover.workflow.state_machines import fill_placeholders

SOON, LATER, NOON = "2026-03-01T11:30:00Z", "2026-03-01T13:00:00Z", "2026-03-01T12:00:00Z"
A, B, NET, MQ = "crossover-a", "crossover-b", "crossover-network", "crossover-broker"
FOREIGN = {  # names that begin as ours do, and tags that say otherwise
    "foreign": {"project": "another-project", "stack-kind": "experiment"},
    "crossover-another": {"project": "crossover-two", "stack-kind": "experiment"},
    "crossover-untagged": {},
}
WAITING = {"StartAt": "Wait", "States": {"Wait": {"Type": "Wait", "Seconds": 3_600, "End": True}}}
TAGS = {"alone": {"stack-kind": "experiment", "stands": "alone"}}
Stacks = Mapping[str, tuple[str, str]]  # name -> (kind, expires-at)


def filled_in(*, only: str = "") -> str:
    """Return the expiry machine's definition as Step Functions gets it. `only`: name of the single stack to check."""
    text = json.dumps(expiry_machine.definition("crossover", only=only))
    return fill_placeholders(text, stack="crossover-expiry", region="us-east-1", account="123456789012")


class Account:
    """An account with stacks that each have one state machine, whose execution waits for an hour."""

    def __init__(self, client: Callable[[str], Any], account: str = "123456789012") -> None:
        """Make the clients of an account in us-east-1. `client`: returns the client of a service by its name."""
        self.role, self.machine = (
            f"arn:aws:iam::{account}:role/any",
            f"arn:aws:states:us-east-1:{account}:stateMachine:",
        )
        self.states, self.stacks, self.s3, self.ssm = map(client, ("stepfunctions", "cloudformation", "s3", "ssm"))
        self.topics, self.queues = map(client, ("sns", "sqs"))

    def create(self, name: str, tags: Mapping[str, str]) -> str:
        """Create a stack, start its state machine, and return the execution's ARN."""
        machine = {"StateMachineName": f"{name}-run", "DefinitionString": json.dumps(WAITING), "RoleArn": self.role}
        body = {"Resources": {"Run": {"Type": "AWS::StepFunctions::StateMachine", "Properties": machine}}}
        pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
        self.stacks.create_stack(StackName=name, TemplateBody=json.dumps(body), Tags=pairs)
        self.stacks.get_waiter("stack_create_complete").wait(StackName=name, WaiterConfig={"Delay": 1})
        return str(self.states.start_execution(stateMachineArn=f"{self.machine}{name}-run")["executionArn"])

    def deadline(self, experiment: str, moment: str) -> None:
        """Store a run's deadline at `moment` for the experiment, beside an expired one of an earlier run."""
        bucket = f"crossover-{experiment}-{uuid4().hex[:8]}"
        self.s3.create_bucket(Bucket=bucket)
        key = Keys("run").deadline(1.5)
        self.s3.put_object(Bucket=bucket, Key=CURRENT_DEADLINE, Body=key.encode())
        self.s3.put_object(Bucket=bucket, Key=key, Body=moment.encode())
        for late in (Keys("earlier").deadline(1.5), Keys("run").deadline(0.5)):  # of a run, an attempt before it
            self.s3.put_object(Bucket=bucket, Key=late, Body=b"2000-01-01T00:00:00Z")
        name = f"/crossover/crossover/{experiment}/bucket"
        self.ssm.put_parameter(Name=name, Value=bucket, Type="String", Overwrite=True)

    def running(self, arn: str) -> bool:
        """Return whether an execution is running; False if it was deleted with its state machine."""
        try:
            return bool(self.states.describe_execution(executionArn=arn)["status"] == "RUNNING")
        except self.states.exceptions.ExecutionDoesNotExist:  # it went with its machine
            return False

    def look(self, *, only: str = "", status: str = "SUCCEEDED") -> str:
        """Run the expiry machine until it ends with `status`, and return the execution's ARN. `only`: name of the single stack to check."""
        machine = self.states.create_state_machine(
            name=f"expiry-{uuid4().hex}",
            definition=filled_in(only=only),
            roleArn=self.role,
        )["stateMachineArn"]
        started = self.states.start_execution(stateMachineArn=machine, input=json.dumps({"now": NOON}))
        while (found := self.states.describe_execution(executionArn=started["executionArn"]))["status"] == "RUNNING":
            time.sleep(0.01)
        assert found["status"] == status, found
        return str(started["executionArn"])

    def gone(self, stack: str) -> None:
        """Wait until a stack that is being deleted is gone."""
        self.stacks.get_waiter("stack_delete_complete").wait(StackName=stack, WaiterConfig={"Delay": 1})

    def present(self) -> set[str]:
        """Return the names of all existing stacks."""
        return {stack["StackName"] for stack in self.stacks.describe_stacks()["Stacks"]}


def create_stacks(account: Account, stacks: Stacks) -> dict[str, str]:
    """Create our own stacks, and return the ARNs of their executions by stack name."""
    return {
        name: account.create(name, {"project": "crossover", "expires-at": ends, **TAGS.get(kind, {"stack-kind": kind})})
        for name, (kind, ends) in stacks.items()
    }

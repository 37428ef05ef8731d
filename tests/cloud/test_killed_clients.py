"""Money without the client: its command is killed, and AWS itself ends what is paid for, by the run's deadline and by the stack's time."""

import json
import signal
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from crossover.stores.keys import CURRENT_DEADLINE
from crossover.workflow.architecture import architectures, load
from tests.cloud import neighbours
from tests.cloud.conftest import written
from tests.cloud.interruptions import Interrupter, Point
from tests.moto_patches import AccountCloud
from tests.sampling import WHOLE

pytestmark = pytest.mark.slow

KILL, TERM, HUP = signal.SIGKILL, signal.SIGTERM, signal.SIGHUP
HOURS, BUDGET = 4.0, 5.0
SAMPLED = {
    "spirt": [
        Point("states StartExecution", False, KILL),
        Point("states DescribeExecution", True, TERM),
        Point("states DescribeExecution", False, HUP),
    ],
    "p2p_instance": [Point("autoscaling SetDesiredCapacity", False, KILL)],
}
CALLS = {
    "spirt": "states ListExecutions, s3 HEAD, s3 PUT, s3 GET, states StartExecution, states DescribeExecution",
    "p2p_instance": "autoscaling DescribeAutoScalingGroups, s3 HEAD, s3 PUT, s3 GET, autoscaling SetDesiredCapacity",
}
EVERY = {
    name: [Point(call, before, KILL) for call in calls.split(", ") for before in (True, False)]
    for name, calls in CALLS.items()
}


class Account:
    """The parts of an AWS account that are billed by the second for one experiment, and the expiry machine, which the test starts in the
    schedule's place.
    """

    def __init__(self, session: Any, experiment: str) -> None:
        """Make the clients and read the name of the experiment's bucket from its parameter."""
        self.states, self.groups, self.stacks, self.s3, self.ssm = (
            session.client(name) for name in ("stepfunctions", "autoscaling", "cloudformation", "s3", "ssm")
        )
        self.stack = f"crossover-{experiment}"
        self.bucket = self.ssm.get_parameter(Name=f"/crossover/crossover/{experiment}/bucket")["Parameter"]["Value"]

    def at_work(self) -> list[str]:
        """Return the ARNs of running executions, without the expiry's and the neighbours', and the name of the experiment's fleet if it
        has capacity.
        """
        machines = [each["stateMachineArn"] for each in self.states.list_state_machines()["stateMachines"]]
        running = [
            execution["executionArn"]
            for arn in machines
            if not arn.endswith(("-expiry", neighbours.WORKING))
            for execution in self.states.list_executions(stateMachineArn=arn, statusFilter="RUNNING")["executions"]
        ]
        mine = [f"{self.stack}-fleet"]
        fleets = self.groups.describe_auto_scaling_groups(AutoScalingGroupNames=mine)["AutoScalingGroups"]
        return running + [fleet["AutoScalingGroupName"] for fleet in fleets if fleet["DesiredCapacity"]]

    def look(self, moment: datetime) -> None:
        """Run the expiry machine as of the moment and wait until it has succeeded."""
        machines = {m["name"]: m["stateMachineArn"] for m in self.states.list_state_machines()["stateMachines"]}
        now = json.dumps({"now": moment.strftime("%Y-%m-%dT%H:%M:%SZ")})
        arn = self.states.start_execution(stateMachineArn=machines["crossover-expiry"], input=now)["executionArn"]
        while (found := self.states.describe_execution(executionArn=arn))["status"] == "RUNNING":
            time.sleep(0.05)
        assert found["status"] == "SUCCEEDED", found

    def deadline(self) -> datetime | None:
        """Return the run's current deadline, or None if the bucket has none."""
        try:
            key = self.s3.get_object(Bucket=self.bucket, Key=CURRENT_DEADLINE)["Body"].read().decode()
            told = self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read().decode()
        except self.s3.exceptions.NoSuchKey:
            return None
        return datetime.strptime(told, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)

    def most_usd_per_s(self) -> float:
        """Return the most dollars a second that the latest run may cost, as its experiment.json says."""
        keys = self.s3.list_objects_v2(Bucket=self.bucket, Prefix="runs/")["Contents"]
        facts = max((k for k in keys if k["Key"].endswith("/experiment.json")), key=lambda k: k["LastModified"])
        told = json.loads(self.s3.get_object(Bucket=self.bucket, Key=facts["Key"])["Body"].read())
        return float(told["money"]["most_usd_per_s"])


def instances(session: Any) -> set[str]:
    """Return the ids of all EC2 instances of the account, of the neighbours too, that are not terminated."""
    reservations = session.client("ec2").describe_instances()["Reservations"]
    found = [each for group in reservations for each in group["Instances"]]
    return {each["InstanceId"] for each in found if each["State"]["Name"] != "terminated"}


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[AccountCloud]:
    """Yield the double of an AWS account, a new one for each test."""
    with AccountCloud(tmp_path / "cloud", cores=2) as running:
        yield running


def points(architecture: str) -> Sequence[Point]:
    """Return the moments at which a client of this architecture is killed: a sample for programs or for state machines. In the whole
    sweep the architectures of EVERY have each kind of call instead.
    """
    kind = "p2p_instance" if load(architecture).program else "spirt"
    return EVERY[architecture] if WHOLE and architecture in EVERY else SAMPLED[kind]


@pytest.mark.parametrize("architecture", architectures() if WHOLE else list(SAMPLED))
def test_whatever_kills_the_command_the_run_ends(cloud: AccountCloud, tmp_path: Path, architecture: str) -> None:
    """Check that a run whose client is killed at some moment is ended by the expiry machine within its budget, and the stack afterwards."""
    name, lifetime = (
        f"tiny-{architecture.replace('_', '-')}",
        {"ttl_hours": HOURS, "budget_usd": BUDGET, "maximum_run_hours": 3.0},
    )
    training = {"model": "small_cnn", "epochs": 1_000, "batch_size": 20}
    config = written(tmp_path, architecture, training=training, lifetime=lifetime, owner="ada@example.org")
    interrupter, before = Interrupter(cloud), instances(cloud.session())
    status, said = interrupter.run("deploy", str(config), "--yes")
    assert status == 0, said[-4_000:]
    deployed, account = datetime.now(UTC), Account(cloud.session(), name)
    for point in points(architecture):
        began = datetime.now(UTC)
        status, said = interrupter.run("run", str(config), "--on", "aws", "--out", str(tmp_path / "out"), point=point)
        assert interrupter.struck, f"{point} was not reached:\n{said[-3_000:]}"
        if point.number is not KILL:  # the command stops what it has started itself
            assert status == 128 + point.number, f"{point}: {status}\n{said[-3_000:]}"
            assert account.at_work() == [], point
            continue
        assert status == -KILL
        if not account.at_work():
            continue  # it had not started anything
        ends = account.deadline()
        assert ends is not None
        # At the highest rate no more than the budget, decisions that go on put it off by what was not spent.
        assert (ends - datetime.now(UTC)).total_seconds() * account.most_usd_per_s() <= BUDGET
        account.look(began)
        assert account.at_work() != [], "a run within its time is left alone"
        for _ in range(3):  # a decision may just have put it off, and a child just have been started
            account.look(account.deadline() or ends)
        assert account.at_work() == [], point
    account.look(deployed + timedelta(hours=HOURS))
    standing = {stack["StackName"] for stack in account.stacks.describe_stacks()["Stacks"]}
    assert account.stack not in standing and account.at_work() == []
    assert instances(cloud.session()) == before

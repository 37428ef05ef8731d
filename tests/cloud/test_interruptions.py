"""deploy, run and destroy, interrupted at calls to AWS and repeated: the same command again ends in the right state."""

import json
import signal
from pathlib import Path

import pytest

from crossover.local.cloud import LocalCloud
from tests.cloud import made, neighbours
from tests.cloud.conftest import Untouched, written
from tests.cloud.interruptions import Interrupter, Point
from tests.cloud.listings import snapshot
from tests.sampling import WHOLE

pytestmark = pytest.mark.slow

INT, KILL = signal.SIGINT, signal.SIGKILL
SAMPLED = {
    "deploy": [
        Point("cloudformation CreateStack", False, INT),
    ],
    "run": [
        Point("states StartExecution", False, KILL),
        Point("states DescribeExecution", True, INT),  # the first: a quick execution has no third
    ],
    "destroy": [Point("cloudformation DeleteStack", False, KILL)],
}
# Every kind of call that the commands were seen to make. Once a stack stands a deployment makes fewer: such a point is passed by.
KINDS = {
    "deploy": (
        "sts GetCallerIdentity, cloudformation DescribeStacks, cloudformation ListStacks, "
        "lambda GET, states ListStateMachines, logs DescribeLogGroups, "
        "ssm GetParametersByPath, autoscaling DescribeAutoScalingGroups, budgets DescribeBudgets, ssm GetParameter, mq GET, "
        "ec2 DescribeInstanceTypeOfferings, sts AssumeRole, s3 GET, s3 POST, s3 PUT, cloudformation CreateStack, "
        "cloudformation DescribeStackEvents"
    ),
    "run": (
        "cloudformation DescribeStacks, cloudformation ListStackResources, "
        "ssm GetParametersByPath, states ListExecutions, s3 HEAD, s3 PUT, s3 GET, "
        "states StartExecution, states DescribeExecution"
    ),
    "destroy": (
        "cloudformation DescribeStacks, cloudformation ListStacks, cloudformation ListStackResources, states ListExecutions, "
        "states ListStateMachines, autoscaling DescribeAutoScalingGroups, cloudformation DeleteStack, ec2 DescribeInstances, "
        "ec2 DescribeVolumes, ec2 DescribeAddresses, ec2 DescribeVpcEndpoints, mq GET, secretsmanager ListSecrets, s3 GET, "
        "logs DescribeLogGroups, lambda GET, scheduler GET, sqs ListQueues, monitoring DescribeAlarms, "
        "ssm GetParametersByPath, iam ListRoles, iam ListInstanceProfiles, "
        "ec2 DescribeLaunchTemplates, ec2 DescribeNetworkInterfaces, ec2 DescribeSecurityGroups, "
        "ec2 DescribeInternetGateways, ec2 DescribeVpcs, budgets DescribeBudgets, tagging GetResources"
    ),
}
EVERY = {
    command: [
        Point(kind, before, number) for kind in kinds.split(", ") for before, number in ((True, INT), (False, KILL))
    ]
    for command, kinds in KINDS.items()
}


@pytest.mark.deep
def test_an_interrupted_command_is_repeated(cloud: LocalCloud, untouched: Untouched, tmp_path: Path) -> None:
    """Check that deploy, run and destroy, each interrupted and repeated, end as if they had never been interrupted."""
    every = WHOLE
    points = EVERY if every else SAMPLED
    config, out = str(written(tmp_path, "spirt")), tmp_path / "results"
    before = snapshot(cloud.session())
    interrupter = Interrupter(cloud)

    def repeated(command: str, *arguments: str) -> str:
        """Interrupt the command at each of its points in turn, then run it undisturbed and return what it printed. Other people's
        resources must stay as they were each time.
        """
        for point in points[command]:
            status, said = interrupter.run(command, config, *arguments, point=point)
            untouched()
            assert interrupter.struck or every, f"{command}: {point} was not reached:\n{said[-3_000:]}"
            if interrupter.struck:
                assert status == (-KILL if point.number is KILL else 130), (
                    f"{command}, {point}: {status}\n{said[-3_000:]}"
                )
            else:
                assert status == 0, f"{command}: {said[-3_000:]}"
        status, said = interrupter.run(command, config, *arguments)
        untouched()
        assert status == 0, f"{command}, repeated: {said[-4_000:]}"
        return said

    assert "deployed in" in repeated("deploy", "--yes")
    assert len(made.stacks(cloud)) == 3 and len(cloud.servers.redis) == 2 and len(cloud.servers.brokers) == 1
    repeated("run", "--on", "aws", "--out", str(out))
    result = json.loads((out / "result.json").read_text())
    assert (result["outcome"], len(result["epochs"]), result["incomplete"]) == ("finished", 1, [])
    states = cloud.session().client("stepfunctions")
    for machine in states.list_state_machines()["stateMachines"]:
        if machine["name"] == neighbours.WORKING:
            continue
        assert (
            states.list_executions(stateMachineArn=machine["stateMachineArn"], statusFilter="RUNNING")["executions"]
            == []
        )
    assert "nothing is left" in repeated("destroy", "--yes", "--shared", "--verify")
    assert snapshot(cloud.session()) == before

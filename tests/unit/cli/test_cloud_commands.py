"""plan, doctor, status, deploy, destroy: what they say, what they call, and what they refuse."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ConnectTimeoutError
from moto import mock_aws

from crossover.cli import deployment
from crossover.cli.deployment import list_stack_rows, time_to_live
from crossover.experiment import Experiment, Gpu
from crossover.running import account, deploying, organisation, preflight, removal
from crossover.validation import load
from tests.commands import status

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "config" / "spirt.yaml"
ALONE = ROOT / "config" / "all-reduce-s3.yaml"


@pytest.mark.parametrize(
    ("config", "changes", "kind"),
    [
        ("spirt", {}, "arm64"),
        ("spirt", {"instance_type": "m7i.large"}, "amd64"),
        ("all-reduce-s3", {}, ""),
        ("gpu", {}, ""),
    ],
)
def test_the_tensor_module_is_built_for_the_hosts_that_there_are(
    config: str, changes: dict[str, str], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Redis module is required for the processor `kind` of the experiment's database hosts, and not at all without hosts."""
    experiment = load(ROOT / "config" / f"{config}.yaml")
    experiment = replace(experiment, database=replace(experiment.database, **changes))
    assert deploying.hosts_processor(experiment) == kind
    monkeypatch.setattr(deployment, "ROOT", tmp_path)
    found = list(deployment.check_hosts_module(experiment))
    assert [each.detail for each in found] == ([f"make host-module PROCESSOR={kind}"] if kind else [])
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / f"tensors-{kind}.so").touch()
    assert all(each.holds for each in deployment.check_hosts_module(experiment))


@pytest.mark.parametrize(
    ("config", "parts", "absent"),
    [
        (
            CONFIG,
            (
                "compute_gradients",
                "1769",
                "state machines: run, worker, epoch, round",
                "4 x m7g.large",
                "8 hours after deployment",
            ),
            (),
        ),
        (
            ALONE,  # which costs nothing an hour
            (
                "without network, broker or database",
                "cost per hour: $0.00 while deployed",
                "its bucket, $0.023 per GB and month",
                "$0.001 per hour",
            ),
            ("database hosts", "m7g", "endpoint", "tensors", "Cost per hour while deployed", "would not run this"),
        ),
    ],
)
def test_plan_lists_functions_machines_and_hosts(
    config: Path, parts: tuple[str, ...], absent: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """`plan` prints every text of `parts` for the experiment `config`, and none of `absent`."""
    assert status("plan", str(config)) == 0
    shown = capsys.readouterr().out
    assert [part for part in parts if part not in shown] == []
    assert [part for part in absent if part in shown] == []


def test_plan_refuses_what_cannot_be_deployed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`plan` and `deploy` end with status 2 for an experiment in bf16 on Lambda."""
    path = tmp_path / "x.yaml"
    path.write_text("name: x\narchitecture: spirt\ntraining: {precision: bf16}\n")
    for command in ("plan", "deploy"):
        assert status(command, str(path)) == 2
        assert "Graviton2" in capsys.readouterr().err


def test_doctor_names_what_is_missing_and_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`doctor` ends with status 2 if programs are missing; it lists each with the command that installs it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert status("doctor", str(CONFIG)) == 2
    shown = capsys.readouterr()
    assert "missing  rabbitmq-server: apt-get install rabbitmq-server" in shown.out
    assert "this machine lacks redis-server, rabbitmq-server, g++, make" in shown.err


def test_doctor_names_each_check_as_it_begins_and_gives_up_within_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`doctor --on aws`, without network, prints its findings on this machine and the name of the check that fails, and asks about the
    network; its requests wait for seconds, and are made twice at most.
    """
    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    waits = account.open_impatient_session().client("sts").meta.config
    assert (waits.connect_timeout, waits.read_timeout, waits.retries["total_max_attempts"]) == (4, 15, 2)
    monkeypatch.setattr(deployment, "cdk_command", lambda: ["cdk"])

    def time_out(*_: object, **__: object) -> None:
        """Fail as a request without network does."""
        raise ConnectTimeoutError(endpoint_url="https://sts.us-east-1.amazonaws.com/")

    monkeypatch.setattr("botocore.client.BaseClient._make_api_call", time_out)
    assert status("doctor", str(ALONE), "--on", "aws") == 2
    said = capsys.readouterr()
    assert said.out.startswith("ok       CDK: cdk\n")
    assert said.err.startswith("asking AWS: credentials\nerror: AWS: Connect timeout on endpoint URL")
    assert "is there a network" in said.err


def test_doctor_takes_valkey_for_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` accepts valkey-server in place of redis-server."""
    program = tmp_path / "valkey-server"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {finding.name: finding for finding in deployment.check_machine(load(CONFIG))}
    assert found["redis-server"].holds
    assert found["redis-server"].detail == str(program)
    assert not found["g++"].holds


def test_status_tells_deployed_stacks_from_others() -> None:
    """`status` lists a deployed stack with its state and time, and any other as not deployed."""
    with mock_aws():
        client = boto3.client("cloudformation")
        template = {"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}
        client.create_stack(StackName="crossover-network", TemplateBody=json.dumps(template))
        names = ["crossover-network", "crossover-spirt"]
        first, second = list_stack_rows(boto3.Session(), names, now=datetime(2030, 1, 1, tzinfo=UTC))
    assert first[:2] == ("crossover-network", "CREATE_COMPLETE")
    assert first[2].endswith(" UTC")
    assert second == ("crossover-spirt", "not deployed", "", "")


def test_time_to_live_counts_down_and_then_says_that_it_is_over() -> None:
    """`time_to_live` returns the hours that are left or since the expiry, or "" if there is no expiry."""
    now = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
    assert time_to_live(datetime(2026, 11, 21, 19, 30, tzinfo=UTC), now=now) == "in 7.5 h"
    assert time_to_live(datetime(2026, 11, 21, 11, 0, tzinfo=UTC), now=now) == "expired 1.0 h ago: being deleted"
    assert time_to_live(None, now=now) == ""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["status", "deploy", "destroy"])
def test_without_credentials_it_says_how_to_get_them(command: str, tmp_path: Path) -> None:
    """A cloud command without AWS credentials ends with status 2 and one line that says how to get them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", "AWS_DEFAULT_REGION": "us-east-1"}
    code = "from crossover.cli.main import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, command, str(CONFIG)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (
        2,
        "error: no AWS credentials; set AWS_PROFILE, or sign in with `aws sso login`\n",
    )


@pytest.fixture
def cdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program in the CDK's place and return the file in which it notes its calls. It ends with the exit status that the file
    `status` holds; no account is examined but for its bootstrap.
    """
    program, calls = tmp_path / "cdk", tmp_path / "calls"
    synthesized = 'for out; do :; done; [ "$1" != synth ] || { mkdir "$out"; echo "{\\"artifacts\\": {}}" > "$out/manifest.json"; }'
    program.write_text(f'#!/bin/sh\necho "$PWD $*" >> {calls}\n{synthesized}\nexit $(cat {tmp_path}/status)\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "status").write_text("0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(deploying, "cdk_command", lambda: [str(program)])
    monkeypatch.setattr(deploying, "build_assets", lambda experiment: None)
    # What else an account must have is asked of the cloud on one machine, in tests/cloud: this stand-in knows no quotas.
    monkeypatch.setattr(preflight, "examine", lambda session, experiment, account: [preflight.check_bootstrap(session)])
    monkeypatch.setattr(
        organisation, "choose_zone", lambda session, experiment: organisation.Choice("us-east-1b", (), {}, "")
    )
    return calls


def bootstrapped() -> None:
    """Make the account look bootstrapped for the CDK."""
    boto3.client("ssm").put_parameter(Name="/cdk-bootstrap/hnb659fds/version", Value="30", Type="String")


@pytest.mark.slow
@mock_aws
def test_deploy_calls_the_cdk_for_this_experiment_alone(cdk: Path) -> None:
    """`deploy` synthesizes only this experiment's stack, into a folder of its own that is deleted, and deploys what was previewed."""
    bootstrapped()
    assert status("deploy", str(CONFIG), "--yes") == 0
    synthesized, deployed = cdk.read_text().splitlines()
    synthesized, _, folder = synthesized.partition(" --output ")
    context = f"--context config={CONFIG} --context current={Path.cwd()}"  # own code is looked for beside it, and here
    assert synthesized == f"{ROOT} synth --quiet crossover-spirt {context}"
    assert deployed == (
        f"{ROOT} deploy --method direct --require-approval never "
        f"--parameters crossover-network:Zone=us-east-1b crossover-spirt --app {folder}"
    )  # what was previewed and no other
    assert Path(folder) != ROOT / "cdk.out" and not Path(folder).exists()  # its own: others may deploy at the same time


@pytest.mark.slow
@mock_aws
def test_what_stands_alone_is_deployed_in_minutes_and_without_a_zone(
    cdk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An experiment without shared stacks is deployed without an availability zone, and announced to take about 2 minutes."""
    bootstrapped()
    assert status("deploy", str(ALONE), "--yes") == 0
    assert "deploying crossover-all-reduce-s3: about 2 minutes; existing stacks" in capsys.readouterr().out
    called = cdk.read_text()
    assert "crossover-all-reduce-s3 --context" in called and "--parameters" not in called and "network" not in called


@pytest.mark.slow
@mock_aws
def test_destroying_what_is_not_there_calls_nothing_and_succeeds(cdk: Path) -> None:
    """`destroy` of stacks that do not exist ends with status 0 and does not call the CDK."""
    assert status("destroy", str(CONFIG), "--yes", "--verify", "--shared") == 0
    assert not cdk.exists()


@pytest.mark.slow
@mock_aws
def test_a_failure_of_the_cdk_is_ours_to_report(cdk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If the CDK fails, `deploy` ends with status 1 and names the CDK's status."""
    bootstrapped()
    (cdk.parent / "status").write_text("7")
    assert status("deploy", str(CONFIG), "--yes") == 1
    assert "cdk synth ended with status 7" in capsys.readouterr().err


@mock_aws
@pytest.mark.parametrize("command", ["deploy", "destroy"])
def test_without_a_terminal_nothing_is_changed_unasked(
    command: str, cdk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`deploy` and `destroy` without --yes end with status 2 if standard input is no terminal, and change nothing."""
    with open(os.devnull) as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        assert status(command, str(CONFIG)) == 2
    assert "add --yes" in capsys.readouterr().err
    assert not cdk.exists()


@pytest.mark.parametrize(("baseline", "expected"), [("none", ["c-e"]), ("gpu", ["c-e", "c-e-gpu"])])
def test_the_fleet_of_a_baseline_goes_with_its_experiment(
    baseline: Any, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Destroying an experiment deletes its own stack first, then those of its baselines."""
    deleted: list[str] = []
    monkeypatch.setattr(removal, "_delete_stacks", lambda session, project, name: deleted.append(f"{project}-{name}"))
    experiment = Experiment(project="c", name="e", architecture="spirt", baseline=baseline, gpu=Gpu(instances=4))
    removal.delete_experiment(None, experiment)
    assert deleted == expected

"""A fleet instance's boot script, run whole on this machine: AWS, apt, pip and systemd are stand-ins, the files it writes are real."""

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.infrastructure.conftest import ROOT

SCRIPT = ROOT / "cdk" / "boot" / "program.sh"
STUBS = {
    "apt-get": 'echo "apt-get $*" >>"$HOST/calls"; [ -z "$FAIL_APT" ]',
    "dpkg": "echo amd64",
    "systemctl": 'echo "systemctl $*" >>"$HOST/calls"; [ "$1" != is-active ] || [ -n "$AGENT" ]',
    "systemd-run": 'echo "systemd-run $*" >>"$HOST/calls"',
    "snap": "false",
    "useradd": "true",
    "unzip": 'python3 -c "import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])" "$2" "$4"',
    "python3": 'if [ "$2" = venv ]; then mkdir -p "$4/bin"; ln -s "$HOST/bin/pip" "$4/bin/pip"; else exec "$PYTHON" "$@"; fi',
    "pip": 'echo "pip $*" >>"$HOST/calls"; [ -z "$FAIL_PIP" ]',
    "aws": 'echo "aws $*" >>"$HOST/calls"\n[ "$1 $2" != "s3 cp" ] || cp "$HOST/program.zip" "$5"',
    "curl": 'case "$*" in *api/token*) echo token ;; *instance-id*) echo i-0123 ;; esac',
    "sleep": "true",
}
LEAVING = (
    "aws autoscaling terminate-instance-in-auto-scaling-group --region us-east-1 --instance-id i-0123 "
    "--should-decrement-desired-capacity"
)


class Instance:
    """A folder that stands for an instance's root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("bin", "etc/systemd/system", "opt", "usr/local/bin"):
            (root / folder).mkdir(parents=True)
        for name, body in STUBS.items():
            path = root / "bin" / name
            path.write_text(f"#!/bin/bash\n{body}\n")
            path.chmod(0o755)
        with zipfile.ZipFile(root / "program.zip", "w") as archive:
            archive.writestr("peers/program.py", "def main(): ...\n")

    def path(self, text: str) -> str:
        for folder in ("/etc/systemd", "/etc/crossover.env", "/opt/crossover", "/usr/local/bin"):
            text = text.replace(folder, f"{self.root}{folder}")
        return text

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        stand_ins = {
            "HOST": str(self.root),
            "PYTHON": shutil.which("python3") or "",
            "FAIL_PIP": "",
            "FAIL_APT": "",
            "AGENT": "1",
        }
        return subprocess.run(
            ["timeout", "60", *command],
            env={**os.environ, "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", **stand_ins, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def boot(self, **environment: str) -> subprocess.CompletedProcess[str]:
        facts = {
            "REGION": "us-east-1",
            "CODE": "s3://assets/program.zip",
            "REQUIREMENTS": "torch==2.10.0+cpu --extra-index-url https://example.org redis==8.1.0",
            "PROGRAM": "peers.program",
            "FLEET": "crossover-x-fleet",
            "MAXIMUM_S": "21600",
            "ENVIRONMENT": "CROSSOVER_BUCKET=bucket\nCROSSOVER_BROKER_SECRET=arn:x",
        }
        header = "".join(f"{key}='{value}'\n" for key, value in facts.items())
        return self.run("bash", "-c", header + self.path(SCRIPT.read_text()), **environment)

    def calls(self) -> list[str]:
        return (self.root / "calls").read_text().splitlines()

    def file(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance(tmp_path)


def test_an_instance_comes_up_with_its_program_as_a_service(instance: Instance) -> None:
    done = instance.boot()
    assert done.returncode == 0, done.stderr
    assert instance.file("/etc/crossover.env") == "CROSSOVER_BUCKET=bucket\nCROSSOVER_BROKER_SECRET=arn:x\n"
    assert (instance.root / "opt/crossover/code/peers/program.py").exists()
    unit = instance.file("/etc/systemd/system/crossover.service")
    assert "python -c 'from peers.program import main; main()'" in unit
    for line in (
        "User=crossover",
        "Restart=on-failure",
        "OnSuccess=leave-fleet.service",
        "OnFailure=leave-fleet.service",
    ):
        assert line in unit.splitlines()
    calls = instance.calls()
    assert calls[-1] == "systemctl start crossover"
    assert (
        "pip install --quiet --no-cache-dir torch==2.10.0+cpu --extra-index-url https://example.org redis==8.1.0"
        in calls
    )
    assert any(call.startswith("systemd-run --on-active=21600s") for call in calls)
    assert not any("autoscaling" in call for call in calls)


def test_what_it_leaves_behind_takes_it_out_of_the_fleet_with_its_place(instance: Instance) -> None:
    """A mere shutdown would start a replacement (aws.md 4)."""
    instance.boot()
    script = str(instance.root / "usr/local/bin/leave-fleet")
    assert script in instance.file("/etc/systemd/system/leave-fleet.service")
    assert instance.run("bash", script).returncode == 0
    assert instance.calls()[-1] == LEAVING


@pytest.mark.parametrize("fault", ["FAIL_PIP", "FAIL_APT"])
def test_an_instance_whose_boot_failed_leaves_the_fleet(instance: Instance, fault: str) -> None:
    assert instance.boot(**{fault: "1"}).returncode != 0
    assert instance.calls()[-1] == LEAVING
    assert "systemctl start crossover" not in instance.calls()


def test_the_command_line_of_aws_is_installed_only_where_it_is_missing(instance: Instance, tmp_path: Path) -> None:
    instance.boot()
    assert not any("awscli" in call for call in instance.calls())
    bare = Instance(tmp_path / "bare")
    (bare.root / "bin" / "aws").rename(bare.root / "bin" / "later")
    bare.boot(PATH=f"{bare.root / 'bin'}:/usr/bin:/bin")
    assert any("install -y --no-install-recommends awscli " in call for call in bare.calls())


def test_the_session_managers_agent_is_there_before_the_program(instance: Instance) -> None:
    """SSM on every host, no SSH (aws.md 11)."""
    instance.boot(AGENT="")
    calls = instance.calls()
    assert calls.index("systemctl enable --now amazon-ssm-agent") < calls.index("systemctl start crossover")
    assert "ssh" not in SCRIPT.read_text().replace("ssm", "")

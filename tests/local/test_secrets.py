"""No secret leaves the places that hold it: planted ones, looked for in all that a run shows, writes, logs or fails with."""

import json
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover import runtime
from crossover.cli.main import main
from crossover.errors import CrossoverError, RunFailed
from crossover.experiment import Data, Experiment
from crossover.local.cloud import LocalCloud
from crossover.local.moto_patches import secrets as seam
from crossover.running.deployed import run_deployed
from crossover.stores.connecting import open_message_bus, open_object_store, open_tensor_store
from crossover.stores.protocols import Traffic
from stacks.synthesis import synthesize
from tests.architectures.harness import small
from tests.local.secrets_search import find_secrets, read_environments, read_everything, read_files

ROOT = Path(__file__).parents[2]
AWS = {"AWS_SECRET_ACCESS_KEY": "planted-aws-secret-0123456789", "AWS_SESSION_TOKEN": "planted-aws-token-0123456789"}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of secrets: this user's AWS credentials, which are put into the environment, and every password that Secrets Manager
    generates from now on.
    """
    secrets, password = list(AWS.values()), seam._generate_password

    def remembered(rule: Any) -> str:
        """Generate a password, and note it among the secrets."""
        secrets.append(password(rule))
        return secrets[-1]

    monkeypatch.setattr(seam, "_generate_password", remembered)
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    return secrets


@pytest.mark.slow
@pytest.mark.parametrize("config", ["spirt", "p2p-serverless"])
def test_a_run_shows_no_secret_anywhere(
    config: str,
    planted: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Run and compare an experiment, and search its processes, the cloud, all files and the output for the secrets, during the run and at
    its end: none is found.
    """
    places: dict[str, list[str]] = {}
    follow, destroy = run_deployed, LocalCloud.destroy

    def watched(experiment: Experiment, out: Path, on_progress: Callable[[Any], None], **more: Any) -> Any:
        """Follow a run and, at each report of progress, note the secrets that a process's environment shows."""

        def look(progress: Any) -> None:
            """Note the secrets that processes show now, then pass the progress on."""
            places.setdefault("while it ran", []).extend(find_secrets(planted, read_environments()))
            on_progress(progress)

        return follow(experiment, out, look, **more)

    def looked_through(cloud: LocalCloud, name: str | None = None) -> None:
        """Search the cloud for the secrets before everything in it is destroyed."""
        if name is None:
            places["at its end"] = find_secrets(planted, read_everything(cloud))
        destroy(cloud, name)

    monkeypatch.setattr("crossover.running.deployed.run_deployed", watched)
    monkeypatch.setattr(LocalCloud, "destroy", looked_through)
    fields = ("workers=2", "training.epochs=2", "training.batch_size=24", "data.limit=48", "training.schedule=constant")
    overrides = [word for field in fields for word in ("--set", field)]
    with pytest.raises(SystemExit) as end:
        main(["run", str(ROOT / "config" / f"{config}.yaml"), "--out", str(tmp_path / "run"), *overrides])
    shown = capfd.readouterr()
    assert end.value.code == 0, shown.err
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / "run"), str(tmp_path / "run"), "--out", str(tmp_path / "comparison")])
    told = capfd.readouterr()
    assert len(planted) - len(AWS) >= (2 if config == "spirt" else 1), "nothing was planted"
    assert places == {"while it ran": [], "at its end": []}
    assert find_secrets(planted, read_files(tmp_path)) == []
    assert find_secrets(planted, [("output", text.encode()) for text in (*shown, *told)]) == []


# --- failures -----------------------------------------------------------------------------------------------------------


WRONG = "planted-wrong-password-0123456789"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "value"),
    [
        ("all_reduce", WRONG),  # Redis refuses it
        pytest.param(  # the broker refuses it
            "p2p_serverless", json.dumps({"username": "crossover", "password": WRONG}), marks=pytest.mark.deep
        ),
        pytest.param("p2p_serverless", WRONG, marks=pytest.mark.deep),  # not even what a login looks like
    ],
    ids=["redis", "broker", "malformed"],
)
def test_a_run_that_fails_for_a_secret_does_not_tell_it(
    cloud: LocalCloud, architecture: str, value: str, planted: list[str], tmp_path: Path
) -> None:
    """Replace a deployment's secrets by wrong ones: the run fails, and neither its error nor the cloud shows a wrong or a right one."""
    experiment = replace(
        small(architecture, workers=1, epochs=1),
        name=f"refused-{architecture.replace('_', '-')}",
        data=Data(dataset="digits", limit=20, validation=0.1),
    )
    cloud.deploy(synthesize(experiment, tmp_path / "assembly"))
    manager = cloud.session().client("secretsmanager")
    own = [each["ARN"] for each in manager.list_secrets()["SecretList"]]
    before = {arn: manager.get_secret_value(SecretId=arn)["SecretString"] for arn in own}
    try:
        for arn in own:
            manager.put_secret_value(SecretId=arn, SecretString=value)
        with pytest.raises(RunFailed) as failure:
            run_deployed(experiment, tmp_path / "out", lambda progress: None, session=cloud.session(), where="local")
        texts = ["".join(traceback.format_exception(failure.value)), repr(failure.value)]
        places = [("failure", text.encode()) for text in texts]
        assert find_secrets([*planted, WRONG], [*places, *read_everything(cloud, tmp_path)]) == []
    finally:
        for arn, secret in before.items():
            manager.put_secret_value(SecretId=arn, SecretString=secret)
        cloud.destroy(f"crossover-{experiment.name}")


SECRET = "planted/pass@word#1?x"


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize(
    "url",
    [
        f"rediss://:{SECRET}@127.0.0.1:6379",
        f"rediss://user:{SECRET}@127.0.0.1",
        f"rediss://127.0.0.1:{SECRET}",
        f"http://user:{SECRET}@127.0.0.1",
        f"amqps://user:{SECRET}@127.0.0.1:5671",
        f"amqps://127.0.0.1:{SECRET}",
        f"s3://user:{SECRET}@bucket",
        "redis://127.0.0.1:1",  # nobody listens
        "amqp://127.0.0.1:1",
    ],
)
@pytest.mark.parametrize("kind", ["objects", "tensors", "bus"])
def test_an_address_that_cannot_be_used_is_named_without_its_secret(
    url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use a store or bus at a wrong or unreachable address: the error does not contain the secret in the address, or the password. `kind`:
    objects, tensors or bus.
    """
    monkeypatch.setattr(runtime, "BROKER", replace(runtime.BROKER, within_s=1.0))  # not a minute

    def connect() -> None:
        """Use a store or a bus at the address once; `kind` says which."""
        traffic = Traffic()
        match kind:
            case "objects":
                open_object_store(url, traffic)
            case "tensors":
                store = open_tensor_store(url, password=SECRET, time_to_live_s=1.0, traffic=traffic)
                store.exists("key")
            case "bus":
                open_message_bus(url, username="user", password=SECRET, traffic=traffic).peek("mailbox")

    with pytest.raises(CrossoverError) as failure:
        connect()
    told = "".join(traceback.format_exception(failure.value)) + repr(failure.value)
    source = "".join(line for line in told.splitlines(keepends=True) if "SECRET" not in line)  # this file's own lines
    assert not any(part in source for part in (SECRET, "planted", "word#1"))

"""The account of every test has neighbours, and none of their things may change, whatever the test does."""

import functools
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from crossover.cli.main import main
from crossover.local.cloud import LocalCloud
from crossover.running import deploying
from tests.cloud import listings, made, neighbours
from tests.moto_patches import AccountCloud

REGIONS = (neighbours.HERE, neighbours.FAR)


# Of whole deployments `make test` sees one come, train and go.
FIRST = "test_a_new_account_deploys_it_trains_and_it_deletes_itself"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder as slow, except one."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.name != FIRST:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def cloud(account_cloud: AccountCloud) -> AccountCloud:
    """Return the double of an AWS account, for tests of this folder."""
    return account_cloud


class Settled:
    """A cloud that contains other people's resources, with a snapshot of them for comparison."""

    def __init__(self, cloud: LocalCloud) -> None:
        """Create other people's resources (at least 64) in the cloud and remember their details."""
        self.session = made.one_session(cloud)
        self._client = lambda service, region: self.session.client(service, region_name=region)
        assert len(neighbours.settle(self._client)) >= 64
        self._before = listings.details(self._client, REGIONS)

    def look(self) -> None:
        """Check that no resource of others has changed since the snapshot."""
        after = listings.details(self._client, REGIONS)
        changed = {name: (was, after.get(name, "gone")) for name, was in self._before.items() if after.get(name) != was}
        assert not changed, changed


_settled: "weakref.WeakKeyDictionary[LocalCloud, Settled]" = weakref.WeakKeyDictionary()

Untouched = Callable[[], None]


@pytest.fixture(autouse=True)
def untouched(request: pytest.FixtureRequest) -> Iterator[Untouched]:
    """Yield a function that checks that no resource of others has changed. It is called at every test's end, and by tests that do several
    things after each of them.
    """
    if "cloud" not in request.fixturenames:
        yield lambda: None
        return
    cloud: LocalCloud = request.getfixturevalue("cloud")
    if cloud not in _settled:
        _settled[cloud] = Settled(cloud)
    yield _settled[cloud].look
    _settled[cloud].look()


@pytest.fixture
def session(untouched: Untouched, cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a session of an account that has none of the project's resources, before and after the test. Commands in this process use it,
    and never call the CDK.
    """
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)
    session = _settled[cloud].session

    class One(boto3.Session):
        """boto3's Session, except that a call of it returns the fixture's session."""

        def __new__(cls, *arguments: Any, **named: Any) -> Any:
            """Return the fixture's session, but make a new object of a subclass."""
            return session if cls is One else super().__new__(cls)

    monkeypatch.setattr(boto3, "Session", One)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", session)  # that of boto3.client, kept beyond this test otherwise
    monkeypatch.setattr(deploying, "cdk_command", lambda: pytest.fail("the CDK was called"))
    yield session
    made.clear(cloud)


def written(folder: Path, architecture: str, **fields: Any) -> Path:
    """Write the YAML of an experiment that trains digits for an epoch into `folder`, and return its path."""
    plain = {
        "name": f"tiny-{architecture.replace('_', '-')}",
        "architecture": architecture,
        "workers": 2,
        "training": {"model": "small_cnn", "epochs": 1, "batch_size": 20},
        "data": {"dataset": "digits", "limit": 60, "validation": 0.05},
        **({"gpu": {"instances": 2, "gpus_per_instance": 1}} if architecture == "gpu" else {}),
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(plain | fields))
    return path


Command = Callable[..., str]


@pytest.fixture
def crossover(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs a command, such as `crossover("destroy", "--yes", project=..., status=1)`, checks its exit status, and
    returns what it printed. The experiment is AllReduce through the bucket, with neither hosts nor a broker to start.
    """

    def call(*command: str, status: int = 0, **fields: Any) -> str:
        """Run a `crossover` command on a small experiment, changed by `fields`, and return what it prints. Fails unless it ends with
        `status`.
        """
        config = written(
            tmp_path, **{"architecture": "all_reduce", "name": "tiny", "storage": {"channel": "s3"}} | fields
        )
        out = ["--out", str(tmp_path / "out")] if "run" in command else []
        ended: Any = 0
        try:
            main([*command, str(config), *out])
        except SystemExit as end:
            ended = end.code or 0
        said = "".join(capsys.readouterr())
        assert ended == status, said
        return said

    return call


@pytest.fixture
def refused(crossover: Command) -> Command:
    """Return a function that runs a command which must end with status 2, and returns what it printed."""
    return functools.partial(crossover, status=2)

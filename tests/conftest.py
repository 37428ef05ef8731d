"""What every test may rely on: no real AWS, no personal settings, data sets where they lie."""

import gc
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

from tests import sampling

if TYPE_CHECKING:
    from crossover.local.cloud import LocalCloud
    from tests.moto_patches import AccountCloud

ROOT = Path(__file__).parents[1]
collect_ignore = ["aws/test_account.py"]  # it costs dollars: `make test-aws` alone collects it, without this file

# Set before any test module is imported: a client made by mistake must never find real credentials or a real display.
os.environ.update(
    AWS_ACCESS_KEY_ID="testing",
    AWS_SECRET_ACCESS_KEY="testing",
    AWS_DEFAULT_REGION="us-east-1",
    AWS_EC2_METADATA_DISABLED="true",
    AWS_CONFIG_FILE=os.devnull,
    AWS_SHARED_CREDENTIALS_FILE=os.devnull,
    MPLBACKEND="Agg",
)
# COLUMNS: pytest-xdist's workers have 80, and output that is captured is a pipe's.
for _name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL", "COLUMNS"):
    os.environ.pop(_name, None)

# A shell's background jobs ignore Ctrl-C, what runs under nohup a terminal that is gone; and so would every program that tests start in
# order to interrupt it.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# The same examples on every machine, whatever else this process has imported (Hypothesis would take constants from there), and
# without a deadline: how fast they run is the benchmarks' matter.
providers._get_local_constants = lambda: providers._local_constants
hypothesis.settings.register_profile("crossover", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("crossover")


def pytest_report_header() -> str:
    """Return a line that says how to run the same sample of the sweeps again, another one, or everything."""
    return (
        "sweeps: whole"
        if sampling.WHOLE
        else f"sweeps: a sample, CROSSOVER_SAMPLE={sampling.SEED} (`make test-every-call`: whole)"
    )


@pytest.hookimpl(trylast=True)  # of what `-k` has left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests by their marks, unless CROSSOVER_EVERY_CALL is set: all marked `deep`, and of those marked `sampled` as many as can
    go while each value of each parameter still occurs. A test that is named on the command line runs whole.
    """
    if sampling.WHOLE or any("::" in argument for argument in config.args):
        return
    left_out = {item for item in items if item.get_closest_marker("deep")}
    matrices = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and item not in left_out:
            matrices[item.nodeid.partition("[")[0]].append(item)
    for matrix in matrices.values():
        sample = sampling.drawn([_parameters(item) for item in matrix])
        left_out.update(item for index, item in enumerate(matrix) if index not in sample)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Freeze the garbage collector's objects: what has been imported and collected stays to the end, and looking through it again took a
    quarter of the processor time.
    """
    gc.collect()
    gc.freeze()


def _parameters(item: pytest.Item) -> list[tuple[str, str]]:
    """Return each parameter of a test and its value. Parameters that one `parametrize` gives together count as one."""
    given: dict[str, Any] = item.callspec.params  # type: ignore[attr-defined]
    together = [mark.args[0] for mark in item.iter_markers("parametrize")]
    names = [each.replace(" ", "").split(",") if isinstance(each, str) else each for each in together]
    return [(str(group), repr([given[name] for name in group])) for group in names]


def datasets_folder() -> Path:
    """Return the folder of the data sets: CROSSOVER_DATA, else shared/datasets beside the checkout."""
    return Path(os.environ.get("CROSSOVER_DATA") or ROOT.parent / "shared" / "datasets")


@pytest.fixture(scope="module", autouse=True)
def undrawn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Replace the plots of run pages by none outside tests/unit and tests/browser, because drawing takes nine tenths of
    a small run's time.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not any(request.path.is_relative_to(ROOT / "tests" / each) for each in ("unit", "browser")):
            for drawn in ("_curves_of_run", "_run_bars"):
                patch.setattr(f"crossover.reports.report_pages.{drawn}", lambda result: [])
        yield


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator["LocalCloud"]:
    """Yield the cloud on this machine, without stacks; one per module, because a process can have only one."""
    from crossover.local.cloud import LocalCloud

    with LocalCloud(tmp_path_factory.mktemp("cloud"), cores=2) as running:
        yield running


@pytest.fixture(scope="module")
def account_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator["AccountCloud"]:
    """Yield the cloud on this machine as a double of an AWS account. A module asks for this one or for `cloud`, not for both."""
    from tests.moto_patches import AccountCloud

    with AccountCloud(tmp_path_factory.mktemp("cloud"), cores=2) as running:
        yield running


@pytest.fixture(scope="session")
def datasets() -> Path:
    """Return the folder with mnist/ and cifar-10/. Skips the test if it is absent."""
    folder = datasets_folder()
    if not folder.is_dir():
        pytest.skip(f"{folder}: no data sets here; CROSSOVER_DATA names their folder")
    return folder

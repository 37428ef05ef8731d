"""What every test may rely on: no real AWS, no personal settings, data sets where they lie."""

import os
import signal
from pathlib import Path

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

ROOT = Path(__file__).parents[1]

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
for _name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL"):
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


def datasets_folder() -> Path:
    """Where the data sets lie: CROSSOVER_DATA, else shared/datasets beside the checkout."""
    return Path(os.environ.get("CROSSOVER_DATA") or ROOT.parent / "shared" / "datasets")


@pytest.fixture(scope="session")
def datasets() -> Path:
    """The folder with mnist/ and cifar-10/; skips where it is absent."""
    folder = datasets_folder()
    if not folder.is_dir():
        pytest.skip(f"{folder}: no data sets here; CROSSOVER_DATA names their folder")
    return folder

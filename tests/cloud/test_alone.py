"""The smallest deployment, config/all-reduce-s3.yaml, on an account as new as can be: one stack, one run, and an end that needs nobody."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from crossover import validation
from crossover.experiment import Experiment
from crossover.learning.datasets import load as load_dataset
from crossover.learning.reference import train_reference
from crossover.reports.folder import RunFolder
from crossover.running import account, deployed, preflight
from crossover.workflow.architecture import load
from stacks.synthesis import synthesize
from tests.cloud import made
from tests.cloud.conftest import Settled
from tests.cloud.listings import snapshot
from tests.moto_patches import AccountCloud

CONFIG = Path(__file__).parents[2] / "config" / "all-reduce-s3.yaml"
STACK = "crossover-all-reduce-s3"
OF_INSTANCES = {"availability zone", "vCPU quota", "GPU quota"}


def test_a_new_account_deploys_it_trains_and_it_deletes_itself(tmp_path: Path) -> None:
    """Check that an account with ten functions at once and no instances suffices for the smallest experiment, which deletes itself."""
    experiment = validation.load(CONFIG, ["training.epochs=2"])
    with AccountCloud(tmp_path / "cloud", cores=2) as cloud:
        session = cloud.session()
        cloud.account.concurrency = 10
        cloud.account.quotas.update(dict.fromkeys(cloud.account.quotas, 0.0))
        asked = {found.name: found.holds for found in preflight.examine(session, experiment)}
        assert all(asked.values()) and not asked.keys() & OF_INSTANCES, asked
        beside = Settled(cloud)
        before = snapshot(session)
        cloud.deploy(synthesize(experiment, tmp_path / "assembly"))
        assert made.stacks(cloud) == {STACK}
        out = tmp_path / "out"
        found = deployed.run_deployed(experiment, out, lambda progress: None, session=session, where="local")
        as_the_reference(found, experiment)
        expire(session)
        assert snapshot(session) == before
        beside.look()


def as_the_reference(found: RunFolder, experiment: Experiment) -> None:
    """Assert that the run's model and validation metrics equal the reference's bit for bit, and that it is billed for Lambda, Step
    Functions, S3 and CloudWatch only.
    """
    resolved = load(experiment.architecture).resolve(experiment)
    reference, _, history = train_reference(resolved, load_dataset(experiment))
    assert found.result["final"]["parameters_sha256"] == hashlib.sha256(reference).hexdigest()
    assert [each["val_metric"] for each in found.result["epochs"]] == [epoch.val_metric for epoch in history]
    items = {line["item"] for line in found.result["cost"]["lines"]}
    assert {item.split(",")[0].partition(" ")[0] for item in items} == {"Lambda", "Step", "S3", "CloudWatch"}
    moved = found.result["traffic"]
    assert moved["object_store"]["requests"] > 0 == moved["tensor_store"]["requests"] == moved["bus"]["requests"]
    billed = sum(line["quantity"] for line in found.result["cost"]["lines"] if line["item"].startswith("S3 requests"))
    assert billed == moved["object_store"]["requests"]


def expire(session: Any) -> None:
    """Start the stack's expiry machine as its schedule does at the time of expiry, and wait until the stack is gone."""
    states, stack = session.client("stepfunctions"), account.find_stack(session, STACK)
    assert stack is not None and stack.expires_at is not None
    machines = {each["name"]: each["stateMachineArn"] for each in states.list_state_machines()["stateMachines"]}
    moment = stack.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    states.start_execution(stateMachineArn=machines[f"{STACK}-expiry"], input=json.dumps({"now": moment}))
    while account.find_stack(session, STACK) is not None:
        time.sleep(0.05)

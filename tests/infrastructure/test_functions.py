"""One function per step: layers, memory, network and environment follow from what the step declares."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App, Stack

from cdk.constructs import Buckets, LambdaFunctions, Layers, SharedNetwork
from crossover import workflow
from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.workflow.architecture import Architecture, steps
from functions.spirt import ARCHITECTURE
from tests.infrastructure.assemblies import Assembly, Json, actions_of, flat, listed, resources, statements
from tests.infrastructure.cases import PLAIN, Case
from tests.infrastructure.conftest import Assembled, Synthesize

STEPS = steps(ARCHITECTURE)


def layers_of(assembly: Assembly, function: dict[str, Any]) -> list[str]:
    """Return the short names of a function's layers, in order: the last part of each layer's name."""
    made = resources(assembly.experiment, "AWS::Lambda::LayerVersion")
    return [made[layer["Ref"]]["LayerName"].rpartition("-")[2] for layer in function["Layers"]]


@pytest.mark.parametrize(
    "name", [name if name == "spirt" else pytest.param(name, marks=pytest.mark.slow) for name in PLAIN]
)
def test_functions_are_what_their_steps_declare(name: str, assembled: Assembled) -> None:
    """Check that each function's name, handler, size, layers, network and tags are those that its step declares.

    Each has the layer `dataplane`, those that compute also `torch` (aws.md 13); those that reach into the VPC have a place in it.
    """
    made, case = assembled(name), Case.of(name)
    experiment, found = case.experiment, steps(case.architecture)
    assert sorted(made.steps()) == sorted(step.name for step in found)
    for step in found:
        function, torch = made.function(step.name), step.needs_torch(experiment)
        assert function["FunctionName"] == f"{made.name}-{step.name.replace('_', '-')}"
        assert function["Handler"] == f"{step.module}.{step.name}"
        assert (function["Runtime"], function["Architectures"]) == ("python3.13", ["arm64"])
        assert function["Timeout"] == experiment.functions.timeout_s
        assert function["MemorySize"] == experiment.functions.memory_of(step.name, torch=torch)
        assert layers_of(made, function) == (["dataplane", "torch"] if torch else ["dataplane"])
        assert ("VpcConfig" in function) == bool(step.uses & {"tensors", "bus"} and len(made.templates) > 1)
        tags = {tag["Key"]: tag["Value"] for tag in function["Tags"]}
        assert tags["crossover:step"] == step.name
        assert (tags["crossover:torch"], tags["crossover:waits"]) == (str(torch).lower(), str(step.waits).lower())


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_the_environment_holds_facts_and_no_secret(assembly: Assembly, step: workflow.Step) -> None:
    """Check the names of a function's environment variables and the addresses in them: exactly what its step uses."""
    variables = {k: flat(v) for k, v in assembly.function(step.name)["Environment"]["Variables"].items()}
    expected = {"PROJECT", "EXPERIMENT", "ARCHITECTURE", "BUCKET"}
    if "tensors" in step.uses:
        expected |= {"REDIS", "REDIS_SECRET", "REDIS_CERTIFICATES"}
        urls = variables["CROSSOVER_REDIS"].split()
        assert len(urls) == 4
        assert all(url.startswith("rediss://<RedisHost") and url.endswith(".PrivateIp>:6379") for url in urls)
        assert [url.index("Host") and url[len("rediss://<RedisHost")] for url in urls] == list("0123")  # by rank
        assert variables["CROSSOVER_REDIS_CERTIFICATES"] == "hosts/redis/"
    if "bus" in step.uses:
        expected |= {"BROKER", "BROKER_SECRET"}
    assert set(variables) == {f"CROSSOVER_{name}" for name in expected}
    assert not any("resolve:" in value for value in variables.values())


@pytest.mark.slow
def test_memory_by_name(synth: Synthesize, spirt: Experiment) -> None:
    """Check the memory sizes and timeouts of functions: those set by name, the default for computing steps, 512 MB for others."""
    memory = {"default": 2_000, "compute_gradients": 3_008}
    made = synth(functions=replace(spirt.functions, memory_mb=memory, timeout_s=120))
    sizes = {step: made.function(step)["MemorySize"] for step in made.steps()}
    assert sizes["compute_gradients"] == 3_008
    assert sizes["detect_convergence"] == 2_000
    assert sizes["notify_peers"] == 512
    assert {made.function(step)["Timeout"] for step in made.steps()} == {120}


@pytest.mark.slow
def test_fetching_takes_torch_to_what_the_database_did(fetching: Assembly) -> None:
    """Check that with `database.compute: fetch` the steps which the database would compute get the torch layer."""
    for step in ("average_in_database", "aggregate_peers", "update_model"):
        assert layers_of(fetching, fetching.function(step)) == ["dataplane", "torch"]
    assert layers_of(fetching, fetching.function("notify_peers")) == ["dataplane"]


def test_a_bucket_per_worker(fetching: Assembly, spirt: Experiment, synth: Synthesize) -> None:
    """Check that each worker gets a data bucket that functions may read, and that more buckets than the environment can name are
    refused.
    """
    buckets = resources(fetching.experiment, "AWS::S3::Bucket")
    assert len(buckets) == 5
    function = fetching.function("compute_gradients")
    names = flat(function["Environment"]["Variables"]["CROSSOVER_DATA_BUCKETS"]).split()
    assert [name[1:-1] for name in names] == [
        next(b for b in buckets if f"Data{rank}" in b) for rank in range(spirt.workers)
    ]
    readable = actions_of(fetching.experiment, function["Role"])["s3:GetObject"]
    assert {f"<{name[1:-1]}.Arn>/data/*" for name in names} <= readable
    with pytest.raises(ConfigError, match=r"storage.bucket_per_worker: 64 bucket names do not fit"):
        synth(workers=64, storage=replace(spirt.storage, bucket_per_worker=True))


def test_platform_reports_are_logged_as_json_in_groups_that_go_with_the_stack(assembly: Assembly) -> None:
    """Check that each function has a log group of the stack, which is deleted with it, and that steps log in JSON.

    Billed time, INIT and peak memory come from platform.report (aws.md 18); groups that Lambda makes itself would stay (17).
    """
    groups = {name: r for name, r in assembly.experiment["Resources"].items() if r["Type"] == "AWS::Logs::LogGroup"}
    functions = resources(assembly.experiment, "AWS::Lambda::Function")
    assert len(groups) == len(functions)
    for function in functions.values():
        group = groups[function["LoggingConfig"]["LogGroup"]["Ref"]]
        assert group["DeletionPolicy"] == "Delete"
        assert group["Properties"]["RetentionInDays"] <= 14
        assert group["Properties"]["LogGroupName"] == f"/aws/lambda/{function['FunctionName']}"
        if function["Handler"].startswith("functions."):
            assert function["LoggingConfig"]["LogFormat"] == "JSON"
            assert function["LoggingConfig"]["SystemLogLevel"] == "INFO"


@pytest.mark.slow
def test_nobody_may_bring_a_log_group_back(assembly: Assembly, large: Assembly) -> None:
    """Check that no role may create log groups."""
    for template in [*assembly.templates.values(), large.experiment]:
        for _, statement in statements(template):
            assert not {"logs:CreateLogGroup", "logs:*", "*"} & set(listed(statement["Action"]))
        for role in resources(template, "AWS::IAM::Role").values():
            assert "ManagedPolicyArns" not in role


def test_snap_start_is_off_unless_asked_for(assembly: Assembly) -> None:
    """Check that functions have no versions, aliases or SnapStart by default."""
    kinds = {resource["Type"] for resource in assembly.experiment["Resources"].values()}
    assert not kinds & {"AWS::Lambda::Version", "AWS::Lambda::Alias"}
    assert all("SnapStart" not in assembly.function(step) for step in assembly.steps())


def test_snap_start_publishes_a_version_and_invokes_its_alias(large: Assembly) -> None:
    """Check that with SnapStart each function has a version and an alias, which the state machines invoke."""
    template = large.experiment
    aliases = resources(template, "AWS::Lambda::Alias")
    assert len(aliases) == len(resources(template, "AWS::Lambda::Version")) == len(STEPS)
    assert all(large.function(step)["SnapStart"] == {"ApplyOn": "PublishedVersions"} for step in large.steps())
    invoked = {
        flat(value)[1:-1]
        for machine in resources(template, "AWS::StepFunctions::StateMachine").values()
        for key, value in machine["DefinitionSubstitutions"].items()
        if key.startswith("step_")
    }
    assert invoked == set(aliases)


# --- steps that SPIRT does not have -----------------------------------------------------------------------------------


def stack_of(*uses: workflow.Uses, spirt: Experiment, folder: Path) -> Json:
    """Return the template of a stack with one function, for a step that declares `uses`."""
    app = App(outdir=str(folder), builtin_cloud_formation_validation=False)
    stack = Stack(app, "crossover-spirt")
    step = replace(STEPS[0], uses=frozenset(uses))
    LambdaFunctions(
        stack,
        "Functions",
        architecture=Architecture("one", run=step, machines={"gradients": step}),
        settings=spirt.functions,
        computing=[step.name],
        identity={"ARCHITECTURE": "one"},
        layers=Layers(stack, "Layers", packaging="layer", folder=folder),
        network=SharedNetwork(stack, "crossover"),
        storage=Buckets(stack, "Storage", bucket_per_worker=False, workers=1),
    )
    found: Json = json.loads((Path(app.synth().directory) / "crossover-spirt.template.json").read_text())
    return found


def of_step(template: Json) -> Json:
    """Return the template's only Lambda function whose handler is one of the architectures' steps."""
    (found,) = (
        f for f in resources(template, "AWS::Lambda::Function").values() if f["Handler"].startswith("functions.")
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("uses", [("objects",), ("objects", "tensors")], ids=["objects", "tensors in the bucket"])
def test_what_needs_s3_alone_stays_out_of_the_vpc(
    uses: tuple[workflow.Uses, ...], spirt: Experiment, tmp_path: Path
) -> None:
    """Check that a function that needs S3 alone is outside the VPC, and has no permissions for networks or secrets.

    P2P's gradient functions and LambdaML over S3 are such: no network interface, no endpoint (aws.md 14).
    """
    template = stack_of(*uses, spirt=spirt, folder=tmp_path)
    function = of_step(template)
    assert "VpcConfig" not in function
    allowed = actions_of(template, function["Role"])
    assert not [action for action in allowed if action.startswith(("ec2:", "secretsmanager:"))]
    assert {name for name in function["Environment"]["Variables"] if "REDIS" in name or "BROKER" in name} == set()


def test_a_step_that_starts_machines(spirt: Experiment, tmp_path: Path) -> None:
    """Check the environment and permissions of a function whose step starts state machines."""
    template = stack_of("objects", "machines", spirt=spirt, folder=tmp_path)
    function, here = of_step(template), "arn:<AWS::Partition>:states:<AWS::Region>:<AWS::AccountId>"
    machine = f"{here}:stateMachine:crossover-spirt-gradients"
    assert flat(function["Environment"]["Variables"]["CROSSOVER_MACHINE_GRADIENTS"]) == machine
    allowed = actions_of(template, function["Role"])
    assert allowed["states:StartExecution"] == {machine}
    assert allowed["states:DescribeExecution"] == {f"{here}:execution:crossover-spirt-gradients:*"}


def test_there_is_no_way_to_step_functions_from_inside_the_vpc(spirt: Experiment, tmp_path: Path) -> None:
    """Check that a step which uses both the message bus and state machines is refused."""
    with pytest.raises(AssertionError, match=r"initialise: from inside the VPC there is no route to Step Functions"):
        stack_of("objects", "machines", "bus", spirt=spirt, folder=tmp_path)


def test_names_that_aws_would_refuse(synth: Synthesize) -> None:
    """Check that an experiment is refused if its name makes function names too long."""
    with pytest.raises(ConfigError, match=r"name: .* 64: shorten it by"):
        synth(name="x" * 50)

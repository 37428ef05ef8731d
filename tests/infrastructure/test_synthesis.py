"""The app as people and the CDK command line start it; whole templates: size, lint, snapshots."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App

from cdk import nag
from crossover import validation
from crossover.running import preflight
from crossover.validation import documents
from crossover.workflow.architecture import architectures
from stacks import synthesis
from stacks.synthesis import compose, feature_flags
from tests.infrastructure.assemblies import Assembly, masked
from tests.infrastructure.callers import look, needs
from tests.infrastructure.cases import CASES
from tests.infrastructure.conftest import NOW, ROOT, Synthesize

CONFIGS = sorted(
    path.stem
    for path in (ROOT / "config").glob("*.yaml")
    if str(documents.read(path).get("architecture")).replace("-", "_") in architectures()
)


def app(
    *arguments: str, out: Path | None = None, code: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `python app.py`, or `code` instead, without AWS credentials and with every proxy leading nowhere, and return the ended process.
    `out`: the assembly's folder.
    """
    nowhere = {f"{scheme}_PROXY": "http://127.0.0.1:9" for scheme in ("HTTP", "HTTPS", "ALL")}
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "CDK_"))}
    if out is not None:
        environment["CDK_OUTDIR"] = str(out)
    return subprocess.run(
        [sys.executable, *(["-c", code] if code else ["app.py"]), *arguments],
        cwd=ROOT,
        env=clean | nowhere | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def warnings(said: str) -> list[str]:
    """Return the lines with warnings, but for those which say that something was not built and which command builds it."""
    unbuilt = re.compile(r"WARNING .* was not built, and AWS will refuse the template: run `make \S+")
    return [line for line in said.splitlines() if "WARNING" in line and not unbuilt.match(line)]


@pytest.mark.slow
def test_the_app_with_validation_and_nag(tmp_path: Path) -> None:
    """Check that neither the CDK's template validator nor cdk-nag reports an error or a warning on the app's stacks."""
    done = app("-c", "config=config/spirt.yaml", out=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stderr
    assert warnings(done.stderr) == []
    assert {(tmp_path / f"crossover-{name}.template.json").exists() for name in ("network", "broker", "spirt")} == {
        True
    }


@pytest.mark.slow
def test_an_architecture_without_a_stack_file_gets_what_its_tree_asks_for(
    assembly: Assembly, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the derived stack of SPIRT has the same template as its written stack."""
    (tmp_path / "cdk.json").write_text((ROOT / "cdk.json").read_text())
    monkeypatch.setattr(synthesis, "ROOT", tmp_path)
    experiment = validation.load(ROOT / "config" / "spirt.yaml")
    synthesis.synthesize(experiment, tmp_path / "out", now=NOW, layers=tmp_path)
    assert Assembly(tmp_path / "out").templates == assembly.templates


@pytest.mark.slow
def test_validator_and_nag_report_what_is_wrong(tmp_path: Path) -> None:
    """Check that the app fails with cdk-nag's findings without its acknowledgements, and that an unused parameter is reported."""
    sabotage = """
import cdk.nag, cdk.parameters
cdk.nag.acknowledge = lambda construct, reasons: None
original = cdk.parameters.publish
def publish(scope, *rest):
    import aws_cdk
    aws_cdk.CfnParameter(scope, "Idle", default="x")
    original(scope, *rest)
cdk.parameters.publish = publish
import runpy
runpy.run_path("app.py", run_name="__main__")
"""
    done = app("-c", "config=config/spirt.yaml", out=tmp_path, code=sabotage)
    assert done.returncode != 0
    for rule in ("AwsSolutions-IAM5", "AwsSolutions-L1", "AwsSolutions-VPC7", "AwsSolutions-S1", "AwsSolutions-SMG4"):
        assert rule in done.stderr
    assert "'Idle' is not referenced anywhere in the template (CloudFormation Validate)" in done.stderr


@pytest.mark.slow
def test_through_the_command_lines_context_it_is_the_same(tmp_path: Path, assembly: Assembly) -> None:
    """Check that the app gives the same templates if the context is in the environment, where the CDK's command line passes it."""
    flags = json.loads((ROOT / "cdk.json").read_text())["context"]
    context = json.dumps(flags | {"config": "config/spirt.yaml"})
    done = app(out=tmp_path, CDK_CONTEXT_JSON=context, CDK_VALIDATION="false")
    assert done.returncode == 0, done.stderr
    made = Assembly(tmp_path)
    assert masked(made.network) == masked(assembly.network)
    assert masked(made.broker) == masked(assembly.broker)
    if not list((ROOT / "build").glob("layer-*.zip")):  # else its layers are real ones
        assert masked(made.experiment) == masked(assembly.experiment)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "variables", "place"),
    [
        (("-c", "account=111122223333", "-c", "region=eu-west-1"), {}, "111122223333/eu-west-1"),
        ((), {"CDK_DEFAULT_ACCOUNT": "444455556666", "CDK_DEFAULT_REGION": "us-east-2"}, "444455556666/us-east-2"),
        (("-c", "region=eu-west-1"), {"CDK_DEFAULT_REGION": "us-east-2"}, "unknown-account/eu-west-1"),
        ((), {}, "unknown-account/unknown-region"),
    ],
)
def test_stacks_are_for_the_account_and_region_that_are_named(
    arguments: tuple[str, ...], variables: dict[str, str], place: str, tmp_path: Path
) -> None:
    """Check which account and region stacks get from arguments and environment variables."""
    named = ("-c", "config=config/spirt.yaml", "-c", "set=owner='Ada L.' workers=2", *arguments)
    done = app(*named, out=tmp_path, CDK_VALIDATION="false", **variables)
    assert done.returncode == 0, done.stderr
    artifacts = json.loads((tmp_path / "manifest.json").read_text())["artifacts"]
    stacks = {name: each for name, each in artifacts.items() if each["type"] == "aws:cloudformation:stack"}
    assert {each["environment"] for each in stacks.values()} == {f"aws://{place}"} and len(stacks) == 3
    assert stacks["crossover-spirt"]["properties"]["tags"]["owner"] == "Ada L."


@pytest.mark.slow
def test_without_an_experiment_the_app_lists_what_there_is_and_nothing_that_stands(tmp_path: Path) -> None:
    """Check that the app without an experiment has a stack for each configuration, under names of no deployed stack.

    `cdk ls` shows them and `cdk bootstrap` needs them; whoever would deploy or synthesize one is told how.
    """
    done = app(out=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "no experiment is named: add -c config=config/NAME.yaml to the CDK's command\n"
    artifacts = json.loads((tmp_path / "manifest.json").read_text())["artifacts"]
    stacks = {name: each for name, each in artifacts.items() if each["type"] == "aws:cloudformation:stack"}
    assert set(stacks) == {f"{config}-without-config" for config in CONFIGS}  # `cdk destroy crossover-spirt` finds none
    for name in stacks:
        texts = [tmp_path / "manifest.json", *tmp_path.glob(f"{name}.metadata.json")]
        config = name.removesuffix("-without-config")
        assert any(f"no experiment is named: add -c config=config/{config}.yaml" in text.read_text() for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-c", "config=config/nowhere.yaml"), "config/nowhere.yaml: no such file"),
        (("-c", "config=config/spirt.yaml", "-c", "set=training.epochs=-3"), "training.epochs: -3 is not allowed"),
        (("-c", "config=config/spirt.yaml", "-c", "set=training.precision=bf16"), "training.precision"),
        (
            ("-c", "config=config/spirt.yaml", "-c", "set=functions.packaging=image functions.snap_start=true"),
            "functions.snap_start: AWS offers it for zip packages only",
        ),
        (
            ("-c", "config=config/spirt.yaml", "-c", "set=database.instance_type=t2.small"),
            "database.instance_type: 't2.small'",
        ),
        (("-c", "config=config/spirt.yaml", "-c", "region=cn-north-1"), "expected one of the partition aws"),
    ],
)
def test_the_users_faults_are_one_line_and_no_traceback(arguments: tuple[str, ...], said: str) -> None:
    """Check that app.py reports a user's mistake with exit status 2 and without a traceback."""
    done = app(*arguments, CDK_VALIDATION="false")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("config", [each for each in CONFIGS if (each,) not in CASES.values()])
def test_every_experiment_synthesizes(config: str, tmp_path: Path) -> None:
    """Synthesize each example, and check that cdk-nag finds nothing and that every function reaches what its step declares. For the
    examples in CASES test_reachability.py checks both.
    """
    experiment = validation.load(ROOT / "config" / f"{config}.yaml")
    app = App(outdir=str(tmp_path), context=feature_flags(), builtin_cloud_formation_validation=False)
    compose(app, experiment, now=NOW, layers=tmp_path)
    nag.add_checks(app)
    made = Assembly(Path(app.synth().directory), f"crossover-{experiment.name}")  # raises where nag finds something
    for need in needs(experiment):
        assert look(made.templates, need, experiment=experiment).missing == [], need


@pytest.mark.slow
def test_synthesis_does_not_move_with_the_working_directory(
    synth: Synthesize, assembly: Assembly, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Check that a synthesis in another working directory gives the same template."""
    monkeypatch.chdir(tmp_path)
    assert masked(synth().experiment) == masked(assembly.experiment)


def test_cdk_json_builds_nothing_and_sets_what_templates_need() -> None:
    """Check the settings in cdk.json on which templates depend, and that it has no build command."""
    settings = json.loads((ROOT / "cdk.json").read_text())
    assert "build" not in settings  # `cdk ls`, `diff` and `destroy` build and install nothing
    assert settings["app"].endswith("app.py")
    assert settings["context"]["@aws-cdk/aws-ec2:uniqueImdsv2TemplateName"] is True
    assert settings["context"]["@aws-cdk/core:explicitStackTags"] is True
    assert settings["versionReporting"] is False


def test_the_bootstrap_that_is_asked_for_is_the_one_that_the_manifest_names(
    assembly: Assembly, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Check that the bootstrap's version and parameter are those of the manifest, and that the qualifier is read as the CDK does.

    Another qualifier may be in cdk.json, or in the home folder's .cdk.json.
    """
    wanted = [each["properties"] for each in assembly.manifest["artifacts"].values() if "properties" in each]
    versions = {each["requiresBootstrapStackVersion"] for each in wanted if "requiresBootstrapStackVersion" in each}
    names = {
        each["bootstrapStackVersionSsmParameter"] for each in wanted if "bootstrapStackVersionSsmParameter" in each
    }
    assert (versions, names) == ({preflight.MINIMUM_VERSION}, {preflight.bootstrap_parameter()})
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".cdk.json").write_text(json.dumps({"context": {preflight.QUALIFIER_KEY: "home"}}))
    assert preflight.read_qualifier() == "home"
    monkeypatch.setattr(preflight, "CDK_JSON", tmp_path / "cdk.json")
    (tmp_path / "cdk.json").write_text(json.dumps({"context": {preflight.QUALIFIER_KEY: "acme"}}))
    assert preflight.read_qualifier() == "acme"
    monkeypatch.setattr(synthesis, "ROOT", tmp_path)
    assert preflight.QUALIFIER_KEY in feature_flags()


def test_templates_fit_into_cloudformations_limits(assembly: Assembly, large: Assembly) -> None:
    """Check that each template has less than 1 MB, 500 resources and 200 parameters."""
    for made in (assembly, large):
        for name, template in made.templates.items():
            assert (made.folder / f"{name}.template.json").stat().st_size < 1_000_000
            assert len(template["Resources"]) < 500
            assert len(template["Parameters"]) < 200


def test_a_functions_environment_fits(large: Assembly) -> None:
    """Check that each function's environment is below 4 KB, with names, addresses and ARNs of the longest usual length."""
    for step in large.steps():
        variables = large.function(step)["Environment"]["Variables"]
        size = sum(len(name) + _size(value) for name, value in variables.items())
        assert size < 4_096, f"{step}: {size}"


def _size(value: Any) -> int:
    """Return the length that a template's value is taken to have once it is resolved. Raises TypeError for other intrinsic functions."""
    match value:
        case str():
            return len(value)
        case {"Fn::GetAtt": [_, "PrivateIp"]}:
            return 15
        case {"Ref": name}:
            return 63 if "Storage" in name else 120
        case {"Fn::Join": [_, parts]}:
            return sum(map(_size, parts))
    raise TypeError(value)

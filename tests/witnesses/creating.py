"""Stacks on LocalStack: templates as they are deployed, but for what it cannot know."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.infrastructure.assemblies import Json, resources
from tests.witnesses.definitions import configurations
from tests.witnesses.localstack_server import ACCOUNT, REGION, LocalStack
from tests.witnesses.playing import EMPTY_ZIP
from tests.witnesses.templates import assemblies

PATIENCE_S = 1200.0  # for all stacks together, on a machine that others use as well
ASSETS = f"cdk-hnb659fds-assets-{ACCOUNT}-{REGION}"
BOOTSTRAP, IMAGE = "/cdk-bootstrap/hnb659fds/version", "/witness/image"
NEWER = {"nodejs24.x": "nodejs22.x"}  # a runtime of the CDK's own function that LocalStack 4.7 does not know yet
MADE_UP = "unknown"  # the physical id of what LocalStack cannot create, and takes for created


SHARED = ("crossover-network", "crossover-broker")


@dataclass(frozen=True)
class Created:
    """The project's stacks on a LocalStack. `templates`: by the stack's name; `stacks`: description of each after its creation."""

    server: LocalStack
    templates: dict[str, Json]
    stacks: dict[str, Json]


def synthesized(folder: Path) -> dict[str, Json]:
    """Return the templates by name of every configuration of our project, except variants that differ only in the data set."""
    experiments = {
        name: each for name, each in configurations() if each.project == "crossover" and "-cifar10" not in name
    }
    found: dict[str, Json] = {}
    for _, assembly in assemblies(experiments, folder):
        found |= assembly.templates
    return found


def create_all(server: LocalStack, templates: dict[str, Json]) -> dict[str, Json]:
    """Create all stacks, first the network, then the broker, then the experiments concurrently. Return their descriptions by name once each
    creation has ended.
    """
    prepare(server)
    found: dict[str, Json] = {}
    for names in (SHARED[:1], SHARED[1:], [name for name in templates if name not in SHARED]):
        found |= create(server, {name: templates[name] for name in names})
    return found


def prepare(server: LocalStack) -> None:
    """Create in LocalStack what an AWS region contains by default, and what `cdk bootstrap` creates."""
    image = server.client("ec2").describe_images()["Images"][0]["ImageId"]
    for name, value in ((BOOTSTRAP, "21"), (IMAGE, image)):
        server.client("ssm").put_parameter(Name=name, Value=value, Type="String")
    server.client("s3").create_bucket(Bucket=ASSETS)


def create(server: LocalStack, templates: dict[str, Json]) -> dict[str, Json]:
    """Create these stacks concurrently, and return their descriptions by name. A failed one has the reason as StackStatusReason."""
    for name, template in templates.items():
        _begin(server, name, template)
    return {name: _created(server, name) for name in templates}


def _begin(server: LocalStack, name: str, template: Json) -> None:
    """Upload a stack's template and placeholders for its assets, and start its creation."""
    text = json.dumps(template)
    for newer, known in NEWER.items():
        text = text.replace(newer, known)
    bucket = server.client("s3")
    for key in (f"{name}.json", *_assets(template)):  # a template is too long to be handed over as text
        bucket.put_object(Bucket=ASSETS, Key=key, Body=text.encode() if key == f"{name}.json" else EMPTY_ZIP)
    server.client("cloudformation").create_stack(
        StackName=name,
        TemplateURL=f"{server.url}/{ASSETS}/{name}.json",
        Capabilities=["CAPABILITY_NAMED_IAM"],
        Parameters=[{"ParameterKey": parameter, "ParameterValue": value} for parameter, value in _parameters(template)],
    )


def _assets(template: Json) -> Iterator[str]:
    """Yield the keys of the ZIP files that a template's functions and layers need."""
    for kind, code in (("AWS::Lambda::Function", "Code"), ("AWS::Lambda::LayerVersion", "Content")):
        for properties in resources(template, kind).values():
            if "S3Key" in properties[code]:
                yield properties[code]["S3Key"]


def _parameters(template: Json) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of a template's parameters: what `deploy` would choose, and the image's name in LocalStack."""
    for name, parameter in template.get("Parameters", {}).items():
        if parameter["Type"] == "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>":
            yield name, IMAGE
        elif name == "Zone":
            yield name, f"{REGION}a"
        elif parameter["Default"] == "placeholder":  # what was not built for this test
            yield name, "built"


def _created(server: LocalStack, name: str) -> Json:
    """Wait until the creation of a stack has ended, well or not, and return the stack's description. Raises AssertionError after
    PATIENCE_S.
    """
    client, until = server.client("cloudformation"), time.monotonic() + PATIENCE_S
    while True:
        found: Json = client.describe_stacks(StackName=name)["Stacks"][0]
        if not found["StackStatus"].endswith("_IN_PROGRESS"):
            return found
        assert time.monotonic() < until, f"{name} is still {found['StackStatus']}"
        time.sleep(0.2)


def there(server: LocalStack, stack: str) -> dict[str, tuple[str, str]]:
    """Return (type, physical id) of each resource of a stack, by logical id."""
    found: list[dict[str, Any]] = server.client("cloudformation").describe_stack_resources(StackName=stack)[
        "StackResources"
    ]
    return {each["LogicalResourceId"]: (each["ResourceType"], each.get("PhysicalResourceId", "")) for each in found}

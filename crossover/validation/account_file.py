"""The settings of an organisation's AWS account, in `config/account.yaml`: its own network, images and key, a permissions boundary, tags.

Every field may be left out, and the file too; the stacks then make all of it themselves.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.validation import documents
from crossover.validation.fields import read_fields
from crossover.workflow.architecture import processor

PATH = Path(__file__).parents[2] / "config" / "account.yaml"
_PARTITION = r"arn:aws[a-z-]*"
# What a field takes beyond text, with an example.
PATTERNS = {
    "network.vpc": (r"vpc-[0-9a-f]{8,17}", "vpc-0a1b2c3d4e5f67890"),
    "network.availability_zone": (r"[a-z]{2}(-[a-z]+)+-\d[a-z]", "us-east-1a"),
    "network.functions_subnet": (r"subnet-[0-9a-f]{8,17}", "subnet-0a1b2c3d4e5f67890"),
    "network.hosts_subnet": (r"subnet-[0-9a-f]{8,17}", "subnet-0a1b2c3d4e5f67890"),
    "images.arm64": (r"ami-[0-9a-f]{8,17}", "ami-0a1b2c3d4e5f67890"),
    "images.amd64": (r"ami-[0-9a-f]{8,17}", "ami-0a1b2c3d4e5f67890"),
    "images.gpu": (r"ami-[0-9a-f]{8,17}", "ami-0a1b2c3d4e5f67890"),
    "session_agent.version": (r"\d+(\.\d+){2,3}", "a version such as 3.3.1000.0"),
    "session_agent.arm64": (r"[0-9a-f]{64}", "a SHA-256 in hexadecimal digits"),
    "session_agent.amd64": (r"[0-9a-f]{64}", "a SHA-256 in hexadecimal digits"),
    "kms_key": (
        rf"{_PARTITION}:kms:[a-z0-9-]+:\d{{12}}:key/[A-Za-z0-9-]+",
        "the ARN of a key (not of an alias): arn:aws:kms:us-east-1:123456789012:key/0a1b2c3d-0000-0000-0000-000000000000",
    ),
    "permissions_boundary": (
        rf"{_PARTITION}:iam::(\d{{12}}|aws):policy/[\w+=,.@/-]+",
        "the ARN of a managed policy: arn:aws:iam::123456789012:policy/boundary",
    ),
}
# Keys by which stacks and instances are found again, and names that only AWS may give; in any letter case, as IAM compares them.
_OUR_TAGS = {"project", "experiment", "owner", "stack-kind", "expires-at", "stands", "notify", "name"}
MOST_TAGS = 30  # of 50 that a resource may have; ours are the rest
_TAG = r"[\w .:/=+@-]"


@dataclass(frozen=True, kw_only=True)
class OwnNetwork:
    """Ids of an existing VPC and of its subnets in one availability zone: one for hosts that install packages, one for functions. All
    fields are set, or none.
    """

    vpc: str | None = None
    availability_zone: str | None = None
    functions_subnet: str | None = None
    hosts_subnet: str | None = None


@dataclass(frozen=True, kw_only=True)
class OwnImages:
    """Ids of an organisation's own machine images: Debian 13 by processor, and Ubuntu with PyTorch in /opt/pytorch for GPUs. None means
    AWS's image.
    """

    arm64: str | None = None
    amd64: str | None = None
    gpu: str | None = None


@dataclass(frozen=True, kw_only=True)
class SessionAgent:
    """The session manager's agent to install on Debian hosts: its version, and the SHA-256 of its package by processor. All fields are set,
    or none.
    """

    version: str | None = None
    arm64: str | None = None
    amd64: str | None = None


@dataclass(frozen=True, kw_only=True)
class AccountFile:
    """The content of config/account.yaml, an organisation's settings for its AWS account. `kms_key`: ARN of the key that encrypts what the
    stacks store; `permissions_boundary`: ARN of the policy that is set on every role; `tags`: set on every resource, in addition to the
    project's. A field that is None is not used.
    """

    network: OwnNetwork = field(default_factory=OwnNetwork)
    images: OwnImages = field(default_factory=OwnImages)
    kms_key: str | None = None
    permissions_boundary: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    session_agent: SessionAgent = field(default_factory=SessionAgent)

    def image(self, instance_type: str, *, gpu: bool) -> str | None:
        """Return the id of the organisation's own machine image for an instance type, or None if AWS's image is to be used. `gpu`: whether
        the instance's GPU is used; otherwise the image depends on its processor.
        """
        return self.images.gpu if gpu else getattr(self.images, processor(instance_type))

    def place_in_zone(self, experiment: Experiment) -> Experiment:
        """Return a copy of the experiment with its availability zone set to that of the organisation's network; the experiment itself if
        there is no such network. Raises ConfigError if the experiment names another zone.
        """
        zone, asked = self.network.availability_zone, experiment.network.availability_zone
        if not zone:
            return experiment
        if asked not in (None, zone):
            raise ConfigError(
                f"network.availability_zone: {asked!r}, but the network of config/account.yaml has its subnets in {zone}: "
                "leave the field out"
            )
        return replace(experiment, network=replace(experiment.network, availability_zone=zone))


def load(path: Path | None = None) -> AccountFile:
    """Return the checked content of the account file `path`, by default config/account.yaml; empty settings if there is no file. It is read
    again only after it has changed. Raises ConfigError with every problem.
    """
    path = path or PATH
    return _read(path, path.stat().st_mtime_ns) if path.exists() else AccountFile()


@cache  # a search for advice asks for every candidate
def _read(path: Path, changed_ns: int) -> AccountFile:
    """Return the checked content of the account file `path`. Raises ConfigError, each line of which names the file.

    `changed_ns`: the file's time of change; with the path, it is the key of the cache.
    """
    try:
        return parse_account(documents.read(path))
    except ConfigError as error:
        lines = "\n".join(line if line.startswith(str(path)) else f"{path}: {line}" for line in str(error).splitlines())
        raise ConfigError(lines) from None


def parse_account(plain: Mapping[str, Any]) -> AccountFile:
    """Return the account settings that `plain`, the file's YAML content, describes. Raises ConfigError, one problem a line."""
    problems: list[str] = []
    _, found = read_fields(AccountFile, plain, problems)
    if found is not None:
        problems += _find_problems(found)
    if problems:
        raise ConfigError("\n".join(problems))
    assert isinstance(found, AccountFile)
    return found


def _find_problems(found: AccountFile) -> Iterator[str]:
    """Yield an error message for each value of the account file that is not allowed, and for each incomplete section."""
    for name, (pattern, example) in PATTERNS.items():
        value: Any = found
        for part in name.split("."):
            value = getattr(value, part)
        if value is not None and not re.fullmatch(pattern, value):
            yield f"{name}: {value!r} is not allowed; expected {example}"
    sections: dict[str, Any] = {"network": found.network, "session_agent": found.session_agent}
    for name, section in sections.items():
        said = {each.name: getattr(section, each.name) for each in fields(section)}
        if any(said.values()) and (missing := [key for key, value in said.items() if not value]):
            yield f"{name}: {', '.join(missing)} missing; expected all of {', '.join(said)}, or none of them"
    if len(found.tags) > MOST_TAGS:
        yield f"tags: {len(found.tags)} are not allowed; expected {MOST_TAGS} at most"
    spelled = dict[str, str]()
    for key, value in found.tags.items():
        if (first := spelled.setdefault(key.casefold(), key)) != key:
            yield f"tags.{key}: is {first} in other letter case, which IAM takes for the same key; expected one of the two"
        elif key.casefold() in _OUR_TAGS or key.casefold().startswith(("aws:", "crossover:")):
            yield f"tags.{key}: is taken by this project or by AWS; expected another name"
        elif not re.fullmatch(f"{_TAG}{{1,128}}", key) or not re.fullmatch(f"{_TAG}{{0,256}}", value):
            yield (
                f"tags.{key}: {value!r} is not allowed; expected letters, digits, spaces and . : / = + - @ _, at most 128 of the name and "
                "256 of the value"
            )

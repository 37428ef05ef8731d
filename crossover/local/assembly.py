"""A CDK cloud assembly: its stacks in the order of their dependencies, and the files they need, uploaded as the CDK command line does.

Source: the cloud assembly's manifest (manifest.json) and asset manifests (*.assets.json), AWS CDK's cloud-assembly-schema.
"""

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from crossover.errors import ConfigError
from crossover.local.lambda_runtime.zygotes import ZygoteKind
from crossover.local.moto_patches.resource_types import ACCOUNT, REGION

_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Stack:
    name: str
    template: str
    parameters: Mapping[str, str]
    tags: Mapping[str, str]

    @cached_property
    def resources(self) -> dict[str, Any]:
        """By logical id."""
        return dict(json.loads(self.template).get("Resources", {}))

    def of_type(self, kind: str) -> Iterator[dict[str, Any]]:
        """The properties of its resources of one type."""
        yield from (each.get("Properties", {}) for each in self.resources.values() if each["Type"] == kind)


@dataclass(frozen=True, kw_only=True)
class Asset:
    """A file or folder of the assembly and where it goes."""

    path: Path
    zipped: bool
    bucket: str
    key: str


def read(assembly: Path) -> tuple[list[Stack], list[Asset]]:
    """The stacks, what others depend on first, and all assets. Raises ConfigError when it is no cloud assembly."""
    manifest = assembly / "manifest.json"
    if not manifest.is_file():
        raise ConfigError(
            f"{assembly}: not a CDK cloud assembly (no manifest.json); `cdk synth` or `crossover deploy` makes one"
        )
    artifacts = json.loads(manifest.read_text(encoding="utf-8"))["artifacts"]
    stacks = [_stack(assembly, name, artifacts[name]) for name in _ordered(artifacts)]
    manifests = [each for each in artifacts.values() if each["type"] == "cdk:asset-manifest"]
    assets = [asset for each in manifests for asset in _assets(assembly, assembly / each["properties"]["file"])]
    return stacks, assets


def _ordered(artifacts: Mapping[str, Any]) -> Iterator[str]:
    seen: set[str] = set()

    def visit(name: str) -> Iterator[str]:
        if name in seen or name not in artifacts:
            return
        seen.add(name)
        for before in artifacts[name].get("dependencies", []):
            yield from visit(before)
        if artifacts[name]["type"] == "aws:cloudformation:stack":
            yield name

    for name in artifacts:
        yield from visit(name)


def _stack(assembly: Path, name: str, artifact: Mapping[str, Any]) -> Stack:
    properties = artifact["properties"]
    return Stack(
        name=properties.get("stackName", name),
        template=(assembly / properties["templateFile"]).read_text(encoding="utf-8"),
        parameters=properties.get("parameters", {}),
        tags=properties.get("tags", {}),
    )


def _assets(assembly: Path, manifest: Path) -> Iterator[Asset]:
    content = json.loads(manifest.read_text(encoding="utf-8"))
    if content.get("dockerImages"):
        raise ConfigError(f"{manifest.name}: container images cannot run locally; set functions.packaging to layer")
    for file in content.get("files", {}).values():
        source = file["source"]
        for destination in file["destinations"].values():
            yield Asset(
                path=assembly / source["path"],
                zipped=source.get("packaging") == "zip",
                bucket=filled(destination["bucketName"]),
                key=filled(destination["objectKey"]),
            )


def filled(text: str) -> str:
    """The placeholders that the CDK leaves to the deploying side."""
    return (
        text.replace("${AWS::AccountId}", ACCOUNT).replace("${AWS::Region}", REGION).replace("${AWS::Partition}", "aws")
    )


def content(asset: Asset) -> bytes:
    """The asset's bytes; a folder becomes a zip that depends on its content alone."""
    if not asset.zipped or asset.path.is_file():
        return asset.path.read_bytes()
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(asset.path.rglob("*")):
            if path.is_file():
                entry = zipfile.ZipInfo(path.relative_to(asset.path).as_posix(), _EPOCH)
                entry.external_attr = (path.stat().st_mode & 0xFFFF) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, path.read_bytes())
    return target.getvalue()


def layer_keys(stacks: list[Stack]) -> set[str]:
    """S3 keys of layer archives. Local functions take third-party packages from this environment: the archives are ARM code."""
    layers = (each for stack in stacks for each in stack.of_type("AWS::Lambda::LayerVersion"))
    keys = (each["Content"].get("S3Key") for each in layers)
    return {key if isinstance(key, str) else json.dumps(key) for key in keys}


def worker_kinds(stacks: list[Stack]) -> list[ZygoteKind]:
    """Which fork servers the stacks' functions need."""
    functions = (each for stack in stacks for each in stack.of_type("AWS::Lambda::Function"))
    python = [each.get("Tags", []) for each in functions if each.get("Runtime", "").startswith("python")]
    kinds: set[ZygoteKind] = {
        "torch" if {"Key": "crossover:torch", "Value": "true"} in tags else "plain" for tags in python
    }
    return sorted(kinds)


def empty_zip() -> bytes:
    """What stands in for a layer's archive."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr(zipfile.ZipInfo("python/placeholder", _EPOCH), b"")
    return target.getvalue()

"""Small functions, templates and cloud assemblies for the tests of the local cloud."""

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

ROLE = "arn:aws:iam::123456789012:role/local"

HANDLERS = """
import json, os, sys, time

state = {"calls": 0}

def echo(event, context):
    state["calls"] += 1
    print("seen", event)
    return {**event, "calls": state["calls"], "pid": os.getpid()}

def fail(event, context):
    raise ValueError("no such luck")

def sometimes(event, context):
    # fails until the file has as many lines as `event["after"]`
    with open(event["file"], "a") as file:
        file.write("x\\n")
    if sum(1 for _ in open(event["file"])) <= event["after"]:
        raise type(event["error"], (Exception,), {})("not yet")
    return {"tries": sum(1 for _ in open(event["file"]))}

def sleep(event, context):
    with open(event["file"], "a") as file:
        file.write("started\\n")
    time.sleep(3600)

def environment(event, context):
    return dict(os.environ)
"""


def zipped(**files: str) -> bytes:
    """Return a ZIP file of Python code as bytes; `name="text"` becomes the file name.py, "__" in a name a slash."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{name.replace('__', '/')}.py", text)
    return target.getvalue()


def write_assembly(folder: Path, stacks: Mapping[str, Mapping[str, Any]], files: Mapping[str, bytes | Path]) -> Path:
    """Write a cloud assembly as the CDK would, and return its folder. `stacks`: templates by name in the order of their dependencies;
    `files`: assets by key.
    """
    folder.mkdir(parents=True, exist_ok=True)
    assets = {}
    for key, content in files.items():
        source = folder / f"asset.{key}"
        if isinstance(content, bytes):
            source.write_bytes(content)
        destination = {"bucketName": "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}", "objectKey": key}
        path = source.name if isinstance(content, bytes) else str(content)
        packaging = "file" if isinstance(content, bytes) else "zip"
        assets[key] = {"source": {"path": path, "packaging": packaging}, "destinations": {"current": destination}}
    (folder / "all.assets.json").write_text(json.dumps({"version": "48.0.0", "files": assets}))
    artifacts: dict[str, Any] = {
        "all.assets": {"type": "cdk:asset-manifest", "properties": {"file": "all.assets.json"}}
    }
    before = "all.assets"
    for name, template in stacks.items():
        (folder / f"{name}.template.json").write_text(json.dumps(template))
        artifacts[name] = {
            "type": "aws:cloudformation:stack",
            "properties": {"templateFile": f"{name}.template.json", "tags": {"project": "crossover"}},
            "dependencies": [before],
        }
        before = name
    # written last stack first: the order is the dependencies', not the file's
    manifest = {"version": "48.0.0", "artifacts": dict(reversed(artifacts.items()))}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


BUCKET = {"Fn::Sub": "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}"}


def function(handler: str, *, key: str = "code.zip", tags: Mapping[str, str] | None = None, **properties: Any) -> Any:
    """Return a Lambda function as the resource of a template. `handler`: name of a function in the module `handlers` of its code; `key`:
    asset with the code; `properties`: further or other properties.
    """
    return {
        "Type": "AWS::Lambda::Function",
        "Properties": {
            "FunctionName": f"crossover-test-{handler}",
            "Handler": f"handlers.{handler}",
            "Runtime": "python3.13",
            "Architectures": ["arm64"],
            "Role": ROLE,
            "Code": {"S3Bucket": BUCKET, "S3Key": key},
            "Tags": [{"Key": name, "Value": value} for name, value in (tags or {}).items()],
            **properties,
        },
    }


def eventually(condition: Callable[[], bool], *, what: str, timeout_s: float = 30.0) -> None:
    """Wait until `condition()` is true. Fail, naming `what`, after `timeout_s` seconds."""
    import time

    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"{what}: still not so after {timeout_s:g} s")
        time.sleep(0.02)

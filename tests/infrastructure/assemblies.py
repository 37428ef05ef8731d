"""Reading a synthesized cloud assembly: templates as plain data."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def resources(template: Json, kind: str) -> dict[str, Json]:
    """Return the properties of a template's resources of one type, by logical id."""
    return {
        name: resource.get("Properties", {})
        for name, resource in template["Resources"].items()
        if resource["Type"] == kind
    }


def only(template: Json, kind: str) -> Json:
    """Return the properties of the template's single resource of a type."""
    (found,) = resources(template, kind).values()
    return found


def flat(value: Any) -> str:
    """Return a template's value as one string: references in angle brackets, joins put together."""
    match value:
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
        case {"Fn::Join": [separator, parts]}:
            return str(separator).join(map(flat, parts))
        case {"Fn::Base64": inner}:
            return flat(inner)
        case {"Fn::Sub": text}:
            return str(text)
    return str(value)


def listed(value: Any) -> list[Any]:
    """Return the value as a list, if it is not one already."""
    return value if isinstance(value, list) else [value]


def step_of(function: Json) -> str:
    """Return the step that a function's properties belong to; "" for the CDK's own function, which empties buckets."""
    return next((tag["Value"] for tag in function.get("Tags", []) if tag["Key"] == "crossover:step"), "")


@dataclass(frozen=True)
class Assembly:
    """A folder of templates that `synthesize` wrote."""

    folder: Path
    name: str = "crossover-spirt"

    @cached_property
    def manifest(self) -> Json:
        """The assembly's manifest.json."""
        found: Json = json.loads((self.folder / "manifest.json").read_text())
        return found

    def template(self, stack: str) -> Json:
        """Return the template of a stack."""
        found: Json = json.loads((self.folder / f"{stack}.template.json").read_text())
        return found

    @cached_property
    def templates(self) -> dict[str, Json]:
        """The templates of all stacks of the assembly, by stack name."""
        stacks = [n for n, a in self.manifest["artifacts"].items() if a["type"] == "aws:cloudformation:stack"]
        return {name: self.template(name) for name in stacks}

    @property
    def experiment(self) -> Json:
        """The template of the experiment's own stack."""
        return self.templates[self.name]

    @property
    def network(self) -> Json:
        """The template of the shared network."""
        return self.templates["crossover-network"]

    @property
    def broker(self) -> Json:
        """The template of the shared broker."""
        return self.templates["crossover-broker"]

    def function(self, step: str) -> Json:
        """Return the properties of the function of a step."""
        return self.functions()[step]

    def functions(self) -> dict[str, Json]:
        """Return the properties of all functions by step."""
        functions = resources(self.experiment, "AWS::Lambda::Function").values()
        return {name: properties for properties in functions if (name := step_of(properties))}

    def steps(self) -> list[str]:
        """Return the names of the steps that have a function."""
        return list(self.functions())

    def acknowledged(self) -> dict[str, dict[str, set[str]]]:
        """Return cdk-nag's acknowledged findings with their reasons: {path of the construct: {finding: reasons}}."""
        found: dict[str, dict[str, set[str]]] = {}
        for stack in self.templates:
            path = self.folder / f"{stack}.metadata.json"
            entries = json.loads(path.read_text()) if path.exists() else self.manifest["artifacts"][stack]["metadata"]
            for construct, each in entries.items():
                for entry in each:
                    if entry["type"] == "aws:cdk:acknowledged-rules":
                        for rule, reason in entry["data"].items():
                            reasons = found.setdefault(construct, {})
                            reasons.setdefault(rule.removeprefix("Annotation::"), set()).add(reason)
        return found

    def asset(self, template: Json, code: Json) -> Path:
        """Return the folder of the asset that a function's Code or a layer's Content names."""
        digest = flat(code["S3Key"]).partition(".")[0]
        (found,) = (p for p in self.folder.glob(f"asset.{digest}*"))
        return found


def statements(template: Json) -> Iterator[tuple[str, Json]]:
    """Yield (logical id of the role, statement) of every inline policy in the template."""
    for name, role in resources(template, "AWS::IAM::Role").items():
        for policy in role.get("Policies", []):
            for statement in policy["PolicyDocument"]["Statement"]:
                yield name, statement


def actions_of(template: Json, role: Any) -> dict[str, set[str]]:
    """Return the resources that a role may use, by action; denials are left out. `role`: as {"Fn::GetAtt": [id, "Arn"]}."""
    name = role["Fn::GetAtt"][0]
    found: dict[str, set[str]] = {}
    for owner, statement in statements(template):
        if owner == name and statement["Effect"] == "Allow":
            for action in listed(statement["Action"]):
                found.setdefault(action, set()).update(flat(r) for r in listed(statement["Resource"]))
    return found


def masked(template: Any) -> Any:
    """Return the template without what changes with the contents of assets: their hashes, and names salted with them."""
    text = json.dumps(template, indent=1, sort_keys=True)
    text = re.sub(r"\b[0-9a-f]{64}\b", "<asset>", text)
    text = re.sub(r"(Redis(?:All)?Ready)[0-9a-f]{8}[0-9A-F]{8}", r"\1<salt>", text)
    return json.loads(re.sub(r'"#!/bin/bash\\n.*?(?=")', '"<boot script>', text))

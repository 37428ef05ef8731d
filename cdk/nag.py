"""cdk-nag's AWS Solutions checks on every stack. A finding is fixed, or acknowledged with its reason where it arises, one by one."""

from collections.abc import Mapping
from typing import Any

from aws_cdk import Acknowledgment, App, Validations
from cdk_nag import AwsSolutionsChecks
from constructs import IConstruct


def add_checks(app: App) -> None:
    """Add AWS's Solutions checks to `app`, so that synthesis fails on every finding that is not acknowledged."""
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))


def acknowledge(construct: IConstruct, reasons: Mapping[str, str]) -> None:
    """Accept cdk-nag's findings for `construct` and everything below it. `reasons`: {finding, such as `AwsSolutions-S1`: why it is
    accepted}.
    """
    Validations.of(construct).acknowledge(*(Acknowledgment(id=rule, reason=why) for rule, why in reasons.items()))


def finding_of(resolved: Any) -> str:
    """Return a CloudFormation value as cdk-nag writes it in a finding: text with references in angle brackets, such as
    `<Bucket.Arn>/runs/*`.

    `resolved`: text, or a Ref, Fn::GetAtt, Fn::Join or Fn::Sub as in a template; TypeError is raised for anything else.
    """
    match resolved:
        case str():
            return resolved
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
        case {"Fn::Join": [separator, parts]}:
            return str(separator).join(finding_of(part) for part in parts)
        case {"Fn::Sub": text}:
            return str(text).replace("${", "<").replace("}", ">")
    raise TypeError(f"not a value that a finding shows: {resolved!r}")

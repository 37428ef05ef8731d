"""Has the CDK been set up in an account and region, under the qualifier of this project's context, and recently enough?"""

import json
from pathlib import Path
from typing import Any

from crossover.account.deployment.finding import Finding
from crossover.clients import aws_calls

CDK_JSON = Path(__file__).parents[3] / "cdk.json"
CONTEXT = "@aws-cdk/core:bootstrapQualifier"
DEFAULT_QUALIFIER = "hnb659fds"  # the CDK's own
MINIMUM = 6  # what manifests ask for: `requiresBootstrapStackVersion`


def finding(session: Any) -> Finding:
    """What the region says of it, with the command that mends it."""
    version = int(aws_calls.parameter(session, parameter()) or 0)
    region, other = session.client("ssm").meta.region_name, qualifier()
    apart = "" if other == DEFAULT_QUALIFIER else f" --toolkit-stack-name CDKToolkit-{other}"
    how = f".venv/bin/cdk bootstrap{apart}, once per account and region"
    if version == 0:
        return Finding("bootstrap", False, f"the CDK has not been set up in {region} (no {parameter()}): {how}")
    old = "" if version >= MINIMUM else f" is older than {MINIMUM}: {how}"
    return Finding("bootstrap", not old, f"version {version}{old}")


def parameter() -> str:
    """The name of the parameter that `cdk bootstrap` leaves its version in."""
    return f"/cdk-bootstrap/{qualifier()}/version"


def qualifier() -> str:
    """As the CDK's command line reads it: from the project's cdk.json, else from that of the home folder."""
    for file in (CDK_JSON, Path("~/.cdk.json").expanduser()):
        context = json.loads(file.read_text(encoding="utf-8")).get("context", {}) if file.exists() else {}
        if CONTEXT in context:
            return str(context[CONTEXT])
    return DEFAULT_QUALIFIER

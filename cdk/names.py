"""Names of deployed resources. They are fixed, so that ARNs can be formatted without references, which would be circular."""

from aws_cdk import Aws, Stack
from constructs import IConstruct

from crossover.errors import ConfigError
from crossover.validation.combinations import FUNCTION_NAME_LIMIT


def stack_name(project: str, part: str) -> str:
    """Return the name of a project's stack. `part`: network, broker or an experiment's name."""
    return f"{project}-{part}"


def resource_name(scope: IConstruct, part: str) -> str:
    """Return the name of a function, state machine or host: its stack's name, then `part`. Raises ConfigError if the name is too long
    for AWS.
    """
    name = f"{Stack.of(scope).stack_name}-{part.replace('_', '-')}"
    if len(name) > FUNCTION_NAME_LIMIT:
        raise ConfigError(
            f"name: the experiment's makes the name {name!r} of {len(name)} characters; AWS allows "
            f"{FUNCTION_NAME_LIMIT}: shorten it by {len(name) - FUNCTION_NAME_LIMIT}"
        )
    return name


def parameter_path(project: str, *parts: str) -> str:
    """Return the path of an SSM parameter: `/crossover/<project>/network/vpc`, `/crossover/<project>/<experiment>/bucket`."""
    return "/".join(["/crossover", project, *parts])


def bucket_prefix(stack: str) -> str:
    """Return the beginning of the bucket names of a stack or a project: CloudFormation makes them of the stack's name, shortened."""
    return stack[:20]


def boot_log(project: str) -> str:
    """Return the name of the network stack's log group to which hosts write how they booted."""
    return f"/crossover/{project}/boot"


def arn(service: str, resource: str) -> str:
    """Return an ARN of this account and region, formatted at deployment: `arn("states", "stateMachine:crossover-spirt-run")`."""
    return f"arn:{Aws.PARTITION}:{service}:{Aws.REGION}:{Aws.ACCOUNT_ID}:{resource}"

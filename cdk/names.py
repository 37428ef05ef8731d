"""Names of deployed resources. They are fixed, so that ARNs can be formatted without references, which would be circular."""

from aws_cdk import Aws, Stack
from constructs import IConstruct

from crossover.errors import ConfigError
from crossover.validation.combinations import FUNCTION_NAME_LIMIT


def stack_name(project: str, part: str) -> str:
    """Return the name of one of a project's stacks: `<project>-<part>`. `part`: "network", "broker" or an experiment's name."""
    return f"{project}-{part}"


def resource_name(scope: IConstruct, part: str) -> str:
    """Return the full name of a resource: the name of the stack that `scope` is in, a hyphen, and `part` with hyphens for underscores.
    Raises ConfigError if it is longer than AWS allows for a function.
    """
    name = f"{Stack.of(scope).stack_name}-{part.replace('_', '-')}"
    if len(name) > FUNCTION_NAME_LIMIT:
        raise ConfigError(
            f"name: the experiment's makes the name {name!r} of {len(name)} characters; AWS allows "
            f"{FUNCTION_NAME_LIMIT}: shorten it by {len(name) - FUNCTION_NAME_LIMIT}"
        )
    return name


def parameter_path(project: str, *parts: str) -> str:
    """Return the path of an SSM parameter, such as `/crossover/<project>/network/vpc` or `/crossover/<project>/<experiment>/bucket`.
    `parts`: the path's components after the project.
    """
    return "/".join(["/crossover", project, *parts])


def bucket_prefix(stack: str) -> str:
    """Return the beginning of the names of the buckets that CloudFormation makes for a stack, or for all stacks of a project. `stack`: name
    of the stack or project.
    """
    return stack[:20]


def boot_log(project: str) -> str:
    """Return the name of the CloudWatch log group, part of the network stack, to which hosts write the output of their boots."""
    return f"/crossover/{project}/boot"


def arn(service: str, resource: str) -> str:
    """Return an ARN of this account and region, formatted at deployment: `arn("states", "stateMachine:crossover-spirt-run")`."""
    return f"arn:{Aws.PARTITION}:{service}:{Aws.REGION}:{Aws.ACCOUNT_ID}:{resource}"

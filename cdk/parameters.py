"""Values that stacks publish for one another and for the runner: plain strings in SSM parameters.

They are not CloudFormation exports: deploying a second architecture must not drop an export that the first still imports, and an export
that is in use cannot be changed. A parameter is read when a stack is deployed; `add_dependency` orders the stacks. Each shared stack has
one export, of a word that never changes: CloudFormation deletes no stack whose export another one imports.
"""

from collections.abc import Iterable, Mapping

from aws_cdk import CfnOutput, Fn
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from cdk.names import parameter_path


def publish(
    scope: Construct,
    project: str,
    part: str,
    values: Mapping[str, str],
    outputs: Mapping[str, str] = {},
) -> None:
    """Add an SSM parameter `/crossover/<project>/<part>/<name>` to the stack of `scope` for each of `values` (text by name). Only one call
    per scope is possible.

    `outputs`: descriptions, by name, of the values that are also listed in the stack's Outputs; names that are not in `values` are
    ignored.
    """
    folder = Construct(scope, "Published")
    for name, value in values.items():
        id = "".join(word.capitalize() for word in name.split("_"))
        ssm.StringParameter(
            folder,
            id,
            parameter_name=parameter_path(project, part, name),
            string_value=value,
        )
        if description := outputs.get(name):
            CfnOutput(scope, id, value=value, description=description)


def look_up(scope: Construct, project: str, part: str, name: str) -> str:
    """Return the value `name` that the stack `part` of `project` published. It is a token that is resolved when the template is deployed,
    so synthesis needs no connection to AWS.

    `scope`: construct that uses the value. Repeated calls in one stack give one template parameter.
    """
    return ssm.StringParameter.value_for_string_parameter(scope, parameter_path(project, part, name))


def prevent_deletion_while_used(scope: Construct, project: str, part: str) -> None:
    """Export a constant from the shared stack `part` of `project`. CloudFormation does not delete a stack while another stack imports its
    export, as experiments' stacks do. `scope`: the shared stack.
    """
    CfnOutput(scope, "Standing", value=part, export_name=f"{project}-{part}")


def import_shared_words(project: str, parts: Iterable[str]) -> dict[str, str]:
    """Return {"leans_on": text with the constant that each of the shared stacks `parts` exports}, a value to publish; {} if there are no
    `parts`. By importing these constants, a stack keeps the shared stacks from being deleted.
    """
    words = [Fn.import_value(f"{project}-{part}") for part in parts]
    return {"leans_on": Fn.join(" ", words)} if words else {}

"""What stacks tell one another and the runner: plain strings in SSM parameters.

Not CloudFormation exports: deploying a second architecture must not drop an export that the first still imports, and an export that is in
use cannot be changed. A parameter is read when a stack is deployed; `add_dependency` orders the stacks. One export there is of each shared
stack, of a word that never changes: CloudFormation deletes no stack whose export another one imports.
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
    """One parameter per value, under `/crossover/<project>/<part>/`. `outputs`: what stands in the stack's Outputs too, described."""
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
    """The value that another stack published, resolved at deployment: synth needs neither network nor credentials."""
    return ssm.StringParameter.value_for_string_parameter(scope, parameter_path(project, part, name))


def be_leaned_on(scope: Construct, project: str, part: str) -> None:
    """Of a shared stack: as long as a stack that `leans` on it stands, it cannot be deleted, whoever asks for it."""
    CfnOutput(scope, "Standing", value=part, export_name=f"{project}-{part}")


def leaning(project: str, parts: Iterable[str]) -> dict[str, str]:
    """What a stack publishes that needs shared ones: their words, imported; nothing of one that stands alone."""
    words = [Fn.import_value(f"{project}-{part}") for part in parts]
    return {"leans_on": Fn.join(" ", words)} if words else {}

"""SSM parameters: tags as a template gives them, generated names, and public parameters that name machine images."""

import copy
from typing import Any

from crossover.local.moto_patches.replacing import Replacements

_ANY_IMAGE = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"


def install(changes: Replacements) -> None:
    """Install the patches of SSM parameters through `changes`: tags of templates, public parameters for machine images, and attributes for
    GetAtt.
    """
    from moto.ssm.models import Parameter, SimpleSystemManagerBackend

    @changes.wraps(Parameter, "create_from_cloudformation_json")
    def create(old: Any, cls: Any, resource_name: str, cloudformation_json: Any, *rest: Any, **named: Any) -> Any:
        """Create a parameter from a template by moto's method `old`, and return what that returns. It is called with copied properties: a
        mapping of tags becomes the list that moto expects, and `resource_name` is the name if the template gives none.
        """
        properties = {"Name": resource_name, **cloudformation_json["Properties"]}
        if isinstance(properties.get("Tags"), dict):  # a map in templates, a list in the API that moto hands it to
            properties["Tags"] = [{"Key": key, "Value": value} for key, value in properties["Tags"].items()]
        return old(resource_name, {**cloudformation_json, "Properties": properties}, *rest, **named)

    @changes.wraps(SimpleSystemManagerBackend, "get_parameter")
    def get(old: Any, self: Any, name: str) -> Any:
        """Return the parameter `name`; None if there is none. For a public parameter (/aws/service/...) that moto lacks, return a copy of
        one that names a machine image.
        """
        found = old(self, name)
        if found is None and name.startswith("/aws/service/"):
            found = copy.copy(old(self, _ANY_IMAGE))
            found.name = name
        return found

    changes.add(Parameter, "has_cfn_attr", classmethod(lambda cls, name: name in ("Type", "Value")))
    changes.add(
        Parameter, "get_cfn_attribute", lambda self, name: {"Type": self.parameter_type, "Value": self.value}[name]
    )

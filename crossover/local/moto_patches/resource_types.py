"""CloudFormation: the resource types that moto lacks, dynamic references, and templates read from this cloud's S3."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from crossover.errors import CrossoverError, RunFailed
from crossover.local.moto_patches.replacing import Replacements

ACCOUNT, REGION = "123456789012", "us-east-1"

# They describe what one machine has no counterpart for: permissions, alarms, schedules, budgets. Accepted, without effect.
WITHOUT_EFFECT = frozenset(
    {
        "AWS::AmazonMQ::Configuration",
        "AWS::Budgets::Budget",
        "AWS::CDK::Metadata",
        "AWS::CloudFormation::WaitCondition",
        "AWS::CloudFormation::WaitConditionHandle",
        "AWS::CloudWatch::Alarm",
        "AWS::EC2::SecurityGroupEgress",
        "AWS::IAM::ServiceLinkedRole",
        "AWS::Lambda::EventInvokeConfig",
        "AWS::Logs::MetricFilter",
        "AWS::Logs::QueryDefinition",
        "AWS::Logs::SubscriptionFilter",
        "AWS::S3::BucketPolicy",
        "AWS::SNS::TopicPolicy",
        "AWS::SQS::QueuePolicy",
        "AWS::Scheduler::Schedule",
        "AWS::Scheduler::ScheduleGroup",
    }
)


@dataclass(frozen=True, kw_only=True)
class WantedResource:
    """A resource as a template declares it, before it is created. `type`: CloudFormation's name of its type; `logical_id`: its id in the
    template; `name`: the value of the property that names resources of its type, else one generated from stack and logical id;
    `properties`: with template functions and dynamic references resolved.
    """

    type: str
    logical_id: str
    name: str  # generated from stack and logical id, or what the property `name_property` says
    properties: Mapping[str, Any]


@dataclass
class MadeResource:
    """A created resource as moto's CloudFormation keeps it; a type's `make` function builds one, without subclassing.
    `physical_resource_id`: the value of Ref; `attributes`: the values of GetAtt by attribute; `remove()`: deletes it, by default nothing
    happens. moto itself sets `cf_resource_type` and `logical_resource_id`.
    """

    physical_resource_id: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    remove: Callable[[], None] = lambda: None
    cf_resource_type: str = ""
    logical_resource_id: str = ""

    def is_created(self) -> bool:
        """Return True: a resource of these types is complete as soon as it is made."""
        return True

    def get_cfn_attribute(self, name: str) -> Any:
        """Return the value of GetAtt for the attribute `name`. Raises RunFailed if the resource has no such attribute."""
        if name in self.attributes:
            return self.attributes[name]
        raise RunFailed(
            f"{self.logical_resource_id}: the local {self.cf_resource_type} has no attribute {name!r} (GetAtt)"
        )

    def delete(self, account_id: str, region: str) -> None:
        """Delete the resource by calling `remove`. moto passes account and region, which are not used."""
        self.remove()


Maker = Callable[[WantedResource], MadeResource]


@dataclass(frozen=True, kw_only=True)
class ResourceType:
    """A CloudFormation resource type that this cloud adds to moto's. `make(wanted)`: creates a resource of it; `name_property`: the
    template property that names a resource, "" if there is none.
    """

    make: Maker
    name_property: str = ""


def make_without_effect(wanted: WantedResource) -> MadeResource:
    """Return a resource that has only a name and the attributes Arn, Data ({}), Id and Name, and creates nothing: for types that have no
    counterpart on one machine.
    """
    attributes = {
        "Arn": f"arn:aws:local:{REGION}:{ACCOUNT}:{wanted.name}",
        "Data": "{}",
        "Id": wanted.name,
        "Name": wanted.name,
    }
    return MadeResource(wanted.name, attributes)


def list_supported_types(types: Mapping[str, ResourceType]) -> frozenset[str]:
    """Return the names of all resource types that a template may contain: moto's, those in `types`, and those without effect
    (WITHOUT_EFFECT).
    """
    from moto.cloudformation.parsing import get_model_map

    return frozenset(get_model_map()) | frozenset(types) | WITHOUT_EFFECT


def install(changes: Replacements, types: Mapping[str, ResourceType]) -> None:
    """Let moto's CloudFormation create the resource types in `types` and those without effect, resolve dynamic references, and read
    templates from this cloud's S3. `changes`: records the patches and undoes them.
    """
    from moto.cloudformation import parsing
    from moto.cloudformation.exceptions import ValidationError
    from moto.core.exceptions import ServiceException
    from werkzeug.exceptions import HTTPException

    known = {name: ResourceType(make=make_without_effect) for name in WITHOUT_EFFECT} | dict(types)
    adapters = {name: make_adapter(name, each) for name, each in known.items()}

    @changes.wraps(parsing, "resource_class_from_type")
    def find_class(old: Any, resource_type: str) -> Any:
        """Return the class with which moto creates resources of `resource_type`: an adapter for an added type, else moto's own class; None
        if moto has none either.
        """
        return adapters.get(resource_type) or old(resource_type)

    @changes.wraps(parsing, "resource_name_property_from_type")
    def find_name_property(old: Any, resource_type: str) -> Any:
        """Return the template property that names a resource of `resource_type`; None or "" if there is none. For types that this cloud
        does not add, moto's function `old` answers.
        """
        return known[resource_type].name_property if resource_type in known else old(resource_type)

    @changes.wraps(parsing, "parse_and_create_resource")
    def create(old: Any, logical_id: str, *rest: Any, **named: Any) -> Any:
        """Create a resource by moto's function `old`, and return its result. Errors of this project and of moto's services become
        CloudFormation's ValidationError, with the resource's logical id.
        """
        try:
            return old(logical_id, *rest, **named)
        except ValidationError:
            raise
        except (CrossoverError, ServiceException, HTTPException) as error:
            # In the format of CloudFormation and with the resource's name; another service's format cannot be read.
            words = getattr(error, "message", None) or str(error)
            raise ValidationError(logical_id, f"{logical_id}: {words}") from error

    changes.wrap(parsing, "clean_json", _clean_and_resolve)
    _accept_template_urls(changes)


def make_adapter(name: str, resource_type: ResourceType) -> type:
    """Return a class through which moto's CloudFormation creates resources of the type called `name`. It has the only two methods that moto
    calls.
    """

    def create(
        resource_name: str, cloudformation_json: Mapping[str, Any], account_id: str, region_name: str, **named: Any
    ) -> MadeResource:
        """Create a resource for its description in a template by the type's `make`, and return it. `resource_name`: its name; `named`: has
        its logical id as LogicalId. Account and region are not used.
        """
        properties = cloudformation_json.get("Properties", {})
        wanted = WantedResource(type=name, logical_id=named["LogicalId"], name=resource_name, properties=properties)
        return resource_type.make(wanted)

    return type(
        name.rpartition(":")[2],
        (),
        {"create_from_cloudformation_json": staticmethod(create), "has_cfn_attr": staticmethod(lambda attribute: True)},
    )


_SECRET = re.compile(r"\{\{resolve:secretsmanager:([^{}]+?)(?::SecretString(?::([^:{}]*))?(?::[^{}]*)?)?\}\}")
_PARAMETER = re.compile(r"\{\{resolve:ssm:([^{}:]+)(?::\d+)?\}\}")


def _clean_and_resolve(old: Any, resource_json: Any, resources_map: Any) -> Any:
    """Return what moto's `clean_json` returns (a property without template functions), with dynamic references to secrets and parameters
    replaced by their values.

    moto's own parser fails on the colons of an ARN.
    """
    value = old(resource_json, resources_map)
    if isinstance(value, str) and "{{resolve:" in value:
        value = _SECRET.sub(lambda match: read_secret(match[1], key=match[2] or ""), value)
        value = _PARAMETER.sub(lambda match: _read_parameter(match[1]), value)
    return value


def read_secret(arn: str, *, key: str = "") -> str:
    """Return the newest text of the secret `arn` (an ARN or a name) in this cloud; with `key`, the field of that name in its JSON. Raises
    moto's error if there is no such secret, KeyError if its JSON has no such field.
    """
    from moto.secretsmanager.models import secretsmanager_backends

    backend = secretsmanager_backends[ACCOUNT][REGION]
    text = backend.get_secret_value(secret_id=arn, version_id="", version_stage="")["SecretString"]
    return str(json.loads(text)[key]) if key else str(text)


def _read_parameter(name: str) -> str:
    """Return the value of the SSM parameter `name` in this cloud."""
    from moto.ssm.models import ssm_backends

    found: Any = ssm_backends[ACCOUNT][REGION].get_parameter(name)
    return str(found.value)


def _accept_template_urls(changes: Replacements) -> None:
    """Make CloudFormation accept a template's S3 URL as the CDK command line gives it: http://127.0.0.1:PORT/bucket/key.

    moto accepts only `localhost` there. `changes`: records the patch and undoes it.
    """
    from moto.cloudformation import responses, utils

    @changes.wraps(utils, "get_stack_from_s3_url")
    def fetch(old: Any, template_url: str, *rest: Any, **named: Any) -> Any:
        """Return the template at an S3 address, read by moto's function `old` after 127.0.0.1 was replaced by the host name that moto
        accepts.
        """
        return old(template_url.replace("127.0.0.1", "localhost"), *rest, **named)

    changes.replace(responses, "get_stack_from_s3_url", utils.get_stack_from_s3_url)

"""Deletion of stacks: resources that moto does not delete or fails to delete, and buckets that CDK's custom resource empties."""

from typing import Any

from crossover.local.moto_patches.replacing import Replacements
from crossover.local.moto_patches.resource_types import ACCOUNT, MadeResource, ResourceType, WantedResource

_STAYS_EMPTY = "stays_empty"  # our mark on moto's bucket


def resource_types() -> dict[str, ResourceType]:
    """Return {name of the type: its ResourceType} of the CDK's custom resources that this cloud creates itself, at once and without running
    their function: S3AutoDeleteObjects empties its bucket at deletion, VpcRestrictDefaultSG and LogRetention do nothing.

    moto would run them through a thread and a callback, which is unreliable and never deletes them.
    """
    return {
        "Custom::S3AutoDeleteObjects": ResourceType(make=_make_bucket_emptier),
        "Custom::VpcRestrictDefaultSG": ResourceType(make=lambda wanted: MadeResource(wanted.name)),
        "Custom::LogRetention": ResourceType(make=lambda wanted: MadeResource(wanted.name, {"LogGroupName": ""})),
    }


def _make_bucket_emptier(wanted: WantedResource) -> MadeResource:
    """Return the custom resource that empties the bucket named in its properties when the resource is deleted."""
    return MadeResource(wanted.name, remove=lambda: empty_bucket(str(wanted.properties["BucketName"])))


def empty_bucket(bucket: str) -> None:
    """Delete all objects of a bucket in moto with their versions, and mark the bucket so that objects written later are deleted with it.
    Does nothing if there is no such bucket.

    Functions that are still running may write more objects; on AWS, CDK's emptier forbids that by a policy.
    """
    from moto.s3.models import s3_backends

    found = s3_backends[ACCOUNT]["aws"].buckets.get(bucket)
    if found:
        setattr(found, _STAYS_EMPTY, True)
        found.keys.clear()


def install(changes: Replacements) -> None:
    """Install the patches of stack deletion through `changes`: moto then deletes route tables, endpoints, gateways, layers and network
    interfaces, and refuses to delete a bucket that is not empty. Creating an unknown custom resource becomes an error.
    """
    from moto.awslambda.models import LayerVersion, lambda_backends
    from moto.ec2.models import ec2_backends
    from moto.ec2.models.instances import Instance
    from moto.ec2.models.internet_gateways import InternetGateway
    from moto.ec2.models.route_tables import RouteTable
    from moto.ec2.models.vpcs import VPCEndPoint

    @changes.adds(RouteTable, "delete")
    def drop_route_table(self: Any, account_id: str, region: str) -> None:
        """Delete the route table `self` from moto; one that is gone already is no error."""
        ec2_backends[account_id][region].route_tables.pop(self.id, None)

    @changes.adds(VPCEndPoint, "delete")
    def drop_endpoint(self: Any, account_id: str, region: str) -> None:
        """Delete the VPC endpoint `self` and its network interfaces from moto; those that are gone already are no error."""
        backend = ec2_backends[account_id][region]
        backend.vpc_end_points.pop(self.id, None)
        for interface in self.network_interface_ids or []:
            backend.enis.pop(interface, None)

    @changes.adds(InternetGateway, "delete")
    def drop_gateway(self: Any, account_id: str, region: str) -> None:
        """Detach the internet gateway `self` from its VPC and delete it from moto; one that is gone already is no error."""
        self.vpc = None
        ec2_backends[account_id][region].internet_gateways.pop(self.id, None)

    @changes.wraps(Instance, "terminate")
    def terminate(old: Any, self: Any) -> Any:
        """Terminate an instance by moto's method `old`, delete its network interfaces with it, as on AWS, and return the result of `old`,
        the state before.
        """
        interfaces = list(self.nics.values())
        state = old(self)
        for interface in interfaces:
            self.ec2_backend.enis.pop(interface.id, None)
        return state

    @changes.adds(LayerVersion, "delete")
    def drop_layer(self: Any, account_id: str, region: str) -> None:
        """Delete the layer version `self`, and no other version of the layer, from moto."""
        lambda_backends[account_id][region]._layers.delete_layer_version(self.name, str(self.version))

    _refuse_full_buckets(changes)
    _refuse_custom_resources(changes)


def _refuse_full_buckets(changes: Replacements) -> None:
    """Make deleting a bucket that is not empty an error, as on AWS; moto would silently keep the bucket.

    CloudFormation in moto tries again after the bucket's emptier has run. `changes`: records the patch and undoes it.
    """
    from moto.cloudformation.exceptions import ValidationError
    from moto.s3.models import FakeBucket, s3_backends

    @changes.wraps(FakeBucket, "delete_from_cloudformation_json")
    def delete_bucket(
        old: Any, cls: Any, resource_name: str, cloudformation_json: Any, *rest: Any, **named: Any
    ) -> None:
        """Delete a bucket by moto's method `old`; one that is marked for emptying is emptied again until it is gone. Does nothing if there
        is no such bucket. Raises ValidationError if an unmarked bucket holds objects.
        """
        buckets = s3_backends[ACCOUNT]["aws"].buckets
        while bucket := buckets.get(resource_name):
            if getattr(bucket, _STAYS_EMPTY, False):
                bucket.keys.clear()
            elif bucket.keys:
                raise ValidationError(resource_name, f"{resource_name}: the bucket is not empty")
            old(resource_name, cloudformation_json, *rest, **named)


def _refuse_custom_resources(changes: Replacements) -> None:
    """Make an unknown custom resource in a template an error; moto would wait for it. `changes`: records the patch and undoes it."""
    from moto.cloudformation import custom_model
    from moto.cloudformation.exceptions import ValidationError

    def refuse(cls: Any, resource_name: str, cloudformation_json: Any, *rest: Any, **named: Any) -> Any:
        """Raise ValidationError with the type of the unknown custom resource."""
        raise ValidationError(
            resource_name,
            f"{named.get('LogicalId')}: {named.get('ResourceType')} is a custom resource that the local cloud does not know; "
            f"known are {', '.join(sorted(resource_types()))}",
        )

    changes.replace(custom_model.CustomModel, "create_from_cloudformation_json", classmethod(refuse))

"""Everything that AWS's listing APIs show, for comparing an account before and after."""

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

# service, operation, key of the answer, field that names an entry
LISTINGS = [
    ("s3", "list_buckets", "Buckets", "Name"),
    ("cloudformation", "describe_stacks", "Stacks", "StackName"),
    ("lambda", "list_functions", "Functions", "FunctionArn"),
    ("lambda", "list_layers", "Layers", "LayerArn"),
    ("logs", "describe_log_groups", "logGroups", "logGroupName"),
    ("secretsmanager", "list_secrets", "SecretList", "ARN"),
    ("ssm", "describe_parameters", "Parameters", "Name"),
    ("mq", "list_brokers", "BrokerSummaries", "BrokerId"),
    ("scheduler", "list_schedules", "Schedules", "Name"),
    ("stepfunctions", "list_state_machines", "stateMachines", "stateMachineArn"),
    ("iam", "list_roles", "Roles", "RoleName"),
    ("iam", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName"),
    ("iam", "list_policies", "Policies", "Arn"),
    ("autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", "AutoScalingGroupName"),
    ("ec2", "describe_volumes", "Volumes", "VolumeId"),
    ("ec2", "describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"),
    ("ec2", "describe_vpcs", "Vpcs", "VpcId"),
    ("ec2", "describe_subnets", "Subnets", "SubnetId"),
    ("ec2", "describe_route_tables", "RouteTables", "RouteTableId"),
    ("ec2", "describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
    ("ec2", "describe_security_groups", "SecurityGroups", "GroupId"),
    ("ec2", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId"),
    ("ec2", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
    ("ec2", "describe_addresses", "Addresses", "AllocationId"),
]
GLOBAL = ("s3", "iam")
AWSS_OWN = ("/aws/service/", "/cdk-bootstrap/", "cdk-", "arn:aws:iam::aws:")  # the same in every account, or the CDK's


def snapshot(session: Any) -> dict[str, list[str]]:
    """Return the sorted names that each listing shows, by listing; terminated instances apart."""
    found = {
        f"{service} {operation}": sorted(each[field] for each in _entries(session.client(service), operation, key))
        for service, operation, key, field in LISTINGS
    }
    parameters = found["ssm describe_parameters"]
    found["ssm describe_parameters"] = [name for name in parameters if not name.startswith("/aws/service/")]
    found["ec2 instances"] = sorted(each["InstanceId"] for each in _instances(session.client("ec2")))
    return found


Client = Callable[[str, str], Any]  # of a service in a region; the same one each time, since making one takes long


def details(client: Client, regions: tuple[str, ...]) -> dict[str, str]:
    """Return the description of each listed resource as JSON text, with tags, contents of buckets and executions, by its
    region and name.
    """
    return {
        f"{region} {what}": json.dumps(entry, default=str, sort_keys=True)
        for region in regions
        for what, entry in _details(client, region, everywhere=region == regions[0])
    }


def _details(client: Client, region: str, *, everywhere: bool) -> Iterator[tuple[str, Any]]:
    """Yield (name, details) of each resource that AWS's APIs list in a region. `everywhere`: include services that have no region."""
    for service, operation, key, field in LISTINGS:
        if service in GLOBAL and not everywhere:
            continue
        asked = client(service, region)
        for each in _entries(asked, operation, key):
            name = each[field]
            if name.startswith(AWSS_OWN):
                continue
            yield f"{operation} {name}", [each, _more(asked, operation, name)]
    for each in _instances(client("ec2", region)):
        yield f"instance {each['InstanceId']}", each


def _more(client: Any, operation: str, name: str) -> Any:
    """Return what a listing does not show of a resource: tags, contents or executions."""
    if operation == "list_buckets":
        versions = client.list_object_versions(Bucket=name)
        held = [
            [each["Key"], each["VersionId"], hashlib.sha256(_body(client, name, each)).hexdigest()]
            for each in versions.get("Versions", [])
        ]
        return [held, versions.get("DeleteMarkers", []), _bucket_tags(client, name)]
    if operation == "list_functions":
        return client.list_tags(Resource=name)["Tags"]
    if operation == "describe_log_groups":
        return client.list_tags_log_group(logGroupName=name)["tags"]
    if operation == "list_state_machines":
        ended = client.list_executions(stateMachineArn=name)["executions"]
        return [client.list_tags_for_resource(resourceArn=name)["tags"], [each["status"] for each in ended]]
    if operation == "list_roles":
        return client.list_role_tags(RoleName=name)["Tags"]
    return None


def _body(client: Any, bucket: str, version: Any) -> bytes:
    """Return the content of one version of an object."""
    body = client.get_object(Bucket=bucket, Key=version["Key"], VersionId=version["VersionId"])["Body"]
    return bytes(body.read())


def _bucket_tags(client: Any, name: str) -> Any:
    """Return a bucket's tags; [] if it has none."""
    try:
        return client.get_bucket_tagging(Bucket=name)["TagSet"]
    except client.exceptions.ClientError:  # none
        return []


def _entries(client: Any, operation: str, key: str) -> list[Any]:
    """Return all entries of a listing operation, from all of its pages."""
    if client.can_paginate(operation):
        return [each for page in client.get_paginator(operation).paginate() for each in page.get(key, [])]
    return list(getattr(client, operation)()[key])


def _instances(client: Any) -> list[Any]:
    """Return all EC2 instances that are not terminated."""
    reservations = client.describe_instances()["Reservations"]
    found = [each for reservation in reservations for each in reservation["Instances"]]
    return [each for each in found if each["State"]["Name"] != "terminated"]

"""Everything that AWS's listing APIs show, for comparing an account before and after."""

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


def snapshot(session: Any) -> dict[str, list[str]]:
    """Names by listing, sorted; instances that have ended apart."""
    found = {}
    for service, operation, key, field in LISTINGS:
        client = session.client(service)
        if client.can_paginate(operation):
            entries = [each for page in client.get_paginator(operation).paginate() for each in page.get(key, [])]
        else:
            entries = getattr(client, operation)()[key]
        names = sorted(each[field] for each in entries)
        # Parameters below /aws are AWS's own, the same in every account.
        found[f"{service} {operation}"] = [name for name in names if not name.startswith("/aws/service/")]
    reservations = session.client("ec2").describe_instances()["Reservations"]
    instances = [each for reservation in reservations for each in reservation["Instances"]]
    found["ec2 instances"] = [each["InstanceId"] for each in instances if each["State"]["Name"] != "terminated"]
    return found

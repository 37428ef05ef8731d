"""Settings that were changed in the YAML after the stack was made from it: what is deployed is asked, field by field.

A run reads most of its settings when it starts. Those below are the stack's: memory, time-out and package of its functions, types of
instances, buckets. A run that ignored them would be measured as something else than its file says.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from crossover import asl, own_code
from crossover.account.removal import network_exit
from crossover.account.resources import ownership, stacks
from crossover.account.resources.listings import FUNCTION, instances
from crossover.account.resources.ownership import Owner
from crossover.clients import aws_calls
from crossover.costs import infrastructure
from crossover.errors import UserError
from crossover.experiment import Experiment


def check_unchanged(session: Any, experiment: Experiment, *, config: Path) -> None:
    """Raises UserError naming each field that differs, with the command that mends it."""
    owner = ownership.of(session, experiment.project, experiment.name)
    differing = [*_functions(session, experiment, owner), *_instances(session, experiment, owner)]
    differing += [*_broker(session, experiment), *_published(session, experiment)]
    stack = f"{experiment.project}-{experiment.name}"
    differing += [f"function {name}: not in the network" for name in network_exit.outside(session, stack)]
    if differing:
        raise UserError(
            f"{config}: changed since it was deployed: {'; '.join(differing)}; crossover deploy {config} brings the stack up to date"
        )


def _functions(session: Any, experiment: Experiment, owner: Owner) -> Iterator[str]:
    wanted, prefix = infrastructure.of(experiment).memory_mb, f"{experiment.project}-{experiment.name}-"
    deployed: Mapping[str, Mapping[str, Any]] = {
        each["FunctionName"]: each
        for each in aws_calls.entries(session, "lambda", "list_functions", "Functions")
        if each["FunctionName"] in owner.held.get(FUNCTION, ())
    }
    said = set[str]()
    for step, memory_mb in wanted.items():
        found = deployed.get(prefix + step.replace("_", "-"))
        if found is None:
            yield f"function {step}: not deployed"
            continue
        if found["MemorySize"] != memory_mb:
            yield f"functions.memory_mb, {step}: {memory_mb}, deployed {found['MemorySize']}"
        said |= {
            f"functions.{field}: {asked}, deployed {there}"
            for field, asked, there in (
                ("timeout_s", experiment.functions.timeout_s, found["Timeout"]),
                ("packaging", experiment.functions.packaging, _packaging(found)),
            )
            if asked != there
        }
    yield from sorted(said)


def _packaging(function: Mapping[str, Any]) -> str:
    return "image" if function.get("PackageType") == "Image" else "layer"


def _instances(session: Any, experiment: Experiment, owner: Owner) -> Iterator[str]:
    """Database hosts, which the stack names itself, fleets by their launch templates."""
    ec2 = session.client("ec2")
    for fleet in infrastructure.of(experiment).fleets:
        if fleet.purpose == infrastructure.DATABASE:
            types = [each["InstanceType"] for each in instances(session, owner, states=["running"])]
        else:
            types = [
                kind
                for id in owner.ids("AWS::EC2::LaunchTemplate")
                for version in ec2.describe_launch_template_versions(LaunchTemplateId=id, Versions=["$Latest"])[
                    "LaunchTemplateVersions"
                ]
                if (
                    kind := version["LaunchTemplateData"].get("InstanceType")
                )  # hosts' templates hold their image alone
            ]
        if other := sorted(set(types) - {fleet.instance_type}):
            yield f"{fleet.setting}: {fleet.instance_type}, deployed {', '.join(other)}"


def _broker(session: Any, experiment: Experiment) -> Iterator[str]:
    wanted = infrastructure.of(experiment).broker_instance_type
    if wanted is None:
        return
    stack = stacks.look(session, f"{experiment.project}-broker")
    ours = {each["PhysicalResourceId"] for each in ownership.resources(session, stack.id)} if stack else set()
    for each in aws_calls.entries(session, "mq", "list_brokers", "BrokerSummaries"):
        if each["BrokerId"] in ours and each.get("HostInstanceType", wanted) != wanted:
            yield f"network.broker_instance_type: {wanted}, deployed {each['HostInstanceType']}"


def _published(session: Any, experiment: Experiment) -> Iterator[str]:
    found = aws_calls.parameters(session, f"/crossover/{experiment.project}/{experiment.name}/")
    if own_code.fingerprint(experiment) != found.get("own_code", ""):
        yield f"your code ({', '.join(own_code.digests(experiment)) or 'none now'}): its files are others than those deployed"
    if experiment.storage.bucket_per_worker != ("data_buckets" in found):
        asked = str(experiment.storage.bucket_per_worker).lower()
        yield f"storage.bucket_per_worker: {asked}, deployed {str(not experiment.storage.bucket_per_worker).lower()}"
    if machine := found.get("run_machine"):
        text = session.client("stepfunctions").describe_state_machine(stateMachineArn=machine)["definition"]
        ends_s, wanted_s = json.loads(text).get("TimeoutSeconds"), asl.limit_s(experiment)
        if ends_s and ends_s != wanted_s:
            yield f"lifetime.maximum_run_hours: {experiment.lifetime.maximum_run_hours:g}, deployed {ends_s / 3_600:g}"

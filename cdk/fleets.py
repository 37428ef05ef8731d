"""EC2 fleets for programs: peers, GPU workers. Deployed empty; `run` sets the capacity and takes it back.

Instances do not know their rank beforehand: each claims one by a conditional PUT with a lease, under `runs/<id>/`.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aws_cdk import CfnTag, Stack
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from cdk import bundling, grants
from cdk.broker import Broker
from cdk.hosts import CPU_BUILD, boot_script, common_facts, debian_image, image, user_data
from cdk.nag import acknowledge
from cdk.names import arn, boot_log, resource_name
from cdk.network import Network
from cdk.packaging import ROOT
from cdk.step_functions import StepFunctions
from cdk.storage import Storage
from crossover import own_code
from crossover.architecture.instances import Instances, is_burstable
from crossover.experiment import Experiment
from crossover.own_code import packages
from layer.contents import TORCH, pinned


@dataclass(frozen=True, kw_only=True)
class Machines:
    """What the fleet is made of. `image`: an AMI's id; `requirements`: what pip installs into `venv`, which is made where the image has
    none.
    """

    instance_type: str
    image: str
    count: int
    volume_gb: int
    requirements: str
    venv: str = "/opt/crossover/venv"
    spot: bool = False
    groups: Sequence[str] = ()  # security groups beside the programs' own


# What programs import beside torch, in the versions that are tested here; torch in the one that functions have.
PACKAGES = " ".join(sorted(pinned(name.replace("_", "-")) for name in (*packages.DATAPLANE, "boto3")))
CPU_TORCH = f"torch=={TORCH}{CPU_BUILD}"


# AWS's Deep Learning image with PyTorch in the version that functions have, so that no boot fetches gigabytes. On Ubuntu 24.04, whose
# Python is 3.12: that of 22.04 is 3.10, and programs need 3.11. Source: its release notes (python_location: /opt/pytorch/bin/python).
GPU_IMAGE = (
    "/aws/service/deeplearning/ami/x86_64/"
    f"oss-nvidia-driver-gpu-pytorch-{TORCH.rpartition('.')[0]}-ubuntu-24.04/latest/ami-id"
)
GPU_VENV = "/opt/pytorch"


def machines_of(stack: Stack, asked: Instances) -> Machines:
    """On Debian, or with a GPU on AWS's image for it, which has torch."""
    if asked.gpu:
        own = {"image": image(stack, GPU_IMAGE), "requirements": PACKAGES, "venv": GPU_VENV}
    else:
        own = {"image": debian_image(stack, asked.instance_type), "requirements": f"{CPU_TORCH} {PACKAGES}"}
    return Machines(
        instance_type=asked.instance_type, count=asked.count, volume_gb=asked.volume_gb, spot=asked.spot, **own
    )


class Fleet(Construct):
    """An Auto Scaling group, minimum 0 and no desired capacity, whose instances run `module.main`. `name` is the group's."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        experiment: Experiment,
        network: Network,
        machines: Machines,
        module: str,
        environment: Mapping[str, str],
        may: Sequence[grants.Grant],
    ) -> None:
        super().__init__(scope, id)
        self.name = resource_name(experiment, "fleet")
        self._experiment, self._network, self._machines = experiment, network, machines
        code = self._code(module)
        environment = {
            **environment,
            "FLEET": self.name,
            "IDLE_S": str(int(experiment.lifetime.idle_minutes * 60)),
        }
        facts = {
            **common_facts(self, experiment.project, self.name),
            "CODE": code.s3_object_url,
            "VENV": machines.venv,
            "REQUIREMENTS": machines.requirements,
            "PROGRAM": module,
            "MAXIMUM_S": str(int(experiment.lifetime.maximum_run_hours * 3_600)),
            "ENVIRONMENT": "\n".join(f"CROSSOVER_{key}={value}" for key, value in environment.items()),
        }
        template = self._template(self._profile(code, may), user_data(boot_script("program.sh"), facts))
        self._group(template)

    def _code(self, module: str) -> assets.Asset:
        """The files that the program reaches; pip installs whatever package it wants, so nothing is left out."""
        sources = bundling.Sources(ROOT)
        with tempfile.TemporaryDirectory() as folder:
            own = own_code.bundled(self._experiment)
            closure = sources.closure(module, available=sources.wanted(module), own=own.first_party)
            bundling.stage(closure, root=ROOT, out=Path(folder) / "program", own=own.files)
            return assets.Asset(self, "Code", path=str(Path(folder) / "program"))

    def _profile(self, code: assets.Asset, may: Sequence[grants.Grant]) -> iam.CfnInstanceProfile:
        group = arn("autoscaling", f"autoScalingGroup:*:autoScalingGroupName/{self.name}")
        allowed = [
            *may,
            grants.Grant(actions=["s3:GetObject"], resources=[code.bucket.arn_for_objects(code.s3_object_key)]),
            grants.Grant(
                actions=["autoscaling:TerminateInstanceInAutoScalingGroup"],
                resources=[group],
                why="The group's ARN holds an id that is made when it is deployed.",
            ),
            grants.logs(boot_log(self._experiment.project), why="Streams of the hosts' log group."),
            grants.session_manager(),
        ]
        role = grants.role(self, "Role", service="ec2", grants=allowed)
        return iam.CfnInstanceProfile(self, "Profile", roles=[role.role_name])

    def _template(self, profile: iam.CfnInstanceProfile, script: str) -> ec2.CfnLaunchTemplate:
        machines, template = self._machines, ec2.CfnLaunchTemplate
        tags = [CfnTag(key="Name", value=self.name), CfnTag(key="crossover:role", value="program")]
        data = template.LaunchTemplateDataProperty(
            image_id=machines.image,
            instance_type=machines.instance_type,
            iam_instance_profile=template.IamInstanceProfileProperty(arn=profile.attr_arn),
            security_group_ids=[self._network.programs_group, *machines.groups],
            metadata_options=template.MetadataOptionsProperty(
                http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
            ),
            instance_initiated_shutdown_behavior="terminate",
            instance_market_options=template.InstanceMarketOptionsProperty(market_type="spot")
            if machines.spot
            else None,
            # Each family has another default. Standard would slow a peer down to its baseline within the hour; unlimited is on the bill.
            credit_specification=template.CreditSpecificationProperty(cpu_credits="unlimited")
            if is_burstable(machines.instance_type)
            else None,
            block_device_mappings=[
                template.BlockDeviceMappingProperty(
                    device_name="/dev/sda1" if machines.volume_gb >= 100 else "/dev/xvda",
                    ebs=template.EbsProperty(
                        encrypted=True, volume_type="gp3", volume_size=machines.volume_gb, delete_on_termination=True
                    ),
                )
            ],
            tag_specifications=[
                template.TagSpecificationProperty(resource_type=kind, tags=tags) for kind in ("instance", "volume")
            ],
            user_data=script,
        )
        return template(self, "Template", launch_template_data=data)

    def _group(self, template: ec2.CfnLaunchTemplate) -> None:
        """No desired capacity in the template: deploying again must not change what a run has set."""
        group = autoscaling.CfnAutoScalingGroup(
            self,
            "Group",
            auto_scaling_group_name=self.name,
            min_size="0",
            max_size=str(self._machines.count),
            vpc_zone_identifier=[self._network.hosts_subnet],
            launch_template=autoscaling.CfnAutoScalingGroup.LaunchTemplateSpecificationProperty(
                launch_template_id=template.ref, version=template.attr_latest_version_number
            ),
        )
        acknowledge(
            group, {"AwsSolutions-AS3": "The runner that set the capacity watches it; nobody would read notifications."}
        )


def surroundings(
    experiment: Experiment, *, storage: Storage, broker: Broker | None = None, machines: StepFunctions | None = None
) -> tuple[dict[str, str], list[grants.Grant]]:
    """What a program must know and may do: the run's objects, the broker, the machines that it starts. No secret: an ARN to read it by."""
    facts = storage.facts(experiment)
    may = [
        *grants.objects(storage.bucket, storage.data),
        grants.Grant(
            actions=["s3:GetObject"],
            resources=[storage.bucket.arn_for_objects("fleet/*")],
            why="Which run to join: one pointer per fleet.",
        ),
    ]
    if broker:
        facts |= {"BROKER": broker.endpoint, "BROKER_SECRET": broker.secret}
        may.append(grants.secret(broker.secret))
    if machines:
        facts |= {f"MACHINE_{name.upper()}": machine for name, machine in machines.arns.items()}
        may += grants.start_machines(machines.names.values())
    return facts, may

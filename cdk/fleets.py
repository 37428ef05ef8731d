"""EC2 fleets for programs: peers, GPU workers. They are deployed empty; `run` raises the capacity and resets it.

Instances do not know their rank beforehand: each claims one by a conditional PUT with a lease, under `runs/<id>/`.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from aws_cdk import CfnTag, Stack
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from cdk import bundling, grants, organisation
from cdk.broker import Broker
from cdk.hosts import boot_script, choose_image, common_facts, user_data
from cdk.nag import acknowledge
from cdk.names import arn, boot_log, resource_name
from cdk.network import SharedNetwork
from cdk.packaging import ROOT
from cdk.step_functions import StateMachines
from cdk.storage import Buckets
from crossover.experiment import Lifetime
from crossover.user_code import Dependencies
from crossover.workflow.architecture import Instances, is_burstable
from layer import lock

REQUIREMENTS = "requirements.txt"  # in the program's zip

VENV, GPU_VENV = "/opt/crossover/venv", "/opt/pytorch"  # made at boot; the image's own


class ProgramFleet(Construct):
    """An Auto Scaling group whose instances run the `main` of `module`. It is deployed empty. Instances run Debian, or AWS's Deep Learning
    image, which has torch, if they have a GPU.

    A program may access the run's objects and the constructs in `uses`; its environment holds their addresses, and the ARNs of secrets
    instead of the secrets. `user_code`: files of the user's own modules. `identity`: the environment variables by which a program knows its
    experiment; `environment`: further ones. `lifetime`: when an idle program and a hanging run end. `groups`: security groups in addition
    to the programs' own. `facts`: values to publish.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        module: str,
        instances: Instances,
        lifetime: Lifetime,
        identity: Mapping[str, str],
        network: SharedNetwork,
        storage: Buckets,
        user_code: Dependencies | None = None,
        uses: Sequence[Broker | StateMachines] = (),
        groups: Sequence[str] = (),
        environment: Mapping[str, str] = {},
    ) -> None:
        """Build code, role, launch template and Auto Scaling group. `module`: module whose `main` the instances run; `uses`: constructs
        that the program may access; `groups`: further security groups; `environment`: further environment variables. Raises ConfigError if
        the fleet's name would be too long. `identity`: environment variables of the experiment (`ExperimentStack.identity`); `lifetime`: of
        the experiment; `user_code`: files to include, None for none.
        """
        super().__init__(scope, id)
        name = resource_name(self, "fleet")
        self.facts = {"fleet": name}
        self._network, self._name = network, name
        code = self._code(module, user_code or Dependencies(), torch=not instances.gpu)
        told = {**identity, **storage.environment}
        may = [
            *grants.objects(storage.bucket, storage.data),
            grants.Grant(
                actions=["s3:GetObject"],
                resources=[storage.bucket.arn_for_objects("fleet/*")],
                why="Which run to join: one pointer per fleet.",
            ),
        ]
        for part in uses:
            told |= part.environment
            may += part.grants
        if instances.spot:
            told["METADATA"] = "http://169.254.169.254"  # where the program polls for the interruption notice
        told |= {**environment, "FLEET": name, "IDLE_S": str(int(lifetime.idle_minutes * 60))}
        facts = {
            **common_facts(self, network.project, name, instances.instance_type),
            "CODE": code.s3_object_url,
            "VENV": GPU_VENV if instances.gpu else VENV,
            "PROGRAM": module,
            "MAXIMUM_S": str(int(lifetime.maximum_run_hours * 3_600)),
            "ENVIRONMENT": "\n".join(f"CROSSOVER_{key}={value}" for key, value in told.items()),
        }
        script = user_data(boot_script("program.sh"), facts)
        template = self._template(
            instances, self._profile(code, may), script, [network.id_of("programs_group"), *groups]
        )
        self._group(instances, template)

    def _code(self, module: str, user_code: Dependencies, *, torch: bool) -> assets.Asset:
        """Build the asset (zip) with the files that the program in `module` can reach, those of the user's code, and a requirements file
        for pip, with pinned versions and hashes. `torch`: whether that file lists torch, too.
        """
        sources = bundling.Sources(ROOT)
        with tempfile.TemporaryDirectory() as folder:
            closure = sources.collect_files(
                module, available=sources.list_reachable_packages(module), own=user_code.first_party
            )
            bundling.copy_files(closure, root=ROOT, out=Path(folder) / "program", own=user_code.files)
            wanted = lock.lines("packages") + (lock.lines("torch") if torch else [])
            (Path(folder) / "program" / REQUIREMENTS).write_text("\n".join(wanted) + "\n", encoding="utf-8")
            return assets.Asset(self, "Code", path=str(Path(folder) / "program"))

    def _profile(self, code: assets.Asset, may: Sequence[grants.Grant]) -> iam.CfnInstanceProfile:
        """Build the instance profile. `code`: asset that instances read; `may`: permissions in addition to those that every host of a fleet
        needs.
        """
        group = arn("autoscaling", f"autoScalingGroup:*:autoScalingGroupName/{self._name}")
        allowed = [
            *may,
            grants.Grant(actions=["s3:GetObject"], resources=[code.bucket.arn_for_objects(code.s3_object_key)]),
            grants.Grant(
                actions=["autoscaling:TerminateInstanceInAutoScalingGroup"],
                resources=[group],
                why="The group's ARN holds an id that is made when it is deployed.",
            ),
            grants.logs(boot_log(self._network.project), why="Streams of the hosts' log group."),
            grants.session_manager(),
        ]
        roles = [grants.role(self, "Role", service="ec2", grants=allowed).role_name]
        # L1: by another logical id it would be replaced where it stands.
        return iam.CfnInstanceProfile(self, "Profile", roles=roles)

    def _template(
        self, instances: Instances, profile: iam.CfnInstanceProfile, script: str, groups: list[str]
    ) -> ec2.CfnLaunchTemplate:
        """Build the launch template of the instances: image, type, profile, an encrypted disk that is deleted with the instance, and the
        spot market if `instances.spot`. An instance that shuts itself down is terminated. `script`: user data; `groups`: ids of security
        groups.
        """
        template, stack = ec2.CfnLaunchTemplate, Stack.of(self)
        account = organisation.account_of(self)
        tags = [
            CfnTag(key=key, value=value)
            for key, value in {"Name": self._name, "crossover:role": "program", **account.tags}.items()
        ]
        data = template.LaunchTemplateDataProperty(
            image_id=choose_image(stack, instances.instance_type, gpu=instances.gpu),
            instance_type=instances.instance_type,
            iam_instance_profile=template.IamInstanceProfileProperty(arn=profile.attr_arn),
            security_group_ids=groups,
            metadata_options=template.MetadataOptionsProperty(
                http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
            ),
            instance_initiated_shutdown_behavior="terminate",
            instance_market_options=template.InstanceMarketOptionsProperty(market_type="spot")
            if instances.spot
            else None,
            # Each family has another default. Standard would slow a peer down to its baseline within the hour; unlimited is on the bill.
            credit_specification=template.CreditSpecificationProperty(cpu_credits="unlimited")
            if is_burstable(instances.instance_type)
            else None,
            block_device_mappings=[
                template.BlockDeviceMappingProperty(
                    device_name="/dev/sda1" if instances.gpu else "/dev/xvda",
                    ebs=template.EbsProperty(
                        encrypted=True,
                        kms_key_id=account.kms_key,
                        volume_type="gp3",
                        volume_size=instances.volume_gb,
                        delete_on_termination=True,
                    ),
                )
            ],
            tag_specifications=[
                template.TagSpecificationProperty(resource_type=kind, tags=tags) for kind in ("instance", "volume")
            ],
            user_data=script,
        )
        return template(self, "Template", launch_template_data=data)

    def _group(self, instances: Instances, template: ec2.CfnLaunchTemplate) -> None:
        """Build the Auto Scaling group with at most `instances.count` instances.

        It sets no desired capacity, because deploying again must not change what a run has set. Group and launch template are L1
        constructs: L2 needs a whole IVpc, and only the subnet's id is known here.
        """
        group = autoscaling.CfnAutoScalingGroup(
            self,
            "Group",
            auto_scaling_group_name=self._name,
            min_size="0",
            max_size=str(instances.count),
            vpc_zone_identifier=[self._network.id_of("hosts_subnet")],
            launch_template=autoscaling.CfnAutoScalingGroup.LaunchTemplateSpecificationProperty(
                launch_template_id=template.ref, version=template.attr_latest_version_number
            ),
        )
        acknowledge(
            group, {"AwsSolutions-AS3": "The runner that set the capacity watches it; nobody would read notifications."}
        )

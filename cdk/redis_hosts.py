"""Redis with the tensor module, on hosts of their own: one per worker, or one that all share."""

import json
from pathlib import Path

from aws_cdk import CfnMapping, CfnTag, CfnWaitCondition, CfnWaitConditionHandle, RemovalPolicy, Stack, Tags
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3_assets as assets
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from cdk import grants
from cdk.hosts import (
    FIRST_VERSION,
    boot_script,
    common_facts,
    debian_image,
    fingerprint,
    metadata_options,
    standing_image,
    user_data,
)
from cdk.nag import acknowledge
from cdk.names import boot_log, resource_name
from cdk.network import Network
from cdk.storage import Storage
from cdk.unbuilt import PLACEHOLDER, refuse_deployment
from crossover.architecture import instances
from crossover.architecture.instances import processor
from crossover.experiment import Experiment

PORT = 6379
BOOT_TIMEOUT_S = 1_500
PASSWORD_LENGTH = 40


class RedisHosts(Construct):
    """`urls` by rank, `secret_arn` of the password. Each host uploads its certificate to `hosts/redis/<rank>.pem`.

    `built`: the folder with the tensor module for the hosts' processor.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        experiment: Experiment,
        network: Network,
        storage: Storage,
        count: int,
        built: Path,
    ) -> None:
        super().__init__(scope, id)
        self._experiment, self._network, self._storage = experiment, network, storage
        secret = secretsmanager.Secret(
            self,
            "Password",
            description="The password of the experiment's Redis hosts",
            generate_secret_string=secretsmanager.SecretStringGenerator(
                password_length=PASSWORD_LENGTH, exclude_punctuation=True
            ),
            removal_policy=RemovalPolicy.DESTROY,
        )
        acknowledge(secret, {"AwsSolutions-SMG4": "Lives for hours; rotating it would need a function in the VPC."})
        self.secret_arn = secret.secret_arn
        self._module = self._built_module(built)
        database = experiment.database
        image = debian_image(Stack.of(self), database.instance_type)
        self._image = standing_image(self, image, generation=database.image_generation)
        # Once for all hosts: a template has at most 1 MB, and 64 of these scripts would leave no room in it.
        self._script = CfnMapping(self, "Boot", mapping={"redis": {"script": boot_script("redis.sh")}})
        self.instances = [self._host(rank) for rank in range(count)]
        self.urls = [f"rediss://{host.attr_private_ip}:{PORT}" for host in self.instances]

    def _built_module(self, folder: Path) -> assets.Asset:
        """`folder`/tensors-<processor>.so as `make host-module` builds it, or a placeholder that does not deploy."""
        kind = processor(self._experiment.database.instance_type)
        built = folder / f"tensors-{kind}.so"
        if not built.exists():
            what = f"The tensor module for {kind} hosts"
            refuse_deployment(self, "TensorModule", what=what, target=f"host-module PROCESSOR={kind}")
            built = PLACEHOLDER / "python" / "README.txt"
        return assets.Asset(self, "Module", path=str(built.resolve()))

    def _profile(self, rank: int) -> iam.CfnInstanceProfile:
        """Read the module and the password, write its own certificate and the boot's log, answer the session manager. A role for each host:
        one that was broken into must not pass for another.
        """
        module, bucket = self._module, self._storage.bucket
        certificate = bucket.arn_for_objects(f"hosts/redis/{rank}.pem")
        allowed = [
            grants.Grant(actions=["s3:GetObject"], resources=[module.bucket.arn_for_objects(module.s3_object_key)]),
            grants.Grant(actions=["s3:PutObject"], resources=[certificate]),
            grants.secret(self.secret_arn),
            grants.logs(boot_log(self._experiment.project), why="Streams of the hosts' log group."),
            grants.session_manager(),
        ]
        role = grants.role(self, f"Role{rank}", service="ec2", grants=allowed)
        return iam.CfnInstanceProfile(self, f"Profile{rank}", roles=[role.role_name])

    def _host(self, rank: int) -> ec2.CfnInstance:
        """A host, and the wait for its own signal: the deployment fails with the first that does not come up.

        User data run at an instance's first boot alone, and a wait condition counts once. So host, handle and condition carry a fingerprint
        of all that the boot is made of: what changes is another host with a handle of its own, the others stay as they are, with their
        data.
        """
        salt = self._fingerprint(rank)
        handle = CfnWaitConditionHandle(self, f"Ready{rank}{salt}")
        host = self._instance(f"Host{rank}{salt}", rank, handle)
        wait = CfnWaitCondition(self, f"IsReady{rank}{salt}", handle=handle.ref, count=1, timeout=str(BOOT_TIMEOUT_S))
        wait.node.add_dependency(host)
        return host

    def _fingerprint(self, rank: int) -> str:
        """Of the user data but for the address that is signalled to, the image, and the type, whose memory the boot divides up."""
        database, stack = self._experiment.database, Stack.of(self)
        made_of = stack.resolve([self._user_data(rank, signal_url=""), self._image.ref, database.instance_type])
        return fingerprint(json.dumps(made_of), boot_script("redis.sh"))

    def _instance(self, id: str, rank: int, handle: CfnWaitConditionHandle) -> ec2.CfnInstance:
        database = self._experiment.database
        host = ec2.CfnInstance(
            self,
            id,
            launch_template=ec2.CfnInstance.LaunchTemplateSpecificationProperty(
                launch_template_id=self._image.ref, version=FIRST_VERSION
            ),
            instance_type=database.instance_type,
            iam_instance_profile=self._profile(rank).ref,
            subnet_id=self._network.hosts_subnet,
            security_group_ids=[self._network.hosts_group],
            metadata_options=metadata_options(),
            ebs_optimized=True,
            block_device_mappings=[
                ec2.CfnInstance.BlockDeviceMappingProperty(
                    device_name="/dev/xvda",
                    ebs=ec2.CfnInstance.EbsProperty(
                        encrypted=True,
                        volume_type="gp3",
                        volume_size=instances.DATABASE_GB,
                        delete_on_termination=True,
                    ),
                )
            ],
            propagate_tags_to_volume_on_creation=True,
            user_data=self._user_data(rank, signal_url=handle.ref),
            tags=[CfnTag(key="Name", value=resource_name(self._experiment, f"redis-{rank}"))],
        )
        Tags.of(host).add("crossover:role", "redis")
        Tags.of(host).add("crossover:rank", str(rank))
        acknowledge(
            host,
            {
                "AwsSolutions-EC28": "Step records measure the run; minute-wise metrics of a host add nothing.",
                "AwsSolutions-EC29": "Termination protection would stand in the way of an experiment's own deletion.",
            },
        )
        return host

    def _user_data(self, rank: int, *, signal_url: str) -> str:
        facts = {
            **common_facts(self, self._experiment.project, resource_name(self._experiment, f"redis-{rank}")),
            "RANK": str(rank),
            "SIGNAL_URL": signal_url,
            "SECRET": self.secret_arn,
            "MODULE": self._module.s3_object_url,
            "BUCKET": self._storage.bucket.bucket_name,
            "PORT": str(PORT),
            "THREADS": str(self._experiment.database.threads),
        }
        return user_data(self._script.find_in_map("redis", "script"), facts)

"""Redis with the tensor module, on hosts of their own: one per worker, or one that all share."""

import json
from pathlib import Path

from aws_cdk import CfnMapping, CfnTag, CfnWaitCondition, CfnWaitConditionHandle, RemovalPolicy, Stack, Tags
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3_assets as assets
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from cdk import grants, organisation
from cdk.hosts import (
    FIRST_VERSION,
    boot_script,
    common_facts,
    fingerprint,
    image,
    standing_image,
    user_data,
)
from cdk.nag import acknowledge
from cdk.names import boot_log, resource_name
from cdk.network import SharedNetwork
from cdk.storage import Buckets
from cdk.unbuilt import PLACEHOLDER, refuse_deployment
from crossover.architecture import instances
from crossover.architecture.instances import processor
from crossover.experiment import Database

PORT = 6379
BOOT_TIMEOUT_S = 1_500
PASSWORD_LENGTH = 40


class RedisHosts(Construct):
    """`count` hosts. `environment` and `grants`: of who uses them, who finds their URLs by rank. Each host uploads its certificate to
    `hosts/redis/<rank>.pem`. `built`: the folder with the tensor module for the hosts' processor.

    L1, for L2 asks for a whole IVpc, of which deployment resolves the ids of subnet and group alone, and takes no launch template.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        settings: Database,
        count: int,
        network: SharedNetwork,
        storage: Buckets,
        built: Path,
    ) -> None:
        super().__init__(scope, id)
        self._settings, self._network, self._storage = settings, network, storage
        secret = secretsmanager.Secret(
            self,
            "Password",
            description="The password of the experiment's Redis hosts",
            encryption_key=organisation.key(self),
            generate_secret_string=secretsmanager.SecretStringGenerator(
                password_length=PASSWORD_LENGTH, exclude_punctuation=True
            ),
            removal_policy=RemovalPolicy.DESTROY,
        )
        acknowledge(secret, {"AwsSolutions-SMG4": "Lives for hours; rotating it would need a function in the VPC."})
        self.secret_arn = secret.secret_arn
        self._module = self._built_module(built)
        newest = image(Stack.of(self), settings.instance_type, gpu=False)
        self._image = standing_image(self, newest, generation=settings.image_generation)
        # Once for all hosts: a template has at most 1 MB, and 64 of these scripts would leave no room in it.
        self._script = CfnMapping(self, "Boot", mapping={"redis": {"script": boot_script("redis.sh")}})
        hosts = [self._host(rank) for rank in range(count)]
        self.grants = [grants.secret(self.secret_arn), grants.certificates(storage.bucket)]
        self.facts = {
            "redis": " ".join(f"rediss://{host.attr_private_ip}:{PORT}" for host in hosts),
            "redis_secret": self.secret_arn,
            "redis_hosts": " ".join(host.ref for host in hosts),
        }
        self.environment = {
            "REDIS": self.facts["redis"],
            "REDIS_SECRET": self.secret_arn,
            "REDIS_CERTIFICATES": "hosts/redis/",
        }

    def _built_module(self, folder: Path) -> assets.Asset:
        """`folder`/tensors-<processor>.so as `make host-module` builds it, or a placeholder that does not deploy."""
        kind = processor(self._settings.instance_type)
        built = folder / f"tensors-{kind}.so"
        if not built.exists():
            refuse_deployment(
                self,
                "TensorModule",
                what=f"The tensor module for {kind} hosts",
                target=f"host-module PROCESSOR={kind}",
            )
            built = PLACEHOLDER / "python" / "README.txt"
        return assets.Asset(self, "Module", path=str(built.resolve()))

    def _profile(self, rank: int) -> iam.CfnInstanceProfile:
        """Read the module and the password, write its own certificate and the boot's log, answer the session manager. A role for each host:
        one that was broken into must not pass for another.
        """
        module, certificate = self._module, self._storage.bucket.arn_for_objects(f"hosts/redis/{rank}.pem")
        allowed = [
            grants.Grant(actions=["s3:GetObject"], resources=[module.bucket.arn_for_objects(module.s3_object_key)]),
            grants.Grant(actions=["s3:PutObject"], resources=[certificate]),
            grants.secret(self.secret_arn),
            grants.logs(boot_log(self._network.project), why="Streams of the hosts' log group."),
            grants.session_manager(),
        ]
        role = grants.role(self, f"Role{rank}", service="ec2", grants=allowed)
        # L1: by another logical id it would be replaced where it stands.
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
        boot = [self._user_data(rank, signal_url=""), self._image.ref, self._settings.instance_type]
        return fingerprint(json.dumps(Stack.of(self).resolve(boot)), boot_script("redis.sh"))

    def _instance(self, id: str, rank: int, handle: CfnWaitConditionHandle) -> ec2.CfnInstance:
        host = ec2.CfnInstance(
            self,
            id,
            launch_template=ec2.CfnInstance.LaunchTemplateSpecificationProperty(
                launch_template_id=self._image.ref, version=FIRST_VERSION
            ),
            instance_type=self._settings.instance_type,
            iam_instance_profile=self._profile(rank).ref,
            subnet_id=self._network.id_of("hosts_subnet"),
            security_group_ids=[self._network.id_of("hosts_group")],
            metadata_options=ec2.CfnInstance.MetadataOptionsProperty(  # IMDSv2 alone, not reachable from a container or proxy
                http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
            ),
            ebs_optimized=True,
            block_device_mappings=[
                ec2.CfnInstance.BlockDeviceMappingProperty(
                    device_name="/dev/xvda",
                    ebs=ec2.CfnInstance.EbsProperty(
                        encrypted=True,
                        kms_key_id=organisation.of(self).kms_key,
                        volume_type="gp3",
                        volume_size=instances.DATABASE_GB,
                        delete_on_termination=True,
                    ),
                )
            ],
            propagate_tags_to_volume_on_creation=True,
            user_data=self._user_data(rank, signal_url=handle.ref),
            tags=[CfnTag(key="Name", value=resource_name(self, f"redis-{rank}"))],
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
            **common_facts(
                self, self._network.project, resource_name(self, f"redis-{rank}"), self._settings.instance_type
            ),
            "RANK": str(rank),
            "SIGNAL_URL": signal_url,
            "SECRET": self.secret_arn,
            "MODULE": self._module.s3_object_url,
            "BUCKET": self._storage.bucket.bucket_name,
            "PORT": str(PORT),
            "THREADS": str(self._settings.threads),
        }
        return user_data(self._script.find_in_map("redis", "script"), facts)

"""Redis with the tensor module, on hosts of its own: one per worker, or one that all workers share."""

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
    choose_image,
    common_facts,
    fingerprint,
    pin_image,
    user_data,
)
from cdk.nag import acknowledge
from cdk.names import boot_log, resource_name
from cdk.network import SharedNetwork
from cdk.storage import Buckets
from cdk.unbuilt import PLACEHOLDER, refuse_deployment
from crossover.experiment import Database
from crossover.workflow import architecture
from crossover.workflow.architecture import processor

PORT = 6379
BOOT_TIMEOUT_S = 1_500
PASSWORD_LENGTH = 40


class RedisHosts(Construct):
    """`count` EC2 hosts that run Redis with the tensor module, one per worker or one for all. Each host uploads its certificate to
    `hosts/redis/<rank>.pem`.

    `environment` and `grants`: environment variables (with the hosts' rediss:// URLs in the order of ranks, separated by spaces; without
    the prefix CROSSOVER_) and permissions for functions that use them; `facts`: values to publish; `secret_arn`: of the password, one for
    all hosts.

    The hosts are L1 constructs, because L2 needs a whole IVpc, of which only ids are known, and takes no launch template.
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
        """Build `count` hosts with their password. `built`: folder with the built tensor modules."""
        super().__init__(scope, id)
        self._settings, self._network, self._storage = settings, network, storage
        secret = secretsmanager.Secret(
            self,
            "Password",
            description="The password of the experiment's Redis hosts",
            encryption_key=organisation.import_kms_key(self),
            generate_secret_string=secretsmanager.SecretStringGenerator(
                password_length=PASSWORD_LENGTH, exclude_punctuation=True
            ),
            removal_policy=RemovalPolicy.DESTROY,
        )
        acknowledge(secret, {"AwsSolutions-SMG4": "Lives for hours; rotating it would need a function in the VPC."})
        self.secret_arn = secret.secret_arn
        self._module = self._built_module(built)
        newest = choose_image(Stack.of(self), settings.instance_type, gpu=False)
        self._image = pin_image(self, newest, generation=settings.image_generation)
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
        """Return the asset of the Redis module for the hosts' processor, `folder`/tensors-<processor>.so. If `make host-module` has not
        built it, return a placeholder that cannot be deployed.
        """
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
        """Build the instance profile of the host `rank`: it may read the module and the password, write its own certificate and the log of
        its boot, and use the session manager.

        Each host has a role of its own, so that an attacker on one host cannot pretend to be another.
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
        """Build the host `rank`, and a wait condition for its signal: the deployment fails if the host has not booted within 25 minutes.

        User data run only at an instance's first boot, and a wait condition counts only once. So the ids of host, handle and condition
        contain a fingerprint of everything that determines the boot: if it changes, the host is replaced and waited for again. The other
        hosts keep their data.
        """
        salt = self._fingerprint(rank)
        handle = CfnWaitConditionHandle(self, f"Ready{rank}{salt}")
        host = self._instance(f"Host{rank}{salt}", rank, handle)
        wait = CfnWaitCondition(self, f"IsReady{rank}{salt}", handle=handle.ref, count=1, timeout=str(BOOT_TIMEOUT_S))
        wait.node.add_dependency(host)
        return host

    def _fingerprint(self, rank: int) -> str:
        """Return a short hash of what determines the boot of the host `rank`: its user data (without the address to signal to), its image
        and its instance type.
        """
        boot = [self._user_data(rank, signal_url=""), self._image.ref, self._settings.instance_type]
        return fingerprint(json.dumps(Stack.of(self).resolve(boot)), boot_script("redis.sh"))

    def _instance(self, id: str, rank: int, handle: CfnWaitConditionHandle) -> ec2.CfnInstance:
        """Build the EC2 instance of the host `rank`, with its instance profile, an encrypted disk and its tags. `id`: its construct id;
        `handle`: receives the signal at the end of its boot.
        """
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
                        kms_key_id=organisation.account_of(self).kms_key,
                        volume_type="gp3",
                        volume_size=architecture.DATABASE_GB,
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
        """Return the user data (boot script with its variables, base64) of the host `rank`. `signal_url`: where it signals the end of its
        boot.
        """
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

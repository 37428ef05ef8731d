"""An experiment's buckets: `runs/`, `hosts/` and, unless each worker has a bucket of its own, `data/`."""

from aws_cdk import CfnResource, Duration, RemovalPolicy, Stack
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from constructs import Construct

from cdk import grants, organisation
from cdk.nag import acknowledge
from cdk.names import resource_name
from crossover.errors import ConfigError

KEEP_DAYS = 30  # as long as a stack may live (lifetime.ttl_hours)
EMPTIER = "Custom::S3AutoDeleteObjectsCustomResourceProvider"
BUCKET_LIMIT = 20  # names in a function's environment, which holds 4 KB


class Buckets(Construct):
    """The S3 buckets of an experiment. `bucket`: for runs; `data`: list of the buckets with training data, either one for each worker, by
    rank, or only `bucket`. `facts`: values to publish as SSM parameters: "bucket", its name, and, with a bucket for each worker,
    "data_buckets", their names separated by spaces.
    """

    def __init__(self, scope: Construct, id: str, *, bucket_per_worker: bool, workers: int) -> None:
        """Build the bucket for runs and, if `bucket_per_worker`, one for the training data of each of the `workers`. Raises ConfigError if
        these are more than 20, whose names a function's environment could not hold.
        """
        super().__init__(scope, id)
        self.bucket = self._bucket("Runs")
        self.data, self.facts = [self.bucket], {"bucket": self.bucket.bucket_name}
        if bucket_per_worker:
            if workers > BUCKET_LIMIT:
                raise ConfigError(
                    f"storage.bucket_per_worker: {workers} bucket names do not fit into a function's environment; "
                    f"set it to false, or workers to {BUCKET_LIMIT} at most"
                )
            self.data = [self._bucket(f"Data{rank}") for rank in range(workers)]
            self.facts["data_buckets"] = " ".join(bucket.bucket_name for bucket in self.data)
        self._restrict_emptier(resource_name(self, "bucket-emptier"))

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with the buckets' names, for functions and programs that use them, without the prefix CROSSOVER_ of
        their names: BUCKET and, with a bucket for each worker, DATA_BUCKETS, whose names are separated by spaces.
        """
        return {name.upper(): value for name, value in self.facts.items()}

    def _bucket(self, name: str) -> s3.Bucket:
        """Build one bucket, private and encrypted, whose objects expire after 30 days. CDK's custom resource empties it when the stack is
        deleted, and the bucket is deleted then. Its tags are those of all resources of the stack (cdk/guards.py).
        """
        key = organisation.import_kms_key(self)
        bucket = s3.Bucket(
            self,
            name,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            encryption=s3.BucketEncryption.KMS if key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=key,
            bucket_key_enabled=True if key else None,  # a request of the key for many objects, not one for each
            enforce_ssl=True,
            auto_delete_objects=True,
            removal_policy=RemovalPolicy.DESTROY,
            lifecycle_rules=[
                s3.LifecycleRule(
                    expiration=Duration.days(KEEP_DAYS), abort_incomplete_multipart_upload_after=Duration.days(1)
                )
            ],
        )
        acknowledge(
            bucket, {"AwsSolutions-S1": "Access logs would cost more than the data, which is public or recomputable."}
        )
        return bucket

    def _restrict_emptier(self, name: str) -> None:
        """Give CDK's function that empties buckets the name `name` and a log group that is deleted with the stack. Take away its permission
        to create log groups, because it would leave one behind.
        """
        provider = Stack.of(self).node.find_child(EMPTIER)
        group = logs.LogGroup(
            self,
            "EmptierLog",
            log_group_name=f"/aws/lambda/{name}",
            retention=logs.RetentionDays.ONE_DAY,
            removal_policy=RemovalPolicy.DESTROY,
        )
        role, handler = (provider.node.find_child(child) for child in ("Role", "Handler"))
        assert isinstance(role, CfnResource) and isinstance(handler, CfnResource), "CDK's bucket emptier has changed"
        handler.remove_resource_dependency(role)  # its reference implies it
        role.add_property_deletion_override("ManagedPolicyArns")
        allowed = grants.logs(f"/aws/lambda/{name}")
        grants.acknowledge_wildcards(role, allowed)
        statement = {"Effect": "Allow", "Action": allowed.actions, "Resource": allowed.resources}
        role.add_property_override(
            "Policies",
            [{"PolicyName": "Logs", "PolicyDocument": {"Version": "2012-10-17", "Statement": [statement]}}],
        )
        handler.add_property_override("FunctionName", name)
        handler.add_property_override("LoggingConfig", {"LogGroup": group.log_group_name})

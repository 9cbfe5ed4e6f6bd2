"""The stateful stack: the bucket that holds models, the repository that holds images, and the key of both."""

from collections.abc import Mapping

import aws_cdk as cdk
from aws_cdk import RemovalPolicy
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.logs import Logs

# The function that empties the bucket runs for 15 minutes at most; without this a stack waits an hour for it.
_EMPTYING_TIMEOUT_SECONDS = 16 * 60


class ArtifactsStack(cdk.Stack):
    """What must survive a change of everything else; in a removable environment it goes with the stack."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        env: cdk.Environment,
        removable: bool,
        log_retention_days: int,
        customer_managed_key: bool,
        expiring_prefixes: Mapping[str, int],
    ) -> None:
        """`expiring_prefixes`: after how many days the objects under each of these prefixes are deleted."""
        super().__init__(
            scope,
            id_,
            env=env,
            description="Models and images of the decision endpoints",
            termination_protection=not removable,
        )
        removal_policy = RemovalPolicy.DESTROY if removable else RemovalPolicy.RETAIN
        self.key = _key(self, removal_policy) if customer_managed_key else None
        self.bucket = s3.Bucket(
            self,
            "Models",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            encryption=s3.BucketEncryption.KMS if self.key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=self.key,
            bucket_key_enabled=True if self.key else None,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            versioned=True,
            lifecycle_rules=[
                s3.LifecycleRule(id="unfinished-uploads", abort_incomplete_multipart_upload_after=cdk.Duration.days(1)),
                *(_expiry(prefix, days) for prefix, days in expiring_prefixes.items()),
            ],
            auto_delete_objects=removable,
            removal_policy=removal_policy,
        )
        if removable:
            tame_emptying(self.bucket, Logs(retention_days=log_retention_days, key=self.key))
        self.repository = ecr.Repository(
            self,
            "Images",
            encryption=ecr.RepositoryEncryption.KMS if self.key else ecr.RepositoryEncryption.AES_256,
            encryption_key=self.key,
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            image_scan_on_push=True,
            empty_on_delete=removable,
            removal_policy=removal_policy,
        )
        if not removable:
            kept = [f"s3://{self.bucket.bucket_name}", self.repository.repository_uri]
            cdk.CfnOutput(
                self,
                "KeptOnDestroy",
                value=" ".join([*kept, self.key.key_arn] if self.key else kept),
                description="What stays when this stack is deleted, which its protection forbids at first",
            )


def tame_emptying(bucket: s3.Bucket, logs: Logs) -> None:
    """Give the function by which CDK empties its stack's bucket a log group of ours, and its custom resource an end."""
    stack = cdk.Stack.of(bucket)
    provider = stack.node.find_child("Custom::S3AutoDeleteObjectsCustomResourceProvider")
    function = provider.node.find_child("Handler")
    resource = bucket.node.find_child("AutoDeleteObjectsCustomResource").node.default_child
    assert isinstance(function, cdk.CfnResource)  # noqa: S101  what CDK's own code makes, for the type checker
    assert isinstance(resource, cdk.CfnResource)  # noqa: S101
    group = logs.group(stack, "EmptyingLogs")
    function.add_property_override("LoggingConfig.LogGroup", group.log_group_name)
    resource.add_property_override("ServiceTimeout", str(_EMPTYING_TIMEOUT_SECONDS))


def _key(stack: cdk.Stack, removal_policy: RemovalPolicy) -> kms.Key:
    """The environment's own key. Who in the account may use it is said by their policies; CloudWatch Logs has none."""
    key = kms.Key(
        stack,
        "Key",
        description="Models, images, volumes and logs of the decision endpoints",
        enable_key_rotation=True,
        pending_window=cdk.Duration.days(7),
        removal_policy=removal_policy,
    )
    log_groups = stack.format_arn(
        service="logs", resource="log-group", resource_name="*", arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME
    )
    key.add_to_resource_policy(
        iam.PolicyStatement(
            principals=[iam.ServicePrincipal(f"logs.{stack.region}.amazonaws.com")],
            actions=[
                "kms:Encrypt",
                "kms:Decrypt",
                "kms:ReEncryptFrom",
                "kms:ReEncryptTo",
                "kms:GenerateDataKey",
                "kms:GenerateDataKeyWithoutPlaintext",
                "kms:DescribeKey",
            ],
            resources=["*"],  # in a key's policy: this key
            conditions={"ArnLike": {"kms:EncryptionContext:aws:logs:arn": log_groups}},
        )
    )
    return key


def _expiry(prefix: str, days: int) -> s3.LifecycleRule:
    """In a versioned bucket what expires is only hidden: its versions have to go too."""
    return s3.LifecycleRule(
        id=f"expire-{prefix.strip('/').replace('/', '-')}",
        prefix=prefix,
        expiration=cdk.Duration.days(days),
        noncurrent_version_expiration=cdk.Duration.days(1),
    )

"""The stateful stack: the bucket that holds models and the repository that holds images."""

import aws_cdk as cdk
from aws_cdk import RemovalPolicy
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.logs import log_group

# The function that empties the bucket runs for 15 minutes at most; without this a stack waits an hour for it.
_EMPTYING_TIMEOUT_SECONDS = 16 * 60


class ArtifactsStack(cdk.Stack):
    """What must survive a change of everything else; in a removable environment it goes with the stack."""

    def __init__(
        self, scope: Construct, id_: str, *, env: cdk.Environment, removable: bool, log_retention_days: int
    ) -> None:
        super().__init__(scope, id_, env=env, description="Models and images of the decision endpoints")
        removal_policy = RemovalPolicy.DESTROY if removable else RemovalPolicy.RETAIN
        self.bucket = s3.Bucket(
            self,
            "Models",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            encryption=s3.BucketEncryption.S3_MANAGED,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            versioned=True,
            lifecycle_rules=[
                s3.LifecycleRule(id="unfinished-uploads", abort_incomplete_multipart_upload_after=cdk.Duration.days(1)),
            ],
            auto_delete_objects=removable,
            removal_policy=removal_policy,
        )
        if removable:
            self._bind_emptying_function(log_retention_days)
        self.repository = ecr.Repository(
            self,
            "Images",
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            image_scan_on_push=True,
            empty_on_delete=removable,
            removal_policy=removal_policy,
        )

    def _bind_emptying_function(self, log_retention_days: int) -> None:
        """Give CDK's bucket-emptying function a log group of ours, and its custom resource an end."""
        provider = self.node.find_child("Custom::S3AutoDeleteObjectsCustomResourceProvider")
        function = provider.node.find_child("Handler")
        resource = self.bucket.node.find_child("AutoDeleteObjectsCustomResource").node.default_child
        assert isinstance(function, cdk.CfnResource)  # noqa: S101  what CDK's own code makes, for the type checker
        assert isinstance(resource, cdk.CfnResource)  # noqa: S101
        group = log_group(self, "EmptyingLogs", retention_days=log_retention_days)
        function.add_property_override("LoggingConfig.LogGroup", group.log_group_name)
        resource.add_property_override("ServiceTimeout", str(_EMPTYING_TIMEOUT_SECONDS))

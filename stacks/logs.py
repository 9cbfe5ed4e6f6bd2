"""Log groups that belong to a stack, so that retention is set and destroy takes them away."""

from dataclasses import dataclass

from aws_cdk import RemovalPolicy
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

_RETENTION = {
    1: logs.RetentionDays.ONE_DAY,
    3: logs.RetentionDays.THREE_DAYS,
    5: logs.RetentionDays.FIVE_DAYS,
    7: logs.RetentionDays.ONE_WEEK,
    14: logs.RetentionDays.TWO_WEEKS,
    30: logs.RetentionDays.ONE_MONTH,
    60: logs.RetentionDays.TWO_MONTHS,
    90: logs.RetentionDays.THREE_MONTHS,
    120: logs.RetentionDays.FOUR_MONTHS,
    150: logs.RetentionDays.FIVE_MONTHS,
    180: logs.RetentionDays.SIX_MONTHS,
    365: logs.RetentionDays.ONE_YEAR,
}


@dataclass(frozen=True, kw_only=True)
class Logs:
    """How an environment keeps its logs: for how long, and under which key (None: CloudWatch's own)."""

    retention_days: int
    key: kms.IKey | None = None

    def group(self, scope: Construct, id_: str, *, name: str | None = None) -> logs.LogGroup:
        """A log group that goes with its stack; `name` only where AWS writes to a fixed one.

        A group that AWS makes by itself, at the first line, keeps its lines forever and outlives the stack.
        """
        return logs.LogGroup(
            scope,
            id_,
            log_group_name=name,
            retention=_RETENTION[self.retention_days],
            encryption_key=self.key,
            removal_policy=RemovalPolicy.DESTROY,
        )

"""How changes reach production: what a pipeline has to be told."""

from dataclasses import dataclass

from stacks.checks import require, require_match


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A branch, and the two environments through which each of its commits goes: one without approval, one with."""

    # Made once in the console (Developer Tools, Settings, Connections): the handshake with the host takes a browser.
    connection_arn: str
    # As its host spells it: owner/name.
    repository: str
    branch: str = "main"
    # Names of environments.
    staging: str = "staging"
    production: str = "prod"

    def __post_init__(self) -> None:
        require_match(
            r"arn:aws[a-z-]*:(?:codeconnections|codestar-connections):[a-z0-9-]+:\d{12}:connection/[0-9a-f-]{36}",
            "Pipeline.connection_arn",
            self.connection_arn,
            "a connection's ARN: arn:aws:codeconnections:REGION:ACCOUNT:connection/ID",
        )
        require_match(r"[\w.-]+(?:/[\w.-]+)+", "Pipeline.repository", self.repository, "owner/name")
        require_match(r"\w[\w./-]*", "Pipeline.branch", self.branch, "a branch's name")
        require(
            self.staging != self.production, "Pipeline.production", self.production, "another environment than staging"
        )

    @property
    def use_connection(self) -> str:
        """The IAM action that reads through the connection: its prefix has to be that of the ARN, old or new."""
        return f"{self.connection_arn.split(':')[2]}:UseConnection"

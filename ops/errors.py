"""What goes wrong for an operator: one sentence and an exit status each, AWS's own errors included."""

from __future__ import annotations

import botocore.exceptions
from botocore.exceptions import BotoCoreError, ClientError

# The exit statuses of every command, beside 0.
FAILED = 1  # it ran, and a check, a row or a comparison did not pass
USAGE = 2  # the command line or a file that it names is wrong; nothing was done
UNREACHABLE = 3  # AWS, the emulator or the endpoint refused or did not answer


class OpsError(Exception):
    """A command cannot go on; the message is one sentence that says what is wrong, where, and what to do."""

    exit_status = UNREACHABLE


class UsageError(OpsError):
    """What was typed, or a file that it names, is wrong."""

    exit_status = USAGE


class FailedError(OpsError):
    """The command ran to its end, and what it checked is not so."""

    exit_status = FAILED


_NO_CREDENTIALS = (
    "there are no AWS credentials: log in (aws sso login) and set AWS_PROFILE, or set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY"
)
_LOG_IN = "log in again (aws sso login, or new keys) and set AWS_PROFILE"
_ADVICE = {
    "AccessDenied": "the credentials may not do this: ask for the permission",
    "AccessDeniedException": "the credentials may not do this: ask for the permission",
    "UnauthorizedOperation": "the credentials may not do this: ask for the permission",
    "ExpiredToken": f"the credentials have expired: {_LOG_IN}",
    "ExpiredTokenException": f"the credentials have expired: {_LOG_IN}",
    "RequestExpired": "the request is older than AWS allows: set this machine's clock",
    "SignatureDoesNotMatch": "the secret key is wrong, or this machine's clock is: check both",
    "InvalidClientTokenId": f"AWS does not know these credentials: {_LOG_IN}",
    "UnrecognizedClientException": f"AWS does not know these credentials in this region: check both, or {_LOG_IN}",
    "OptInRequired": "the account has not enabled this region: enable it, or choose another",
    "ThrottlingException": "AWS asks for fewer requests: wait a minute and try again",
    "TooManyRequestsException": "AWS asks for fewer requests: wait a minute and try again",
    "RequestLimitExceeded": "AWS asks for fewer requests: wait a minute and try again",
    "ServiceUnavailable": "AWS cannot answer for the moment: try again",
    "InternalFailure": "AWS failed on its side: try again",
}
# The clients' errors, which have no code: the first class that fits.
_CLIENT_ADVICE: tuple[tuple[type[BotoCoreError], str], ...] = (
    (botocore.exceptions.NoCredentialsError, _NO_CREDENTIALS),
    (botocore.exceptions.NoRegionError, "there is no AWS region: set AWS_REGION, or a region in the profile"),
    (botocore.exceptions.ProfileNotFound, "set AWS_PROFILE to one of `aws configure list-profiles`"),
    (botocore.exceptions.TokenRetrievalError, "log in again: aws sso login"),
    (botocore.exceptions.SSOError, "log in again: aws sso login"),
    (botocore.exceptions.EndpointConnectionError, "check the network, the region and --endpoint-url"),
    (botocore.exceptions.HTTPClientError, "check the network, the proxy and --endpoint-url"),
)


def aws_sentence(error: BotoCoreError | ClientError) -> str:
    """What an error of boto3 means for the person who typed the command: its own code and words, and what to do."""
    if not isinstance(error, ClientError):
        said = str(error).strip().rstrip(".")
        advice = next((text for kind, text in _CLIENT_ADVICE if isinstance(error, kind)), None)
        return f"{said}: {advice}" if advice else said
    details = error.response.get("Error", {})
    code, message = str(details.get("Code", "an error without a code")), str(details.get("Message", "")).strip()
    said = f"{error.operation_name} answered {code}" + (f": {message.rstrip('.')}" if message else "")
    return f"{said}; {_ADVICE[code]}" if code in _ADVICE else said

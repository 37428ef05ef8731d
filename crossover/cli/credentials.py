"""AWS's refusals that the user can mend, in plain words."""

from collections.abc import Iterator
from contextlib import contextmanager

from crossover.errors import UserError

EXPIRED = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "AuthFailure",
}
DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}


@contextmanager
def aws_errors_explained() -> Iterator[None]:
    """Raise UserError for missing, expired or insufficient credentials, a missing region, an endpoint that does not answer."""
    from botocore.exceptions import (
        ClientError,
        EndpointConnectionError,
        NoCredentialsError,
        NoRegionError,
        ProfileNotFound,
    )

    try:
        yield
    except NoCredentialsError:
        raise UserError("no AWS credentials; set AWS_PROFILE, or sign in with `aws sso login`") from None
    except NoRegionError:
        raise UserError("no AWS region; set AWS_DEFAULT_REGION, for example us-east-1") from None
    except (ProfileNotFound, EndpointConnectionError) as error:
        raise UserError(f"AWS: {error}") from None
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in EXPIRED:
            raise UserError(f"AWS does not accept the credentials ({code}); sign in again") from None
        if code in DENIED:
            raise UserError(f"AWS: the credentials lack a permission: {error}") from None
        raise


def check_credentials() -> None:
    """Raise UserError unless AWS, or what AWS_ENDPOINT_URL names, knows who is calling."""
    import boto3

    with aws_errors_explained():
        boto3.client("sts").get_caller_identity()

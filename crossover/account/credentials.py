"""AWS's refusals that the user can mend, in plain words."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager

from crossover.clients import aws_calls
from crossover.errors import UserError


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
    except ProfileNotFound as error:
        raise UserError(f"AWS: {error}; AWS_PROFILE names a profile of ~/.aws/config") from None
    except EndpointConnectionError as error:
        raise UserError(f"AWS: {error}{_about_the_region()}") from None
    except ClientError as error:
        code = aws_calls.code_of(error)
        if code in aws_calls.EXPIRED:
            raise UserError(f"AWS does not accept the credentials ({code}); sign in again") from None
        if code in aws_calls.DENIED:
            raise UserError(f"AWS: the credentials lack a permission: {error}") from None
        raise


def _about_the_region() -> str:
    """What to do about an address that does not answer: a region that does not exist has none."""
    import boto3

    session = boto3.Session()
    region, known = session.region_name or "", session.get_available_regions("ec2")
    if region in known:
        return "; is there a network, and is AWS_ENDPOINT_URL unset?"
    near = difflib.get_close_matches(region, known, n=1)
    meant = f"; did you mean {near[0]}" if near else f"; regions are {', '.join(known)}"
    return f"; AWS has no region {region!r}{meant}? AWS_DEFAULT_REGION or the profile names it"


def check_credentials() -> None:
    """Raise UserError unless AWS, or what AWS_ENDPOINT_URL names, knows who is calling."""
    import boto3

    with aws_errors_explained():
        boto3.client("sts").get_caller_identity()

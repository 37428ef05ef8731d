"""Who asks the cloud on this machine: AWS's signatures (version 4), checked as AWS checks them, with keys that are drawn for each cloud.

An access key's id tells who it is and is no secret: the CDK's command line writes it into a cache that everybody may read. Its secret
never travels. Only what the Authorization header signs is let in: nothing here uses addresses that are signed themselves. Source:
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.sts.models import sts_backends

from crossover.local.moto_patches.resource_types import ACCOUNT

OPERATOR = "local"  # the access key of whoever deploys and runs experiments
_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/, ]+)/\d{8}/([^/, ]+)/([^/, ]+)/aws4_request, ?SignedHeaders=([^, ]+), ?Signature=([0-9a-f]{64})"
)


class AccessKeys:
    """The access keys of one cloud: any id has a secret, and so have the temporary ones of a role that somebody with such a key assumed, as
    the CDK's command line does.
    """

    def __init__(self) -> None:
        self._drawn = secrets.token_bytes(32)

    def secret(self, access_key: str) -> str:
        if assumed := sts_backends[ACCOUNT]["aws"].get_assumed_role_from_access_key(access_key):
            return str(assumed.secret_access_key)
        return hmac.digest(self._drawn, access_key.encode(), "sha256").hex()

    def signed(self, environ: Mapping[str, Any], body: Callable[[], bytes]) -> bool:
        """Whether who sent it has the secret of the access key that it names. `environ`: the WSGI request; `body` is read where its
        checksum is not among the headers.
        """
        found = _SIGNED.fullmatch(environ.get("HTTP_AUTHORIZATION", ""))
        if found is None or not environ["RAW_URI"].startswith("/"):
            return False
        access_key, region, service, names, signature = found.groups()
        headers = {name: _header(environ, name) for name in names.split(";")}
        url = f"http://{environ['HTTP_HOST']}{environ['RAW_URI']}"
        data = b"" if "x-amz-content-sha256" in headers else body()
        request = AWSRequest(environ["REQUEST_METHOD"], url, headers, data)
        request.context["timestamp"] = environ.get("HTTP_X_AMZ_DATE", "")
        own = S3SigV4Auth if service == "s3" else SigV4Auth
        signer = own(Credentials(access_key, self.secret(access_key)), service, region)
        expected = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
        return hmac.compare_digest(expected, signature)


def _header(environ: Mapping[str, Any], name: str) -> str:
    key = name.upper().replace("-", "_")
    return str(environ.get(key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}", ""))

"""How AWS's APIs are asked: listings over all their pages, and refusals that are answers."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

# Refusals that the user can mend.
EXPIRED = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "AuthFailure",
}
DENIED = {"AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation"}


def entries(session: Any, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
    """What a listing has below `key`, page by page."""
    for page in session.client(service).get_paginator(operation).paginate(**arguments):
        yield from page.get(key, [])


def code_of(error: Any) -> str:
    """The code of botocore's ClientError."""
    return str(error.response.get("Error", {}).get("Code", ""))


class Tolerating(AbstractContextManager[None]):
    """A refusal with one of these codes, or words, ends the block and nothing else: what was asked for is not there."""

    def __init__(self, *refusals: str) -> None:
        self._refusals = refusals

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        from botocore.exceptions import ClientError

        if not isinstance(error, ClientError):
            return False
        return code_of(error) in self._refusals or any(each in str(error) for each in self._refusals)


def parameter(session: Any, name: str) -> str:
    """Of SSM; "" where there is none."""
    with Tolerating("ParameterNotFound"):
        return str(session.client("ssm").get_parameter(Name=name)["Parameter"]["Value"])
    return ""


def parameters(session: Any, path: str) -> dict[str, str]:
    """All of SSM's below `path`, by what their names add to it."""
    listed = entries(session, "ssm", "get_parameters_by_path", "Parameters", Path=path, Recursive=True)
    return {each["Name"].removeprefix(path): each["Value"] for each in listed}

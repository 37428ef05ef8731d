"""Permissions of functions and fleets: a call that the policies of their template's role do not allow is answered AccessDenied, as on AWS.

The access key of a function or an instance names its role, so that no lookup is needed. Keys of other callers, who deploy and run
experiments, may do everything. Only the actions that steps and programs use are known here; any other action is denied with a message that
names this module.
"""

import fnmatch
import html
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

from crossover.local.moto_patches.resource_types import ACCOUNT

PREFIX = "role."
# X-Amz-Target -> the fields of the request that name the resource
RESOURCES: Mapping[str, tuple[str, ...]] = {
    "secretsmanager:GetSecretValue": ("SecretId",),
    "states:StartExecution": ("stateMachineArn",),
    "states:DescribeExecution": ("executionArn",),
    "states:StopExecution": ("executionArn",),
}
SERVICES = {"secretsmanager": "secretsmanager", "AWSStepFunctions": "states"}
OBJECT_ACTIONS = {"GET": "GetObject", "HEAD": "GetObject", "PUT": "PutObject", "DELETE": "DeleteObject"}


@dataclass(frozen=True)
class ApiCall:
    """An action, such as `s3:GetObject`, and the ARN of the resource that it is applied to, named as in policies."""

    action: str
    resource: str


@dataclass(frozen=True)
class Denied:
    """The HTTP response that refuses a call, in the service's own format. `status`: code and reason, such as `403 Forbidden`;
    `content_type`, `body`: header and bytes of the response.
    """

    status: str
    content_type: str
    body: bytes


def make_access_key(role_arn: str) -> str:
    """Return the access key id for functions and instances with the IAM role `role_arn` (an ARN or a name). It contains the role's name, so
    that requests need no lookup.
    """
    return PREFIX + role_arn.rpartition("/")[2]


def check_permission(environ: Mapping[str, Any], body: Callable[[], bytes]) -> Denied | None:
    """Return the response that refuses a request, if the role named in its access key does not allow the call on every resource that the
    request names; None if it does, or if the key names no role: such a caller may do everything.

    `environ`: the WSGI request; `body`: returns the request's body, called only if the body names the resource. A role that does not exist
    allows nothing.
    """
    credential = str(environ.get("HTTP_AUTHORIZATION", "")).partition("Credential=")[2].split("/")
    if not credential[0].startswith(PREFIX):
        return None
    role = credential[0].removeprefix(PREFIX)
    service = credential[3] if len(credential) > 3 else ""
    calls = list(_list_s3_calls(environ, body) if service == "s3" else _list_json_calls(environ, body, service))
    documents = _read_policies(role)
    for call in calls:
        if not is_allowed(documents, call):
            words = f"role {role} is not authorized to perform {call.action} on {call.resource}"
            return _build_refusal(words, xml=service == "s3")
    return None


def is_allowed(documents: list[Mapping[str, Any]], call: ApiCall) -> bool:
    """Return whether the policy documents allow the call: at least one statement allows it and none denies it.

    Only effects, actions (in any case) and resources are compared, with * and ? as wildcards; conditions count as fulfilled.
    """
    found = False
    for document in documents:
        for statement in _as_list(document["Statement"]):
            actions, resources = _as_list(statement["Action"]), _as_list(statement["Resource"])
            matches = any(fnmatch.fnmatchcase(call.action.lower(), each.lower()) for each in actions)
            if matches and any(fnmatch.fnmatchcase(call.resource, each) for each in resources):
                if statement["Effect"] == "Deny":
                    return False
                found = True
    return found


def _list_s3_calls(environ: Mapping[str, Any], body: Callable[[], bytes]) -> Iterator[ApiCall]:
    """Yield each action and resource of an S3 request: one, or one for each object of a request that deletes several. The bucket is taken
    from the path, as clients send it if the endpoint is an IP address. A method other than GET, HEAD, PUT and DELETE on an object counts as
    s3:PutObject, one other than GET and HEAD on a bucket as s3:METHOD. `body`: returns the request's body; called only if it names objects.
    """
    path, query = unquote(str(environ["PATH_INFO"])), parse_qs(str(environ["QUERY_STRING"]), keep_blank_values=True)
    bucket, _, key = path.lstrip("/").partition("/")
    method, arn = str(environ["REQUEST_METHOD"]), f"arn:aws:s3:::{bucket}"
    if key:
        yield ApiCall(f"s3:{OBJECT_ACTIONS.get(method, 'PutObject')}", f"{arn}/{key}")
    elif method == "POST" and "delete" in query:
        for found in re.findall(rb"<Key>(.*?)</Key>", body()):
            yield ApiCall("s3:DeleteObject", f"{arn}/{html.unescape(found.decode())}")
    else:
        yield ApiCall("s3:ListBucket" if method in ("GET", "HEAD") else f"s3:{method}", arn)


def _list_json_calls(environ: Mapping[str, Any], body: Callable[[], bytes], service: str) -> Iterator[ApiCall]:
    """Yield each action and resource of a request to a service that speaks JSON, such as Secrets Manager: one for each resource that it
    names. An unknown action gets a resource that no policy allows. A resource that the request leaves out is "" in its ApiCall. `body`:
    returns the request's body; `service`: name in actions if the request's target names no known one.
    """
    prefix, _, operation = str(environ.get("HTTP_X_AMZ_TARGET", "")).partition(".")
    action = f"{SERVICES.get(prefix, service)}:{operation}"
    fields = RESOURCES.get(action)
    if fields is None:
        yield ApiCall(action, "(crossover/local/permissions.py does not know which resource this is about)")
        return
    request = json.loads(body() or b"{}")
    for name in fields:
        yield ApiCall(action, str(request.get(name, "")))


def _read_policies(role: str) -> list[Mapping[str, Any]]:
    """Return the policy documents of the role's inline policies, the only kind that the templates create; [] if the role was deleted."""
    from moto.iam.models import iam_backends

    backend = iam_backends[ACCOUNT]["aws"]
    try:
        names = backend.list_role_policies(role)
    except Exception:  # the role went with its stack while the function still worked
        return []
    documents = (backend.get_role_policy(role, name)[1] for name in names)
    return [json.loads(each) if isinstance(each, str) else each for each in documents]


def _as_list(value: Any) -> list[Any]:
    """Return a copy of `value` if it is a list, else a new list with this one value: policies may write either."""
    return list(value) if isinstance(value, list) else [value]


def _build_refusal(words: str, *, xml: bool) -> Denied:
    """Return AccessDenied with the message `words` in the service's format: XML for S3, else JSON."""
    if xml:
        text = f"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>{html.escape(words)}</Message></Error>"
        return Denied("403 Forbidden", "application/xml", text.encode())
    text = json.dumps({"__type": "AccessDeniedException", "message": words, "Message": words})
    return Denied("400 Bad Request", "application/x-amz-json-1.1", text.encode())

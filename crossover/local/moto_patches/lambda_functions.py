"""Lambda: moto passes invocations to crossover.local.lambdas, and keeps properties of templates that it would drop."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from crossover.local.lambdas import Answer, TooLarge, TooManyRequests
from crossover.local.moto_patches.replacing import Replacements
from crossover.local.moto_patches.resource_types import ACCOUNT, REGION, MadeResource, ResourceType, WantedResource

InvokeDeployed = Callable[[Any, bytes, str | None], Answer]  # moto's function, payload, client context
InvokeEvent = Callable[[Any, bytes], str]


def resource_types() -> dict[str, ResourceType]:
    """Return {"AWS::Lambda::Alias": the ResourceType of function aliases}."""
    return {"AWS::Lambda::Alias": ResourceType(make=_make_alias)}


def install(
    changes: Replacements, *, invoke: InvokeDeployed, invoke_event: InvokeEvent, kill_idle: Callable[[str], None]
) -> None:
    """Install the patches of Lambda functions through `changes`.

    `invoke(moto's function, payload, client context)`: runs a function and returns its answer; `invoke_event(moto's function, payload)`:
    starts an asynchronous invocation and returns its request id; `kill_idle(name)`: called when a function is deleted or updated, to end
    its idle processes. Errors TooManyRequests and TooLarge of the first two become HTTP status 429 and 413.
    """
    from moto.awslambda import models

    _patch_invocations(changes, models.LambdaFunction, invoke, invoke_event)
    _keep_properties(changes, models.LambdaFunction, kill_idle)

    @changes.wraps(models.LambdaFunction, "delete")
    def delete(old: Any, self: Any, *rest: Any) -> None:
        """Call `kill_idle` with a function's name, then delete moto's function by moto's method `old`."""
        kill_idle(self.function_name)
        old(self, *rest)


def _patch_invocations(changes: Replacements, function: Any, invoke: InvokeDeployed, invoke_event: InvokeEvent) -> None:
    """Replace moto's way of running functions by `invoke` (synchronous) and `invoke_event` (asynchronous). TooManyRequests is answered with
    HTTP status 429, TooLarge with 413; each answer has the invocation's own request id instead of one of moto's. `function`: moto's class
    of Lambda functions. `changes`: records the patch and undoes it.
    """
    from moto.core import responses
    from moto.core.exceptions import JsonRESTError

    class Throttled(JsonRESTError):
        """The error for too many requests, which moto answers with HTTP status 429."""

        code = 429

    class Large(JsonRESTError):
        """The error for a payload that is too large, which moto answers with HTTP status 413."""

        code = 413

    @changes.replaces(function, "invoke")
    def run(self: Any, body: Any, request_headers: Any, response_headers: Any) -> bytes:
        """Invoke a function with the request's body as event, set the response's headers as Lambda does, and return the payload; b"" for an
        asynchronous invocation. A function's error is named in the header x-amz-function-error. Raises Throttled or Large for a refused
        invocation.
        """
        payload = body.encode() if isinstance(body, str) else (body or b"{}")
        headers = {str(name).lower(): value for name, value in dict(request_headers).items()}
        try:
            if headers.get("x-amz-invocation-type") == "Event":
                response_headers["x-amzn-requestid"] = invoke_event(self, payload)
                return b""
            answer = invoke(self, payload, headers.get("x-amz-client-context"))
        except TooManyRequests as error:
            raise Throttled("TooManyRequestsException", str(error)) from error
        except TooLarge as error:
            raise Large("RequestTooLargeException", str(error)) from error
        response_headers["x-amzn-requestid"] = answer.request_id
        response_headers["x-amz-executed-version"] = "$LATEST"
        response_headers["x-amz-log-result"] = base64.b64encode(answer.log_tail).decode()
        if answer.error:
            response_headers["x-amz-function-error"] = answer.error
        return answer.payload

    @changes.wraps(responses, "gen_amzn_requestid_long")
    def choose_request_id(old: Any, headers: Any = None) -> Any:
        """Return the invocation's own request id, by which its records are found; for other answers the one that moto's function `old`
        makes up. `headers`: headers of the response, which then have the returned id.
        """
        own = (headers or {}).get("x-amzn-requestid")
        made = old(headers)
        if own:
            headers["x-amzn-requestid"] = own
        return own or made


def _keep_properties(changes: Replacements, function: Any, kill_idle: Callable[[str], None]) -> None:
    """Patch moto such that functions keep the tags, log group and architecture of their template, which moto's CloudFormation drops, when
    they are created and when they are updated.

    Updates ignore layers: local functions take third-party packages from this environment. `changes`: records the patch and undoes it;
    `function`: moto's class of functions, which is patched; `kill_idle(name)`: called after each update with the function's name, to end
    its idle processes, which have the old code and environment.
    """

    def complete(made: Any, properties: Mapping[str, Any]) -> Any:
        """Set tags, architecture and log group of the function `made`, in place, from a template's properties, make its timeout and memory
        whole numbers, and return it. If the template has none, there are no tags, the architecture is x86_64, and the log group stays as it
        is.
        """
        made.tags = {tag["Key"]: tag["Value"] for tag in properties.get("Tags", [])}
        made.timeout, made.memory_size = int(made.timeout), int(made.memory_size)
        made.architectures = properties.get("Architectures", ["x86_64"])
        made.logs_group_name = properties.get("LoggingConfig", {}).get("LogGroup", made.logs_group_name)
        return made

    @changes.wraps(function, "create_from_cloudformation_json")
    def create(old: Any, cls: Any, resource_name: str, cloudformation_json: Any, *rest: Any, **named: Any) -> Any:
        """Create moto's function from a template by moto's method `old`, set the properties that moto drops, and return it."""
        made = old(resource_name, cloudformation_json, *rest, **named)
        return complete(made, cloudformation_json["Properties"])

    @changes.wraps(function, "update_from_cloudformation_json")
    def update(old: Any, cls: Any, *rest: Any, cloudformation_json: Any, **named: Any) -> Any:
        """Update moto's function from a template, without its layers, by moto's method `old`; call `kill_idle` with its name, set the
        properties that moto drops, and return it.
        """
        properties = {key: value for key, value in cloudformation_json["Properties"].items() if key != "Layers"}
        made = old(*rest, cloudformation_json={"Properties": properties}, **named)
        kill_idle(made.function_name)  # its processes have the code and the environment that were
        return complete(made, properties)


def _make_alias(wanted: WantedResource) -> MadeResource:
    """Create a function's alias in moto and return it as a resource whose Ref and attribute AliasArn are the alias's ARN. Deleting the
    resource leaves the alias in moto.
    """
    from moto.awslambda.models import lambda_backends

    given = wanted.properties
    backend: Any = lambda_backends[ACCOUNT][REGION]
    alias = backend.create_alias(
        given["Name"], given["FunctionName"], given["FunctionVersion"], given.get("Description", ""), None
    )
    return MadeResource(alias.arn, {"AliasArn": alias.arn})

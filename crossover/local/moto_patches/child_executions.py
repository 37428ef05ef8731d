"""Step Functions: executions that start and wait for others, and what they are told of them.

Source of the semantics: AWS Step Functions Developer Guide, "startExecution.sync:2", and the AWS SDK integrations.
"""

import json
import uuid
from collections.abc import Callable
from typing import Any, cast

from botocore.exceptions import ClientError

from crossover.local.moto_patches.replacing import Replacements


def install(changes: Replacements) -> None:
    _child_executions(changes)
    _sdk_casing(changes)


def _child_executions(changes: Replacements) -> None:
    """startExecution and its .sync:2: within this process, with the service's casing; a closed or different namesake is an error."""
    from moto.stepfunctions.exceptions import ExecutionAlreadyExists, StateMachineDoesNotExist
    from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_sfn import (
        StateTaskServiceSfn,
    )
    from moto.stepfunctions.parser.models import stepfunctions_parser_backends

    def backend(env: Any) -> Any:
        details = env.aws_execution_details
        return stepfunctions_parser_backends[details.account][details.region]

    @changes.replaces(StateTaskServiceSfn, "_eval_service_task")
    def start(
        self: Any, env: Any, resource_runtime_part: Any, normalised_parameters: dict[str, Any], state_credentials: Any
    ) -> None:
        given = {key[:1].upper() + key[1:]: value for key, value in normalised_parameters.items()}
        try:
            child = backend(env).start_execution(
                given["StateMachineArn"], given.get("Name"), given.get("Input") or "{}"
            )
        except ExecutionAlreadyExists as error:
            raise _client_error("ExecutionAlreadyExists", str(error.message), status=400) from error
        except StateMachineDoesNotExist as error:
            raise _client_error("StateMachineDoesNotExist", str(error.message), status=400) from error
        env.stack.append({"ExecutionArn": child.exec_arn, "StartDate": child.start_date.timestamp()})

    def resolver(parsed: bool) -> Callable[..., Callable[[], Any]]:
        def build(
            self: Any, env: Any, resource_runtime_part: Any, normalised_parameters: Any, state_credentials: Any
        ) -> Callable[[], Any]:
            child = backend(env).describe_execution(env.stack.pop()["ExecutionArn"])

            def resolve() -> Any:
                while not child.crossover_end.wait(0.5):
                    if not env.is_running():  # a time-out, or the parent was stopped
                        return None
                described = _described(child, parsed=parsed)
                if described["Status"] != "SUCCEEDED":
                    raise _failed(self, env, described)
                return described

            return resolve

        return build

    changes.replace(StateTaskServiceSfn, "_build_sync_resolver", resolver(parsed=False))
    changes.replace(StateTaskServiceSfn, "_build_sync2_resolver", resolver(parsed=True))


def _described(child: Any, *, parsed: bool) -> dict[str, Any]:
    """DescribeExecution's answer as Step Functions hands it to a state: PascalCase, dates as numbers, .sync:2 with parsed JSON."""
    described = {
        key[:1].upper() + key[1:]: value.timestamp() if hasattr(value, "timestamp") else value
        for key, value in child.to_describe_output().items()
        if value is not None
    }
    described["Status"] = str(getattr(described["Status"], "value", described["Status"]))
    if parsed:
        for key in {"Input", "Output"} & described.keys():
            described[key] = json.loads(described[key])
    return described


def _failed(task: Any, env: Any, described: dict[str, Any]) -> Exception:
    from moto.stepfunctions.parser.api import HistoryEventType, TaskFailedEventDetails
    from moto.stepfunctions.parser.asl.component.common.error_name.failure_event import (
        FailureEvent,
        FailureEventException,
    )
    from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name import StatesErrorName
    from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name_type import StatesErrorNameType

    name = StatesErrorNameType.StatesTaskFailed
    details = TaskFailedEventDetails(
        resource=task._get_sfn_resource(),
        resourceType=task._get_sfn_resource_type(),
        error=name.to_name(),
        cause=json.dumps(described, default=str),
    )
    event = FailureEvent(
        env=env,
        error_name=StatesErrorName(typ=name),
        event_type=HistoryEventType.TaskFailed,
        event_details=cast(Any, {"taskFailedEventDetails": details}),
    )
    failure: Exception = FailureEventException(event)
    return failure


def _sdk_casing(changes: Replacements) -> None:
    """Answers of aws-sdk integrations have PascalCase fields, dates as numbers and bodies as text; moto passes boto's through."""
    from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_aws_sdk import (
        StateTaskServiceAwsSdk,
    )

    @changes.wraps(StateTaskServiceAwsSdk, "_eval_service_task")
    def run(old: Any, self: Any, env: Any, *rest: Any, **named: Any) -> None:
        parameters = named.get("normalised_parameters")
        if parameters is not None and self._get_boto_service_name() == "stepfunctions":
            named["normalised_parameters"] = {key[:1].lower() + key[1:]: value for key, value in parameters.items()}
        old(self, env, *rest, **named)
        env.stack.append(_cased(env.stack.pop()))


def _cased(value: Any) -> Any:
    if isinstance(value, dict):
        return {key[:1].upper() + key[1:]: _cased(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_cased(item) for item in value]
    if hasattr(value, "read"):
        return value.read().decode()
    return value.timestamp() if hasattr(value, "timestamp") else value


def _client_error(code: str, message: str, *, status: int) -> ClientError:
    metadata: Any = {"HTTPStatusCode": status, "RequestId": str(uuid.uuid4())}
    return ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": metadata}, "StartExecution")

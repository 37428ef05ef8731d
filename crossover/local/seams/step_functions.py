"""Step Functions: moto's interpreter made to execute, mended where it differs from the service, and made quick.

Source of the semantics: AWS Step Functions Developer Guide ("startExecution.sync:2", "Map state", "Error handling").
"""

import copy
import functools
import json
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, cast

from botocore.exceptions import ClientError

from crossover.local.lambda_runtime import Answer, TooLarge, TooManyRequests
from crossover.local.seams.replacing import Replacements

Invoke = Callable[[str, bytes], Answer]  # function name or ARN, payload


def install(changes: Replacements, *, invoke: Invoke, client: Callable[[str], Any]) -> None:
    """All of it. `invoke` runs a function in this process; `client(service)` gives a boto3 client of this cloud, made once."""
    _execute(changes)
    _lambda_in_process(changes, invoke)
    _clients(changes, client)
    _named_executions(changes)
    _parsed_once(changes)
    _ends_are_events(changes)
    _child_executions(changes)
    _sdk_casing(changes)
    _waits(changes)
    _failing_children(changes)


def _execute(changes: Replacements) -> None:
    """Templates and API calls alike go to the backend that executes."""
    import moto.stepfunctions.models as models
    from moto.core.config import default_user_config
    from moto.stepfunctions.parser.models import stepfunctions_parser_backends

    changes.set_item(default_user_config, "stepfunctions", {"execute_state_machine": True})
    changes.replace(models, "stepfunctions_backends", stepfunctions_parser_backends)

    def create(old: Any, cls: Any, resource_name: str, cloudformation_json: Any, *rest: Any, **named: Any) -> Any:
        properties = dict(cloudformation_json["Properties"])
        definition = properties["DefinitionString"]
        for name, value in properties.get("DefinitionSubstitutions", {}).items():  # moto leaves them in place
            definition = definition.replace(f"${{{name}}}", str(value))
        properties["DefinitionString"] = definition
        return old(resource_name, {**cloudformation_json, "Properties": properties}, *rest, **named)

    changes.wrap(models.StateMachine, "create_from_cloudformation_json", create)


def _lambda_in_process(changes: Replacements, invoke: Invoke) -> None:
    """A task invokes the function directly: no HTTP, no boto client."""
    from moto.stepfunctions.parser.asl.component.state.exec.state_task import lambda_eval_utils

    def invoke_function(parameters: dict[str, Any], region: str, state_credentials: Any) -> dict[str, Any]:
        payload = parameters.get("Payload") or b"{}"
        try:
            answer = invoke(parameters["FunctionName"], payload if isinstance(payload, bytes) else payload.encode())
        except TooManyRequests as error:
            raise _service_error("Lambda.TooManyRequestsException", error) from error
        except TooLarge as error:
            raise _service_error("Lambda.RequestTooLargeException", error) from error
        response: dict[str, Any] = {
            "StatusCode": 200,
            "ExecutedVersion": "$LATEST",
            "Payload": _decoded(answer.payload),
        }
        if answer.error:
            response["FunctionError"] = answer.error
        return response

    def _service_error(name: str, error: Exception) -> Exception:
        # In the form of a function's error moto names it alike for plain ARNs and for lambda:invoke, as the service does.
        payload = json.dumps({"errorType": name, "errorMessage": str(error)})
        failure: Exception = lambda_eval_utils.LambdaFunctionErrorException("Unhandled", payload)
        return failure

    changes.replace(lambda_eval_utils, "_invoke_lambda_function", invoke_function)


def _decoded(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        return payload.decode(errors="replace")


def _client_error(code: str, message: str, *, status: int) -> ClientError:
    metadata: Any = {"HTTPStatusCode": status, "RequestId": str(uuid.uuid4())}
    return ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": metadata}, "StartExecution")


def _clients(changes: Replacements, client: Callable[[str], Any]) -> None:
    """One boto client per service instead of a new one (tens of milliseconds) per task, pointed at this cloud."""
    import moto.stepfunctions.parser.asl.component.state.exec.state_task.service as services
    from moto.stepfunctions.parser.asl.component.state.exec.state_task.service import (
        state_task_service_aws_sdk,
        state_task_service_sfn,
    )

    def cached(region: str, service: str, state_credentials: Any = None) -> Any:
        return client(service)

    assert services
    for module in (state_task_service_aws_sdk, state_task_service_sfn):
        changes.replace(module, "boto_client_for", cached)


def _named_executions(changes: Replacements) -> None:
    """An execution without a name gets one; moto would give all of them the ARN ending in None."""
    from moto.stepfunctions.parser.models import StepFunctionsParserBackend

    def start(old: Any, self: Any, state_machine_arn: str, name: str | None = None, *rest: Any, **named: Any) -> Any:
        return old(self, state_machine_arn, name or str(uuid.uuid4()), *rest, **named)

    changes.wrap(StepFunctionsParserBackend, "start_execution", start)


def _parsed_once(changes: Replacements) -> None:
    """A definition is parsed once, not per execution: a parse takes longer than most children run, and the result holds no state."""
    from moto.stepfunctions.parser.asl.parse.asl_parser import AmazonStateLanguageParser

    parse = functools.lru_cache(maxsize=64)(AmazonStateLanguageParser.parse)
    changes.replace(AmazonStateLanguageParser, "parse", staticmethod(lambda definition: parse(definition)))


def _ends_are_events(changes: Replacements) -> None:
    """Every execution has an event that is set when it ends: who waits for a child need not poll."""
    from moto.stepfunctions.parser.backend.execution import BaseExecutionWorkerCommunication, Execution

    def start(old: Any, self: Any) -> None:
        self.crossover_end = threading.Event()
        old(self)

    def terminated(old: Any, self: Any) -> None:
        try:
            old(self)
        finally:
            self.execution.crossover_end.set()

    changes.wrap(Execution, "start", start)
    changes.wrap(BaseExecutionWorkerCommunication, "terminated", terminated)


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

    changes.replace(StateTaskServiceSfn, "_eval_service_task", start)
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
    """aws-sdk:sfn integrations give PascalCase fields and dates as numbers, as the service does; moto passes boto's answer through."""
    from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_aws_sdk import (
        StateTaskServiceAwsSdk,
    )

    def run(old: Any, self: Any, env: Any, *rest: Any, **named: Any) -> None:
        parameters = named.get("normalised_parameters")
        if parameters is not None and self._get_boto_service_name() == "stepfunctions":
            named["normalised_parameters"] = {key[:1].lower() + key[1:]: value for key, value in parameters.items()}
        old(self, env, *rest, **named)
        env.stack.append(_cased(env.stack.pop()))

    changes.wrap(StateTaskServiceAwsSdk, "_eval_service_task", run)


def _cased(value: Any) -> Any:
    if isinstance(value, dict):
        return {key[:1].upper() + key[1:]: _cased(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_cased(item) for item in value]
    return value.timestamp() if hasattr(value, "timestamp") else value


def _waits(changes: Replacements) -> None:
    """Wait states measured by a clock that counts fractions: moto rounds down and may wait a second too long."""
    from moto.stepfunctions.parser.asl.component.state.wait.wait_function.wait_function import WaitFunction

    def wait(self: Any, env: Any, wait_seconds: float) -> None:
        end = time.monotonic() + wait_seconds
        while (left := end - time.monotonic()) > 0 and env.is_running():
            env.program_state_event.wait(left)

    changes.replace(WaitFunction, "_wait_interval", wait)


def _failing_children(changes: Replacements) -> None:
    """A failed iteration of a distributed Map fails the Map, as no failure is tolerated by default; moto lets it succeed with null."""
    from moto.stepfunctions.parser.api import ExecutionFailedEventDetails, HistoryEventType
    from moto.stepfunctions.parser.asl.component.common.error_name.failure_event import (
        FailureEvent,
        FailureEventException,
    )
    from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name import StatesErrorName
    from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name_type import StatesErrorNameType
    from moto.stepfunctions.parser.asl.component.state.exec.state_map.iteration.itemprocessor import (
        distributed_item_processor_worker as worker,
    )
    from moto.stepfunctions.parser.asl.eval.program_state import ProgramError

    def job(old: Any, self: Any, env: Any, job: Any) -> None:
        old(self, env=env, job=job)
        state = env.program_state()
        if not isinstance(state, ProgramError):
            return
        name = StatesErrorNameType.StatesExceedToleratedFailureThreshold
        error = copy.copy(state.error) or {}
        cause = (
            "The specified tolerated failure threshold was exceeded. "
            f"The first failure was {error.get('error')}: {error.get('cause')}"
        )
        details = ExecutionFailedEventDetails(error=name.to_name(), cause=cause)
        event = FailureEvent(
            env=env,
            error_name=StatesErrorName(typ=name),
            event_type=HistoryEventType.MapRunFailed,
            event_details=cast(Any, {"executionFailedEventDetails": details}),
        )
        job.job_output = FailureEventException(event)

    changes.wrap(worker.DistributedItemProcessorWorker, "_eval_job", job)

"""Step Functions: moto's interpreter made to execute, mended where it differs from the service, and made quick.

Source of the semantics: AWS Step Functions Developer Guide ("startExecution.sync:2", "Map state", "Error handling").
"""

import copy
import functools
import json
import time
from collections.abc import Callable
from typing import Any, cast

from crossover.local.lambda_runtime import Answer, TooLarge, TooManyRequests
from crossover.local.moto_patches import child_executions, executions
from crossover.local.moto_patches.replacing import Replacements

_LOOK_S = 0.5
InvokeByArn = Callable[[str, bytes], Answer]  # function name or ARN, payload


def install(changes: Replacements, *, invoke: InvokeByArn, client: Callable[[str], Any]) -> None:
    """All of it. `invoke` runs a function in this process; `client(service)` gives a boto3 client of this cloud, made once."""
    _execute(changes)
    _jsonata(changes)
    _lambda_in_process(changes, invoke)
    _clients(changes, client)
    executions.install(changes)
    _parsed_once(changes)
    child_executions.install(changes)
    _waits(changes)
    _stopped_branches(changes)
    _failing_children(changes)


def _execute(changes: Replacements) -> None:
    """Templates and API calls alike go to the backend that executes."""
    import moto.stepfunctions.models as models
    from moto.core.config import default_user_config
    from moto.stepfunctions.parser.models import stepfunctions_parser_backends

    changes.set_item(default_user_config, "stepfunctions", {"execute_state_machine": True})
    changes.replace(models, "stepfunctions_backends", stepfunctions_parser_backends)

    def substituted(resource: Any) -> Any:
        properties = dict(resource["Properties"])
        definition = properties["DefinitionString"]
        for name, value in properties.get("DefinitionSubstitutions", {}).items():  # moto leaves them in place
            definition = definition.replace(f"${{{name}}}", str(value))
        return {**resource, "Properties": {**properties, "DefinitionString": definition}}

    @changes.wraps(models.StateMachine, "create_from_cloudformation_json")
    def create(old: Any, cls: Any, resource_name: str, cloudformation_json: Any, *rest: Any, **named: Any) -> Any:
        return old(resource_name, substituted(cloudformation_json), *rest, **named)

    @changes.wraps(models.StateMachine, "update_from_cloudformation_json")
    def update(old: Any, cls: Any, *rest: Any, cloudformation_json: Any, **named: Any) -> Any:
        return old(*rest, cloudformation_json=substituted(cloudformation_json), **named)


def _jsonata(changes: Replacements) -> None:
    """Expressions are evaluated here; moto wants a Java machine. Only the expiry has some, which tests alone start."""
    from moto.stepfunctions.parser.asl.jsonata import jsonata

    @changes.replaces(jsonata, "_eval_jsonata")
    def evaluate(expression: str) -> Any:
        from jsonata import Jsonata

        try:
            return Jsonata(expression).evaluate(None)
        except Exception as error:  # whatever it says, the state fails with States.QueryEvaluationError
            raise jsonata.JSONataException("UNKNOWN", str(error)) from error


def _lambda_in_process(changes: Replacements, invoke: InvokeByArn) -> None:
    """A task invokes the function directly: no HTTP, no boto client."""
    from moto.stepfunctions.parser.asl.component.state.exec.state_task import lambda_eval_utils

    @changes.replaces(lambda_eval_utils, "_invoke_lambda_function")
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


def _decoded(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        return payload.decode(errors="replace")


def _clients(changes: Replacements, client: Callable[[str], Any]) -> None:
    """One boto client per service instead of a new one (tens of milliseconds) per task, pointed at this cloud."""
    from moto.stepfunctions.parser.asl.component.state.exec.state_task.service import (
        state_task_service_aws_sdk,
        state_task_service_sfn,
    )

    def cached(region: str, service: str, state_credentials: Any = None) -> Any:
        return client(service)

    for module in (state_task_service_aws_sdk, state_task_service_sfn):
        changes.replace(module, "boto_client_for", cached)


def _parsed_once(changes: Replacements) -> None:
    """A definition is parsed once, not per execution, and a path once, not per state: a parse takes longer than most children run, and the
    result holds no state.
    """
    from moto.stepfunctions.parser.asl.parse.asl_parser import AmazonStateLanguageParser
    from moto.stepfunctions.parser.asl.utils import json_path

    paths: Any = json_path
    parse = functools.lru_cache(maxsize=64)(AmazonStateLanguageParser.parse)
    changes.replace(AmazonStateLanguageParser, "parse", staticmethod(lambda definition: parse(definition)))
    changes.replace(json_path, "parse", functools.lru_cache(maxsize=1_024)(paths.parse))


def _waits(changes: Replacements) -> None:
    """Wait states measured by a clock that counts fractions: moto rounds down and may wait a second too long."""
    from moto.stepfunctions.parser.asl.component.state.wait.wait_function.wait_function import WaitFunction

    @changes.replaces(WaitFunction, "_wait_interval")
    def wait(self: Any, env: Any, wait_seconds: float) -> None:
        end = time.monotonic() + wait_seconds
        while (left := end - time.monotonic()) > 0 and env.is_running():
            env.program_state_event.wait(min(left, _LOOK_S))  # moto's event is set for no longer than a moment


def _stopped_branches(changes: Replacements) -> None:
    """A branch of a Parallel that is stopped before its first state is through; in moto its thread dies, and the Parallel waits for it."""
    from moto.stepfunctions.parser.asl.component.state.exec.state_parallel.branch_worker import BranchWorker

    @changes.wraps(BranchWorker, "_thread_routine")
    def routine(old: Any, self: Any) -> None:
        try:
            old(self)
        except RuntimeError:
            if self.env.is_running():
                raise
            self._branch_worker_comm.on_terminated(env=self.env)


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

    @changes.wraps(worker.DistributedItemProcessorWorker, "_eval_job")
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

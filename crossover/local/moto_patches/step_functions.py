"""Step Functions: patches that make moto's interpreter execute, behave as the service does, and run fast. Pauses before retries are those
of the definitions (workflow/state_machines.py).

Source of the semantics: AWS Step Functions Developer Guide ("startExecution.sync:2", "Map state", "Error handling", the AWS SDK
integrations).
"""

import copy
import functools
import json
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from botocore.exceptions import ClientError

from crossover.local.lambdas import Answer, TooLarge, TooManyRequests
from crossover.local.moto_patches.replacing import Replacements

# --- interpreter ------------------------------------------------------------------------------------------------------


_LOOK_S = 0.5
InvokeByArn = Callable[[str, bytes], Answer]  # function name or ARN, payload


def install(changes: Replacements, *, invoke: InvokeByArn, client: Callable[[str], Any]) -> None:
    """Install all patches of Step Functions through `changes`, with which moto really executes state machines, as the service does.

    `invoke(function's name or ARN, payload)`: runs a Lambda function and returns its answer; `client(service)`: returns the shared boto3
    client of this cloud.
    """
    _use_executing_backend(changes)
    _evaluate_jsonata(changes)
    _invoke_in_process(changes, invoke)
    _share_clients(changes, client)
    _serialize_starts(changes)
    _signal_ends(changes)
    _make_stops_reliable(changes)
    _cache_parses(changes)
    _run_children_in_process(changes)
    _convert_sdk_answers(changes)
    _wait_exactly(changes)
    _end_stopped_branches(changes)
    _fail_with_iterations(changes)
    _fix_attempt_keys(changes)


def _use_executing_backend(changes: Replacements) -> None:
    """Use moto's backend that really executes state machines, for templates and API calls, and fill in a template's
    DefinitionSubstitutions. `changes`: records the patch and undoes it.
    """
    import moto.stepfunctions.models as models
    from moto.core.config import default_user_config
    from moto.stepfunctions.parser.models import stepfunctions_parser_backends

    changes.set_item(default_user_config, "stepfunctions", {"execute_state_machine": True})
    changes.replace(models, "stepfunctions_backends", stepfunctions_parser_backends)

    def substitute(resource: Any) -> Any:
        """Return a copy of `resource`, a state machine in a template, with each ${NAME} in its definition replaced by the value in its
        DefinitionSubstitutions. Others stay.
        """
        properties = dict(resource["Properties"])
        definition = properties["DefinitionString"]
        for name, value in properties.get("DefinitionSubstitutions", {}).items():  # moto leaves them in place
            definition = definition.replace(f"${{{name}}}", str(value))
        return {**resource, "Properties": {**properties, "DefinitionString": definition}}

    @changes.wraps(models.StateMachine, "create_from_cloudformation_json")
    def create(old: Any, cls: Any, resource_name: str, cloudformation_json: Any, *rest: Any, **named: Any) -> Any:
        """Create a state machine from a template with its substitutions filled in, by moto's method `old`, and return it."""
        return old(resource_name, substitute(cloudformation_json), *rest, **named)

    @changes.wraps(models.StateMachine, "update_from_cloudformation_json")
    def update(old: Any, cls: Any, *rest: Any, cloudformation_json: Any, **named: Any) -> Any:
        """Update a state machine from a template with its substitutions filled in, by moto's method `old`, and return it."""
        return old(*rest, cloudformation_json=substitute(cloudformation_json), **named)


def _evaluate_jsonata(changes: Replacements) -> None:
    """Install, through `changes`, the evaluation of JSONata expressions by the Python package `jsonata`; moto needs Java for them.

    Only the state machine for expired stacks has such expressions, and only tests start it here.
    """
    from moto.stepfunctions.parser.asl.jsonata import jsonata

    @changes.replaces(jsonata, "_eval_jsonata")
    def evaluate(expression: str) -> Any:
        """Return the value of a JSONata expression. Raises moto's JSONataException if it cannot be evaluated."""
        from jsonata import Jsonata

        try:
            return Jsonata(expression).evaluate(None)
        except Exception as error:  # whatever it says, the state fails with States.QueryEvaluationError
            raise jsonata.JSONataException("UNKNOWN", str(error)) from error


def _invoke_in_process(changes: Replacements, invoke: InvokeByArn) -> None:
    """Make Lambda tasks call `invoke` directly, without HTTP or a boto client, until `changes` are undone; its errors TooManyRequests and
    TooLarge become those of Lambda.
    """
    from moto.stepfunctions.parser.asl.component.state.exec.state_task import lambda_eval_utils

    @changes.replaces(lambda_eval_utils, "_invoke_lambda_function")
    def invoke_function(parameters: dict[str, Any], region: str, state_credentials: Any) -> dict[str, Any]:
        """Invoke a task's function in this process, and return a response like that of Lambda's Invoke API, with the payload parsed from
        JSON. A function's own error is in FunctionError and Payload. Raises moto's error Lambda.TooManyRequestsException or
        Lambda.RequestTooLargeException for a refused invocation. `region` and `state_credentials` are not used.
        """
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
            "Payload": _decode_payload(answer.payload),
        }
        if answer.error:
            response["FunctionError"] = answer.error
        return response

    def _service_error(name: str, error: Exception) -> Exception:
        """Return (not raise) moto's error for a function that Lambda refused to run. `name`: the error's name as Step Functions reports it;
        `error`: has the message.
        """
        # In the form of a function's error moto names it alike for plain ARNs and for lambda:invoke, as the service does.
        payload = json.dumps({"errorType": name, "errorMessage": str(error)})
        failure: Exception = lambda_eval_utils.LambdaFunctionErrorException("Unhandled", payload)
        return failure


def _decode_payload(payload: bytes) -> Any:
    """Return a payload parsed from JSON, or as text if it is no JSON."""
    try:
        return json.loads(payload)
    except ValueError:
        return payload.decode(errors="replace")


def _share_clients(changes: Replacements, client: Callable[[str], Any]) -> None:
    """Give tasks the shared boto3 client of a service of this cloud. `client`: returns it for the service's name.

    moto makes a new one for each task, which takes tens of milliseconds. `changes`: records the patch and undoes it.
    """
    from moto.stepfunctions.parser.asl.component.state.exec.state_task.service import (
        state_task_service_aws_sdk,
        state_task_service_sfn,
    )

    def get_client(region: str, service: str, state_credentials: Any = None) -> Any:
        """Return the shared client of `service`; region and credentials are not used."""
        return client(service)

    for module in (state_task_service_aws_sdk, state_task_service_sfn):
        changes.replace(module, "boto_client_for", get_client)


def _cache_parses(changes: Replacements) -> None:
    """Cache parsed definitions of state machines, and parsed JSON paths, so that each is parsed only once.

    Parsing takes longer than most child executions run, and the results hold no state. `changes`: records the patch and undoes it.
    """
    from moto.stepfunctions.parser.asl.parse.asl_parser import AmazonStateLanguageParser
    from moto.stepfunctions.parser.asl.utils import json_path

    paths: Any = json_path
    parse = functools.lru_cache(maxsize=64)(AmazonStateLanguageParser.parse)
    changes.replace(AmazonStateLanguageParser, "parse", staticmethod(lambda definition: parse(definition)))
    changes.replace(json_path, "parse", functools.lru_cache(maxsize=1_024)(paths.parse))


def _wait_exactly(changes: Replacements) -> None:
    """Make Wait states wait fractions of a second exactly; moto rounds and may wait a second too long. `changes`: records the patch and
    undoes it.
    """
    from moto.stepfunctions.parser.asl.component.state.wait.wait_function.wait_function import WaitFunction

    @changes.replaces(WaitFunction, "_wait_interval")
    def wait(self: Any, env: Any, wait_seconds: float) -> None:
        """Wait for `wait_seconds` seconds, or until the execution is stopped; return without saying which."""
        end = time.monotonic() + wait_seconds
        while (left := end - time.monotonic()) > 0 and env.is_running():
            env.program_state_event.wait(min(left, _LOOK_S))  # moto's event is set for no longer than a moment


def _end_stopped_branches(changes: Replacements) -> None:
    """End a branch of a Parallel state that is stopped before its first state.

    In moto the thread of the branch dies, and the Parallel state waits for it forever. `changes`: records the patch and undoes it.
    """
    from moto.stepfunctions.parser.asl.component.state.exec.state_parallel.branch_worker import BranchWorker

    @changes.wraps(BranchWorker, "_thread_routine")
    def run_branch(old: Any, self: Any) -> None:
        """Run a branch by moto's method `old`. If that raises RuntimeError because the branch is stopped before its first state, report the
        branch as terminated; if the branch still runs, the error is raised.
        """
        try:
            old(self)
        except RuntimeError:
            if self.env.is_running():
                raise
            self._branch_worker_comm.on_terminated(env=self.env)


def _fail_with_iterations(changes: Replacements) -> None:
    """Make a distributed Map state fail if one of its iterations fails, as on AWS, where no failure is tolerated by default.

    In moto the Map succeeds, with null for that iteration. `changes`: records the patch and undoes it.
    """
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
    def evaluate_job(old: Any, self: Any, env: Any, job: Any) -> None:
        """Run one iteration of a distributed Map by moto's method `old`; if it fails, set the iteration's output to the error of the whole
        Map, which is not raised here.
        """
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


def _fix_attempt_keys(changes: Replacements) -> None:
    """Give each state a fixed key under which its retries are counted.

    moto creates the key at its first use: two iterations of a Map that use it at the same time may create two keys, and one of them then
    retries once too often. `changes`: records the patch and undoes it.
    """
    from moto.stepfunctions.parser.asl.component.eval_component import EvalComponent

    changes.replace(EvalComponent, "heap_key", property(lambda component: str(id(component))))


# --- executions -------------------------------------------------------------------------------------------------------
# An execution as several threads see it: started once, listed, described, stopped and ended in one piece. moto runs each in a thread of its
# own, and changes it step by step under the eyes of the requests that ask for it.


_STARTED: weakref.WeakSet[Any] = weakref.WeakSet()
_adding = threading.Lock()
_BEGINS_S = 10.0
_BEGIN_LOOK_S = 0.001


def stop_executions() -> None:
    """Stop all running executions that were started in this process, also those of deleted state machines, which moto no longer lists.

    Their threads end only later: see `join_executions`. Without a stop, one of them may wait for hours.
    """
    with _adding:
        running = [each for each in _STARTED if not each.crossover_end.is_set()]
    for execution in running:
        execution.stop(stop_date=datetime.now(UTC), error=None, cause="its cloud ends")


def join_executions(within_s: float) -> None:
    """Wait for the threads of executions, at most `within_s` seconds in all; moto never joins them. Threads that are still running then,
    such as those that sleep before a retry, are left alone.
    """
    from moto.stepfunctions.parser.utils import TMP_THREADS

    ends = time.monotonic() + within_s
    for thread in list(TMP_THREADS):
        thread.join(max(0.0, ends - time.monotonic()))
    TMP_THREADS[:] = [thread for thread in TMP_THREADS if thread.is_alive()]


def _serialize_starts(changes: Replacements) -> None:
    """Give an execution without a name a random name, and run starts and listings one at a time.

    moto would end the ARN of each such execution in None. Between its search for an execution of the same name and the start, another
    thread would find no execution, or one without a status. `changes`: records the patch and undoes it.
    """
    from moto.stepfunctions.parser.models import StepFunctionsParserBackend

    one_at_a_time = threading.Lock()

    @changes.wraps(StepFunctionsParserBackend, "start_execution")
    def start(old: Any, self: Any, state_machine_arn: str, name: str | None = None, *rest: Any, **named: Any) -> Any:
        """Start an execution by moto's method `old` while no other is being started or listed, and return it; without a name it gets a
        random one.
        """
        with one_at_a_time:
            return old(self, state_machine_arn, name or str(uuid.uuid4()), *rest, **named)

    @changes.wraps(StepFunctionsParserBackend, "list_executions")
    def list_executions(old: Any, self: Any, *arguments: Any, **named: Any) -> Any:
        """List executions by moto's method `old` while none is being started, and return its answer."""
        with one_at_a_time:
            return old(self, *arguments, **named)


def _signal_ends(changes: Replacements) -> None:
    """Set an event, `crossover_end`, when an execution ends, so that waiting for it needs no polling; and set its status only after its
    result. `changes`: records the patch and undoes it.
    """
    from moto.stepfunctions.parser.backend.execution import BaseExecutionWorkerCommunication, Execution

    @changes.wraps(Execution, "start")
    def start(old: Any, self: Any) -> None:
        """Start an execution with an event, `crossover_end`, that is set when it ends, and remember it for `stop_executions`."""
        self.crossover_end = threading.Event()
        old(self)
        with _adding:
            _STARTED.add(self)

    @changes.wraps(BaseExecutionWorkerCommunication, "terminated")
    def terminate(old: Any, self: Any) -> None:
        """Let moto's method `old` store the result of an ended execution in a stand-in, copy it from there onto the execution, the status
        last, and set the execution's event `crossover_end`, even if `old` raises. `self`: moto's object that is told of the end; its
        attribute `execution` is the execution.
        """
        execution = self.execution
        self.execution = end = SimpleNamespace(
            exec_worker=execution.exec_worker
        )  # what moto fills in, the status first
        try:
            old(self)
            for name in sorted(vars(end), key="exec_status".__eq__):
                setattr(execution, name, getattr(end, name))
        finally:
            self.execution = execution
            execution.crossover_end.set()


def _make_stops_reliable(changes: Replacements) -> None:
    """Make an execution that has only just started stoppable, and report a stop at once, as the service does.

    In moto a stop fails before the execution's thread has begun, is lost before the first state, and is reported only when the current
    state has ended, which may take as long as a function runs. `changes`: records the patch and undoes it.
    """
    from moto.stepfunctions.parser.api import ExecutionStatus
    from moto.stepfunctions.parser.asl.eval.program_state import ProgramStopped
    from moto.stepfunctions.parser.backend.execution import Execution

    def has_begun(execution: Any) -> bool:
        """Return whether the execution's thread has reached its first state."""
        env = execution.exec_worker and execution.exec_worker.env
        return bool(env and env.program_state())

    @changes.wraps(Execution, "stop")
    def stop(old: Any, self: Any, stop_date: Any, **said: Any) -> None:
        """Wait until the execution has begun, at most 10 s, stop it by moto's method `old`, and set its status to ABORTED at once. An
        execution that had ended keeps its status. `said`: error and cause, passed on.
        """
        ends = time.monotonic() + _BEGINS_S
        while not has_begun(self) and time.monotonic() < ends:
            self.crossover_end.wait(_BEGIN_LOOK_S)
        old(self, stop_date=stop_date, **said)
        if isinstance(self.exec_worker.env.program_state(), ProgramStopped):
            self.stop_date, self.exec_status = stop_date, ExecutionStatus.ABORTED


# --- child executions -------------------------------------------------------------------------------------------------
# Executions that start and wait for others, and what they are told of them.


def _run_children_in_process(changes: Replacements) -> None:
    """Run startExecution and its .sync and .sync:2 forms within this process, with field names in the service's casing.

    A state machine that does not exist, or an execution of the same name that is closed or differs, is an error. `changes`: records the
    patch and undoes it.
    """
    from moto.stepfunctions.exceptions import ExecutionAlreadyExists, StateMachineDoesNotExist
    from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_sfn import (
        StateTaskServiceSfn,
    )
    from moto.stepfunctions.parser.models import stepfunctions_parser_backends

    def backend(env: Any) -> Any:
        """Return moto's backend for the account and region of a running execution."""
        details = env.aws_execution_details
        return stepfunctions_parser_backends[details.account][details.region]

    @changes.replaces(StateTaskServiceSfn, "_eval_service_task")
    def start(
        self: Any, env: Any, resource_runtime_part: Any, normalised_parameters: dict[str, Any], state_credentials: Any
    ) -> None:
        """Start a child execution for a task and put {"ExecutionArn", "StartDate"} on the interpreter's stack. Raises boto's ClientError
        with the code ExecutionAlreadyExists or StateMachineDoesNotExist.
        """
        given = {key[:1].upper() + key[1:]: value for key, value in normalised_parameters.items()}
        try:
            child = backend(env).start_execution(
                given["StateMachineArn"], given.get("Name"), given.get("Input") or "{}"
            )
        except ExecutionAlreadyExists as error:
            raise _build_client_error("ExecutionAlreadyExists", str(error.message), status=400) from error
        except StateMachineDoesNotExist as error:
            raise _build_client_error("StateMachineDoesNotExist", str(error.message), status=400) from error
        env.stack.append({"ExecutionArn": child.exec_arn, "StartDate": child.start_date.timestamp()})

    def make_resolver(parsed: bool) -> Callable[..., Callable[[], Any]]:
        """Return the function with which moto is to build a waiter for a child execution: `build`, which gets moto's task, the
        interpreter's environment and three further values, and returns the waiter. `parsed`: whether the child's input and output are
        parsed from JSON.
        """

        def build(
            self: Any, env: Any, resource_runtime_part: Any, normalised_parameters: Any, state_credentials: Any
        ) -> Callable[[], Any]:
            """Remove the ARN of the child execution that the task has started from the interpreter's stack, and return a function without
            arguments. That function waits for the child's end and returns the child's description, or None if the parent no longer runs; it
            raises moto's failure event if the child did not succeed.
            """
            child = backend(env).describe_execution(env.stack.pop()["ExecutionArn"])

            def resolve() -> Any:
                """Wait for the child's end and return its description; None if the parent is no longer running. Raises moto's failure event
                if the child did not succeed.
                """
                while not child.crossover_end.wait(0.5):
                    if not env.is_running():  # a time-out, or the parent was stopped
                        return None
                described = _describe_child(child, parsed=parsed)
                if described["Status"] != "SUCCEEDED":
                    raise _build_task_failure(self, env, described)
                return described

            return resolve

        return build

    changes.replace(StateTaskServiceSfn, "_build_sync_resolver", make_resolver(parsed=False))
    changes.replace(StateTaskServiceSfn, "_build_sync2_resolver", make_resolver(parsed=True))


def _describe_child(child: Any, *, parsed: bool) -> dict[str, Any]:
    """Return DescribeExecution's answer for a child execution as Step Functions gives it to a state: PascalCase, dates as numbers.

    `parsed`: whether input and output are parsed from JSON, as for .sync:2. Fields that are None are left out.
    """
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


def _build_task_failure(task: Any, env: Any, described: dict[str, Any]) -> Exception:
    """Return moto's failure event for a `task` whose child execution did not succeed. `described`: the child's description, which becomes
    the cause.
    """
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


def _convert_sdk_answers(changes: Replacements) -> None:
    """Make aws-sdk integrations return their answers as the service does: PascalCase fields, dates as numbers, bodies as text.

    moto returns boto's answers unchanged. `changes`: records the patch and undoes it.
    """
    from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_aws_sdk import (
        StateTaskServiceAwsSdk,
    )

    @changes.wraps(StateTaskServiceAwsSdk, "_eval_service_task")
    def run(old: Any, self: Any, env: Any, *rest: Any, **named: Any) -> None:
        """Run an aws-sdk task with parameter names in the casing that boto expects, and convert its answer."""
        parameters = named.get("normalised_parameters")
        if parameters is not None and self._get_boto_service_name() == "stepfunctions":
            named["normalised_parameters"] = {key[:1].lower() + key[1:]: value for key, value in parameters.items()}
        old(self, env, *rest, **named)
        env.stack.append(_convert_answer(env.stack.pop()))


def _convert_answer(value: Any) -> Any:
    """Return a boto answer as a state receives it: keys in PascalCase, dates as numbers (seconds), bodies as text."""
    if isinstance(value, dict):
        return {key[:1].upper() + key[1:]: _convert_answer(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_convert_answer(item) for item in value]
    if hasattr(value, "read"):
        return value.read().decode()
    return value.timestamp() if hasattr(value, "timestamp") else value


def _build_client_error(code: str, message: str, *, status: int) -> ClientError:
    """Return the error that boto raises for a refused StartExecution. `code`: the service's error code; `status`: of HTTP."""
    metadata: Any = {"HTTPStatusCode": status, "RequestId": str(uuid.uuid4())}
    return ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": metadata}, "StartExecution")

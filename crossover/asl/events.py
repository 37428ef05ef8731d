"""What every task has in common: the fields that it passes on, and what it is tried again for."""

from math import inf
from typing import Any

from crossover.runtime.retries import EXECUTION, STEP, Retries
from crossover.workflow import REPEATED, START

StateDefinition = dict[str, Any]


def _paused(retries: Retries) -> StateDefinition:
    longest = {} if retries.most_s == inf else {"MaxDelaySeconds": retries.most_s}
    how_often = {"IntervalSeconds": retries.first_s, "BackoffRate": 2.0, "MaxAttempts": retries.again}
    return {**how_often, **longest, "JitterStrategy": "FULL"}


# Lambda's transient errors, the one of our own that passes by itself, and what a killed or timed-out environment leaves
# behind. Every other error (StaleAttempt, WaitTimeout, Corrupt, ...) would come again: it ends the execution.
RETRY: list[StateDefinition] = [
    {
        "ErrorEquals": [
            "Lambda.ServiceException",
            "Lambda.AWSLambdaException",
            "Lambda.SdkClientException",
            "Lambda.ClientExecutionTimeoutException",
            "Lambda.TooManyRequestsException",
            "Lambda.Unknown",
            "Runtime.ExitError",
            "Sandbox.Timedout",
            REPEATED.__name__,
        ],
        **_paused(STEP),
    },
]
START_RETRY: list[StateDefinition] = [
    {
        "ErrorEquals": ["StepFunctions.ExecutionLimitExceededException", "StepFunctions.ThrottlingException"],
        **_paused(EXECUTION),
    }
]


def fields(**replaced: str) -> StateDefinition:
    """Parameters that pass the event on, field by field, some replaced by other paths."""
    return {f"{name}.$": replaced.get(name, f"$.{name}") for name in START}

"""What every task has in common: the fields that it passes on, and what it is tried again for."""

from typing import Any

from crossover.workflow import REPEATED, RETRIES, START

State = dict[str, Any]

# Lambda's transient errors, the one of our own that passes by itself, and what a killed or timed-out environment leaves
# behind. Every other error (StaleAttempt, WaitTimeout, Corrupt, ...) would come again: it ends the execution.
RETRY: list[State] = [
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
        "IntervalSeconds": 1,
        "BackoffRate": 2.0,
        "MaxAttempts": RETRIES,
        "MaxDelaySeconds": 30,
        "JitterStrategy": "FULL",
    },
]
START_RETRY: list[State] = [
    {
        "ErrorEquals": ["StepFunctions.ExecutionLimitExceededException", "StepFunctions.ThrottlingException"],
        "IntervalSeconds": 2,
        "BackoffRate": 2.0,
        "MaxAttempts": 8,
        "JitterStrategy": "FULL",
    }
]


def fields(**replaced: str) -> State:
    """Parameters that pass the event on, field by field, some replaced by other paths."""
    return {f"{name}.$": replaced.get(name, f"$.{name}") for name in START}

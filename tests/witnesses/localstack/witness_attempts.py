"""Installed into LocalStack: every state counts its attempts under one key.

LocalStack makes the key when it is first asked for. Two iterations of a Map that fail at once make two keys,
and one of the iterations is repeated once too often.
"""

from localstack.runtime import hooks
from localstack.services.stepfunctions.asl.component.eval_component import EvalComponent


@hooks.on_infra_start()
def count_attempts_under_one_key():
    """Replace the key under which LocalStack counts the attempts of a state."""
    EvalComponent.heap_key = property(lambda component: str(id(component)))

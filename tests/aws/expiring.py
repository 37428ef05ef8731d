"""An experiment whose time is over: whether the schedule has it deleted by itself, or the expiry's machine when it is told to."""

import json

from crossover.errors import print_line
from crossover.running import account, removal
from crossover.runtime import Pauses
from crossover.stores.keys import TIME_FORMAT
from tests.aws.evidence import Evidence

FIRING_WAIT_S = 20 * 60.0  # the schedule looks every 15 minutes
EXPIRY_WAIT_S = 1_800.0
POLL_S = 5.0


def gone(seen: Evidence, stack: str) -> bool:
    """Return whether the schedule has deleted the stack; waits up to FIRING_WAIT_S until the deletion starts, then until it ends."""
    return fired(seen, stack) and not removal.wait_for_stack(seen.session, stack)


def fired(seen: Evidence, name: str) -> bool:
    """Return whether the stack is deleted, or its deletion has started, within FIRING_WAIT_S."""
    pause = Pauses(POLL_S, within_s=FIRING_WAIT_S)
    while (stack := account.find_stack(seen.session, name)) and not stack.state.startswith("DELETE_"):
        if not pause():
            return False
    return True


def tell_expiry(seen: Evidence) -> bool:
    """Start the expiry's machine with the moment at which this experiment expires, as the schedule does later, and return True if its
    execution ended. Returns False if stack, expiry or machine are missing, or after EXPIRY_WAIT_S.
    """
    stack, arn = (
        account.find_stack(seen.session, seen.stack),
        seen.state_machines.get(f"{seen.experiment.project}-expiry"),
    )
    if stack is None or stack.expires_at is None or arn is None:
        return False
    print_line("telling the expiry's machine that the experiment's time is over")
    states, pause = seen.client("stepfunctions"), Pauses(1.0, within_s=EXPIRY_WAIT_S)
    moment = stack.expires_at.strftime(TIME_FORMAT)
    started = states.start_execution(stateMachineArn=arn, input=json.dumps({"now": moment}))
    while states.describe_execution(executionArn=started["executionArn"])["status"] == "RUNNING":
        if not pause():
            return False
    return True

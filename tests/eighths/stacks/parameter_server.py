"""The parameter server: functions, and one database host that all workers share."""

from cdk.experiment_stack import functions_stack
from functions.parameter_server import ARCHITECTURE

STACK = functions_stack(ARCHITECTURE)

"""MLLess: long functions and a supervisor that meet in one shared Redis host; an exchange on the broker announces updates."""

from cdk.experiment_stack import functions_stack
from functions.mlless import ARCHITECTURE

STACK = functions_stack(ARCHITECTURE)

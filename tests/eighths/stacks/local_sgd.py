"""Local SGD: long functions that meet in one shared Redis host."""

from cdk.experiment_stack import functions_stack
from functions.local_sgd import ARCHITECTURE

STACK = functions_stack(ARCHITECTURE)

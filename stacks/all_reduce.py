"""AllReduce: long functions that meet in one shared Redis host, or in the bucket alone where the YAML says so."""

from cdk.experiment_stack import functions_stack
from functions.all_reduce import ARCHITECTURE

STACK = functions_stack(ARCHITECTURE)

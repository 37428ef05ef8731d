"""SPIRT: every worker has its own database host, which averages its gradients and updates its model; a queue joins the peers."""

from cdk.experiment_stack import functions_stack
from functions.spirt import ARCHITECTURE

STACK = functions_stack(ARCHITECTURE)

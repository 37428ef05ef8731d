"""One worker: a function outside any network, or an instance; both beside a bucket."""

from cdk.experiment_stack import functions_stack
from peers.single import ARCHITECTURE

STACK = functions_stack(ARCHITECTURE)

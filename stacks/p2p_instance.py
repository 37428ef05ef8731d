"""P2P without Lambda: one EC2 instance per peer; their mailboxes on the broker."""

from cdk.experiment_stack import functions_stack
from peers.p2p_instance import ARCHITECTURE

STACK = functions_stack(ARCHITECTURE)

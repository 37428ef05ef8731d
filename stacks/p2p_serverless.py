"""P2P with Lambda: a small EC2 instance per peer, whose state machine computes its batches side by side in functions.

The functions use S3 alone and so stay outside the VPC.
"""

from cdk.experiment_stack import functions_stack
from peers.p2p_serverless import ARCHITECTURE

STACK = functions_stack(ARCHITECTURE)

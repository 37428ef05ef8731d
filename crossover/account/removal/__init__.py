"""Around a deletion: what works in the stack is stopped, functions leave the network, and what is left behind goes."""

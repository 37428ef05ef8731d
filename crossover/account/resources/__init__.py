"""What stands in an account: its stacks, listings of every type of resource, and whom each resource belongs to."""

"""What stands in an account: stacks, whose every resource is, and listings of all there is."""

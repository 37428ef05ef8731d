"""What architectures share while they train: where a run stands, a gradient, agreement on what follows, attempts and checkpoints.

What only one architecture needs is in its own room, `functions/<name>` or `peers/<name>`, which imports from here and never the other way.
"""

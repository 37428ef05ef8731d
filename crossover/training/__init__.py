"""Training code that several architectures share: a run's position, gradients, agreement between workers, attempts, checkpoints.

Code of a single architecture is in `functions/<name>` or `peers/<name>`. Those packages import from here; this package never imports from
them.
"""

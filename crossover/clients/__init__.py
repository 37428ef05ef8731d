"""How a process comes to its stores, bus and state machines: in memory for a run in this process, by its environment for all others.

The only place where a step's surroundings are put together. What stores and buses are is in `dataplane/`; `crossover/context` hands them
to steps and counts what they move.
"""

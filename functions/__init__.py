"""Architectures made of Lambda functions: a module or folder each, with its steps and `ARCHITECTURE`, which holds the tree of its run.

torch is imported where a step computes, never at the top of a module: a step without it starts in a fraction of the time.
"""

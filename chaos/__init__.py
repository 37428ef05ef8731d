"""A virtual world: the real workflow, steps and programs as greenlets on one virtual clock, over the real clients and fakes of their wires.

The same seed gives the same history, so that a schedule of faults that breaks a promise can be run again, made smaller, and read.
"""

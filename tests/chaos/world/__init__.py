"""A virtual world: the real workflow, steps and programs as greenlets on one virtual clock, over the data
plane's own clients, whose servers are in this process.

The same seed gives the same history, so that a schedule of faults that breaks a promise can be run again, made smaller, and read.
"""

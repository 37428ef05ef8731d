"""Dollars: from a run's records, and from what stood around it, to the lines of a bill, by AWS's rules and by the papers' formulas.

Functions and programs judge a budget with it, the simulation prices what it projects, reports show it. It reads records and draws nothing.
"""

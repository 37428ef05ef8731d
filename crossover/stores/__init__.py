"""Stores, databases, message buses and the keys that everything lies under: protocols, and one module per implementation.

An implementation knows its server and nothing of training. `connecting.py` chooses one by URL; `tests/conformance/` holds each to the same
suite. `clients.py` gives a process its stores, in memory or as its environment says.
"""

"""Crossover: one training job on seven architectures, serverless and GPU, measured in one way.

docs/architecture.md has a map of the packages; tests/unit/test_structure.py says who may import whom.
"""

__version__ = "0.1.0"

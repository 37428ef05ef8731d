"""Crossover: one training job on seven architectures, serverless and GPU, measured in one way."""

__version__ = "0.1.0"

"""The compared architectures: what each declares (declaration.py), how one is found by its name (loading.py), which machines its programs
need (instances.py), and what else its experiment needs (infrastructure.py).
"""

from crossover.architecture.declaration import CLAIMS, EXCHANGES, Architecture, Program, steps, trees
from crossover.architecture.loading import (
    PACKAGES,
    ROOT,
    architecture_of,
    architectures,
    imported,
    load,
    sections,
    training_architectures,
)

__all__ = [
    "CLAIMS",
    "EXCHANGES",
    "PACKAGES",
    "ROOT",
    "Architecture",
    "Program",
    "architecture_of",
    "architectures",
    "imported",
    "load",
    "sections",
    "steps",
    "training_architectures",
    "trees",
]

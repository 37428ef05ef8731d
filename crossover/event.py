"""The state that travels from step to step; crossover/workflow.py says what it consists of."""

from typing import Any

Event = dict[str, Any]

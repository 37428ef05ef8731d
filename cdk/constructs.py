"""What the stacks of experiments are made of, by one import."""

from cdk.broker import Broker
from cdk.experiment_stack import ExperimentStack, Props
from cdk.fleets import Fleet
from cdk.functions import Functions
from cdk.guards import Budget
from cdk.layers import Layers
from cdk.network import Network
from cdk.redis_hosts import RedisHosts
from cdk.step_functions import StepFunctions
from cdk.storage import Storage

__all__ = [
    "Broker",
    "Budget",
    "ExperimentStack",
    "Fleet",
    "Functions",
    "Layers",
    "Network",
    "Props",
    "RedisHosts",
    "StepFunctions",
    "Storage",
]

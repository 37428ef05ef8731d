"""The constructs that the stacks of experiments consist of, in one import."""

from cdk.broker import Broker
from cdk.experiment_stack import ExperimentStack, Props
from cdk.fleets import ProgramFleet
from cdk.functions import LambdaFunctions
from cdk.guards import Budget
from cdk.layers import Layers
from cdk.network import SharedNetwork
from cdk.redis_hosts import RedisHosts
from cdk.step_functions import StateMachines
from cdk.storage import Buckets

__all__ = [
    "Broker",
    "Buckets",
    "Budget",
    "ExperimentStack",
    "LambdaFunctions",
    "Layers",
    "ProgramFleet",
    "Props",
    "RedisHosts",
    "SharedNetwork",
    "StateMachines",
]

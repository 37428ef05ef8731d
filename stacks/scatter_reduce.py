"""ScatterReduce of LambdaML: workers exchange through the same stores as AllReduce's, but in chunks."""

from functions.scatter_reduce import ARCHITECTURE
from stacks.all_reduce import AllReduceStack


class ScatterReduceStack(AllReduceStack):
    """The stack of ScatterReduce: the same resources as AllReduce's, with functions and state machines for ScatterReduce's tree."""

    architecture = ARCHITECTURE


STACK = ScatterReduceStack

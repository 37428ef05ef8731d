"""ScatterReduce of LambdaML: workers exchange through the same stores as AllReduce's, but in chunks."""

from functions.scatter_reduce import ARCHITECTURE
from stacks.all_reduce import AllReduceStack


class ScatterReduceStack(AllReduceStack):
    """AllReduce's stack, with the functions and state machines of another tree."""

    architecture = ARCHITECTURE


STACK = ScatterReduceStack

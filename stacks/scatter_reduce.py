"""ScatterReduce of LambdaML: workers meet where AllReduce's do; only what they leave there is cut into chunks."""

from functions.scatter_reduce import ARCHITECTURE
from stacks.all_reduce import AllReduceStack


class ScatterReduceStack(AllReduceStack):
    """AllReduce's stack, with the functions and state machines of another tree."""

    architecture = ARCHITECTURE


STACK = ScatterReduceStack

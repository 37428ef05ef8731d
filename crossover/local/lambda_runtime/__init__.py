"""AWS Lambda on one machine: the Invoke semantics in front, the Runtime API behind, AWS's own runtime client in every worker."""

from crossover.local.lambda_runtime.function import Answer, Function, TooLarge, TooManyRequests
from crossover.local.lambda_runtime.service import Lambdas
from crossover.local.lambda_runtime.zygotes import Runtime

__all__ = ["Answer", "Function", "Lambdas", "Runtime", "TooLarge", "TooManyRequests"]

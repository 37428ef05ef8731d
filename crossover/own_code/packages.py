"""Python packages by where they come from: this project's own, and those that every function and program has beside it."""

FIRST_PARTY = ("crossover", "functions", "peers")  # what functions and programs may hold
PROJECT = frozenset({*FIRST_PARTY, "cdk", "stacks", "layer", "app"})
RUNTIME = frozenset({"boto3", "botocore", "awslambdaric"})  # Lambda's python3.13 brings them
DATAPLANE = frozenset({"pika", "safetensors", "annotated_types", "tenacity"})
TORCH = frozenset({"torch"})
COMPUTING = (
    RUNTIME | DATAPLANE | TORCH | {"typing_extensions"}
)  # what a function that computes can import, and a program

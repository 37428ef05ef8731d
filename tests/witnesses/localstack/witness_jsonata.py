"""Installed into LocalStack: expressions in JSONata are evaluated here. Its own evaluator wants a Java machine."""

from jsonata import Jsonata
from localstack.runtime import hooks
from localstack.services.stepfunctions.asl.jsonata import jsonata


def evaluate(expression):
    """Return the value of a JSONata expression, evaluated without Java. Raises JSONataException, so that the state fails with
    States.QueryEvaluationError.
    """
    try:
        return Jsonata(expression).evaluate(None)
    except Exception as error:  # whatever it says, the state fails with States.QueryEvaluationError
        raise jsonata.JSONataException("UNKNOWN", str(error)) from error


@hooks.on_infra_start()
def evaluate_without_java():
    """Replace LocalStack's evaluation of JSONata, which needs Java."""
    jsonata._eval_jsonata = evaluate

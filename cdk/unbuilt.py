"""What synthesis takes in the place of something that was not built: a placeholder, which CloudFormation refuses to deploy."""

from pathlib import Path

from aws_cdk import Annotations, CfnParameter, CfnRule, CfnRuleAssertion, Fn, Stack
from constructs import IConstruct

PLACEHOLDER = Path(__file__).parent / "placeholder"


def refuse_deployment(scope: IConstruct, name: str, *, what: str, target: str) -> None:
    """A Rule, which CloudFormation checks before it creates anything. `what` is missing; `make target` builds it."""
    stack, mend = Stack.of(scope), f"run `make {target}`, then deploy again"
    Annotations.of(stack).add_warning_v2(
        f"crossover:{name}", f"{what} was not built, and AWS will refuse the template: {mend}"
    )
    state = CfnParameter(
        stack,
        name,
        default="placeholder",
        description=f"{what} was not built when the template was made: {mend}",
    )
    CfnRule(
        stack,
        f"{name}IsBuilt",
        assertions=[
            CfnRuleAssertion(
                assert_=Fn.condition_equals(state.value_as_string, "built"),
                assert_description=f"{what} is a placeholder: {mend}",
            )
        ],
    )

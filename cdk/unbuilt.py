"""Placeholders for files that were not built. Synthesis accepts them; CloudFormation refuses to deploy them."""

from pathlib import Path

from aws_cdk import Annotations, CfnParameter, CfnRule, CfnRuleAssertion, Fn, Stack
from constructs import IConstruct

PLACEHOLDER = Path(__file__).parent / "placeholder"


def refuse_deployment(scope: IConstruct, name: str, *, what: str, target: str) -> None:
    """Add a warning and a Rule to the stack of `scope`, so that CloudFormation refuses to deploy the template, because something was not
    built.

    `name`: of the Rule's template parameter; `what`: name of the missing thing; `target`: the make target that builds it.
    """
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

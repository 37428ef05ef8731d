"""The availability zone of the shared network, kept by CloudFormation itself."""

from aws_cdk import CfnCondition, CfnParameter, CfnRule, CfnRuleAssertion, Fn, Stack

ZONE = "Zone"


def pin_zone(stack: Stack, *, asked: str | None) -> str:
    """Add the template parameter for the network's availability zone to `stack`, and return the zone as a token: that of the parameter, or
    the region's first if it is empty. `asked`: the zone that the experiment file names, the parameter's default; None if it names none.

    `crossover deploy` chooses a zone that offers everything and passes it as the parameter; a later deployment keeps the parameter's
    value. A subnet cannot move: if the file names another zone than the parameter, a rule of the template refuses the update.
    """
    parameter = CfnParameter(
        stack, ZONE, type="String", default=asked or "", description="The zone that everything stands in; it stays"
    )
    named = CfnCondition(
        stack, "ZoneIsNamed", expression=Fn.condition_not(Fn.condition_equals(parameter.value_as_string, ""))
    )
    if asked:
        CfnRule(
            stack,
            "ZoneStays",
            assertions=[
                CfnRuleAssertion(
                    assert_=Fn.condition_equals(parameter.value_as_string, asked),
                    assert_description=f"network.availability_zone: {asked}, but the network was made for another zone and cannot "
                    "move: leave the field out, or destroy the project's stacks first",
                )
            ],
        )
    return Fn.condition_if(named.logical_id, parameter.value_as_string, Fn.select(0, Fn.get_azs())).to_string()

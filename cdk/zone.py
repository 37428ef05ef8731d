"""The availability zone of the shared network, kept by CloudFormation itself."""

from aws_cdk import CfnCondition, CfnParameter, CfnRule, CfnRuleAssertion, Fn, Stack

ZONE = "Zone"


def pin_zone(stack: Stack, *, asked: str | None) -> str:
    """Return the zone that the template's parameter names, or the region's first zone if it names none. `asked`: the zone of the experiment
    file, if any.

    `crossover deploy` looks for a zone that offers everything and passes it as the parameter; at a later deployment, by plain `cdk
    deploy` too, the CDK leaves parameters at their previous values, so the zone stays. A subnet cannot move: if the file names another
    zone than the parameter, the template's rule refuses the update before anything is changed. Synthesis needs no connection to AWS.
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

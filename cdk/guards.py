"""Guards against forgotten resources: tags with owner and end of life, and a budget."""

from datetime import UTC, datetime, timedelta

from aws_cdk import Stack, Tags
from aws_cdk import aws_budgets as budgets
from constructs import Construct

from cdk.expiry_machine import ALONE, EXPERIMENT, EXPIRES_AT, KIND, NOTIFY, PROJECT, STANDS
from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.stores.keys import TIME_FORMAT
from crossover.workflow.infrastructure import shared_stacks


def stack_tags(experiment: Experiment, kind: str, *, now: datetime) -> dict[str, str]:
    """Return the tags of a stack itself, {key: value}, which CloudFormation copies to its resources: project, experiment, owner, kind, the
    UTC time at which it expires (`now` plus `lifetime.ttl_hours`), the topic for failures if there is one, and a mark on an experiment
    that uses no shared stack. A shared stack has "shared" for the experiment and no owner. They are in the assembly's manifest, not in the
    template.

    `kind`: EXPERIMENT, or the name of a shared stack; `now`: when the lifetime begins.
    """
    ends = (now + timedelta(hours=experiment.lifetime.ttl_hours)).astimezone(UTC)
    alone = {} if kind != EXPERIMENT or shared_stacks(experiment) else {STANDS: ALONE}
    told = {NOTIFY: topic} if (topic := experiment.lifetime.notify) else {}
    return {**_owner_tags(experiment, kind), KIND: kind, **alone, **told, EXPIRES_AT: ends.strftime(TIME_FORMAT)}


def tag_resources(stack: Stack, experiment: Experiment, kind: str) -> None:
    """Put the tags for project, experiment and owner, which never change, on every resource in the template of `stack`. What a launch
    template starts is not in the template: cdk/fleets.py tags it. `kind`: EXPERIMENT, or the name of a shared stack, whose resources get
    "shared" for the experiment and no owner.
    """
    for key, value in _owner_tags(experiment, kind).items():
        Tags.of(stack).add(key, value)


def _owner_tags(experiment: Experiment, kind: str) -> dict[str, str]:
    """Return the tags for project, experiment and owner. For a shared stack (`kind` is not EXPERIMENT) the experiment is "shared", and
    there is no owner.
    """
    if kind != EXPERIMENT:  # the same whoever deploys the shared stacks, else each experiment would update them
        return {PROJECT: experiment.project, "experiment": "shared"}
    return {PROJECT: experiment.project, "experiment": experiment.name, "owner": experiment.owner}


class Budget(Construct):
    """An AWS budget that sends the owner an e-mail at 80 % and 100 % of a monthly cost limit for the experiment's resources. Without a
    limit the construct is empty.

    AWS's billing data are hours old, and the tag `experiment` must be activated for cost allocation once per account: this is a warning,
    not a limit.
    """

    def __init__(self, scope: Construct, id: str, *, limit_usd: float | None, owner: str, experiment: str) -> None:
        """Build the budget for resources tagged with `experiment`, unless `limit_usd` (dollars a month) is None. AWS sends `owner` an
        e-mail at 80 and at 100 % of it. Raises ConfigError if `owner` is no e-mail address.
        """
        super().__init__(scope, id)
        if limit_usd is None:
            return
        if "@" not in owner:
            raise ConfigError(
                f"owner: {owner!r} cannot be written to; lifetime.budget_usd needs the owner's e-mail address"
            )
        subscriber = budgets.CfnBudget.SubscriberProperty(address=owner, subscription_type="EMAIL")
        budgets.CfnBudget(
            self,
            "Budget",
            budget=budgets.CfnBudget.BudgetDataProperty(
                budget_name=Stack.of(self).stack_name,
                budget_type="COST",
                time_unit="MONTHLY",
                budget_limit=budgets.CfnBudget.SpendProperty(amount=limit_usd, unit="USD"),
                cost_filters={"TagKeyValue": [f"user:experiment${experiment}"]},
            ),
            notifications_with_subscribers=[
                budgets.CfnBudget.NotificationWithSubscribersProperty(
                    notification=budgets.CfnBudget.NotificationProperty(
                        comparison_operator="GREATER_THAN",
                        notification_type="ACTUAL",
                        threshold=percent,
                        threshold_type="PERCENTAGE",
                    ),
                    subscribers=[subscriber],
                )
                for percent in (80, 100)
            ],
        )

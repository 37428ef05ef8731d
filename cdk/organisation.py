"""What an organisation says of its account (config/account.yaml), as constructs ask for it: it stands in the tree's context, as CDK's own
flags do, so that no construct has to hand it on. Without a file nothing here changes a template.
"""

import json
from dataclasses import asdict

from aws_cdk import App, Stack, Tags
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import IConstruct

from crossover.validation.account_file import AccountFile, checked

CONTEXT = "crossover:account"


def introduce(app: App, account: AccountFile) -> None:
    """Before the first stack is made."""
    app.node.set_context(CONTEXT, json.dumps(asdict(account)))


def of(scope: IConstruct) -> AccountFile:
    """What was said; nothing, where nobody did."""
    said = scope.node.try_get_context(CONTEXT)
    return checked(json.loads(said)) if said else AccountFile()


def key(scope: IConstruct) -> kms.IKey | None:
    """The organisation's key, which its stack refers to by the ARN."""
    arn, stack, id = of(scope).kms_key, Stack.of(scope), "AccountKey"
    if not arn:
        return None
    there = stack.node.try_find_child(id)
    return there if there is not None else kms.Key.from_key_arn(stack, id, arn)  # type: ignore[return-value]


def bound(stack: Stack) -> None:
    """Every role of the stack by the organisation's boundary, and every resource by its tags."""
    account = of(stack)
    if account.permissions_boundary:
        policy = iam.ManagedPolicy.from_managed_policy_arn(stack, "Boundary", account.permissions_boundary)
        iam.PermissionsBoundary.of(stack).apply(policy)
    for name, value in account.tags.items():
        Tags.of(stack).add(name, value)

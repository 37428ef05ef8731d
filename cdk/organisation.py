"""The settings of an AWS account (config/account.yaml) for constructs. They lie in the tree's context, as CDK's own flags do, so that no
construct has to hand them on. Without the file no template changes.
"""

import json
from dataclasses import asdict

from aws_cdk import App, Stack, Tags
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import IConstruct

from crossover.validation.account_file import AccountFile, parse_account

CONTEXT = "crossover:account"


def set_account_file(app: App, account: AccountFile) -> None:
    """Put the settings of the account file into the app's CDK context, where `account_of` finds them. Call it before the first stack is
    built.
    """
    app.node.set_context(CONTEXT, json.dumps(asdict(account)))


def account_of(scope: IConstruct) -> AccountFile:
    """Return the account file's settings, which `set_account_file` has put into the CDK context; empty settings if it was not called."""
    said = scope.node.try_get_context(CONTEXT)
    return parse_account(json.loads(said)) if said else AccountFile()


def import_kms_key(scope: IConstruct) -> kms.IKey | None:
    """Return the account's KMS key as a CDK object, imported into the stack once, or None if the account file names none."""
    arn, stack, id = account_of(scope).kms_key, Stack.of(scope), "AccountKey"
    if not arn:
        return None
    there = stack.node.try_find_child(id)
    return there if there is not None else kms.Key.from_key_arn(stack, id, arn)  # type: ignore[return-value]


def apply_account_policy(stack: Stack) -> None:
    """Apply the account file's permissions boundary to all roles of the stack and its tags to all resources, including those that are
    added later. Without them in the account file, do nothing.
    """
    account = account_of(stack)
    if account.permissions_boundary:
        policy = iam.ManagedPolicy.from_managed_policy_arn(stack, "Boundary", account.permissions_boundary)
        iam.PermissionsBoundary.of(stack).apply(policy)
    for name, value in account.tags.items():
        Tags.of(stack).add(name, value)

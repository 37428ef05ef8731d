"""A cloud on this machine that also answers as an account does: its limits, the rules of updates, what CloudFormation remembers.

No run on this machine asks for any of it, so it belongs to the tests of what deploys to an account. One module per topic.
"""

from pathlib import Path
from typing import Any

from crossover.local.cloud import LocalCloud
from crossover.local.moto_patches.replacing import Replacements
from tests.moto_patches import account, definitions, interfaces, stacks


class AccountCloud(LocalCloud):
    """The local cloud, extended so that it answers like an AWS account. `account`: its limits, which tests may change."""

    def __init__(self, workspace: Path, **settings: Any) -> None:
        """Make the cloud with the account's usual limits."""
        super().__init__(workspace, **settings)
        self.account = account.Account()

    def patch_moto(self, changes: Replacements) -> None:
        """Change moto as for a run, then add what an account has beside it."""
        super().patch_moto(changes)
        stacks.install(changes)
        account.install(changes, self.account)
        definitions.install(changes)
        interfaces.install(changes, self.account)

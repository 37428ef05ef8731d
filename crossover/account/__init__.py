"""What the commands ask of an AWS account: is it ready, what stands there, what does it cost, is anything left; and how they change it.

`resources/`: what stands in the account; whose a resource is, is judged in `account/resources/ownership.py` alone. `deployment/`: may it be
deployed, what would that change, and the CDK's command that does it. `removal/`: how a stack goes, with what goes before and after it.
`proofs/`: what a real account showed of docs/aws.md. Nothing here trains but by `running/`.
"""

from collections.abc import Callable

Tell = Callable[[str], None]


def tell(line: str) -> None:
    """At once, also into a pipe."""
    print(line, flush=True)

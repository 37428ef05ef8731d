"""What the command line asks AWS itself: is the account ready, what stands there, what does it cost, is anything left.

`resources/`: what stands in the account; whose a resource is, is judged in `account/resources/ownership.py` alone. `deployment/`: may it be
deployed, and what would that change. `removal/`: what goes before and after a stack. `proofs/`: what a real account showed of docs/aws.md.
Nothing here trains or deploys: `cli/` asks, and `running/` runs.
"""

from collections.abc import Callable

Tell = Callable[[str], None]


def tell(line: str) -> None:
    """At once, also into a pipe."""
    print(line, flush=True)

"""What a definition leaves open, and what is put there."""

import re

PLACEHOLDER = re.compile(r"\$\{((step|machine|executions)_(\w+))\}")
_RESOURCES = {
    "step": "lambda:{where}:function:{name}",
    "machine": "states:{where}:stateMachine:{name}",
    "executions": "states:{where}:execution:{name}",
}


def filled_in(text: str, *, stack: str, region: str, account: str, partition: str = "aws") -> str:
    """A definition's JSON with the ARNs that a deployment of `stack` gives its placeholders."""

    def arn(found: re.Match[str]) -> str:
        name = f"{stack}-{found[3].replace('_', '-')}"
        return f"arn:{partition}:{_RESOURCES[found[2]].format(where=f'{region}:{account}', name=name)}"

    return PLACEHOLDER.sub(arn, text)

"""Which processor an EC2 instance type has: hosts take an image and a tensor module that were made for it."""

import re


def processor(instance_type: str) -> str:
    """`arm64` for Graviton (a `g` behind the generation: m7g, c7gn, t4g), else `amd64`: Debian's names."""
    return "arm64" if re.match(r"[a-z]+\d+[a-z]*g[a-z]*\.", instance_type) else "amd64"

"""What is known of EC2 instances before one is started: the processor of a type, and the root volumes of ours."""

import re

# In GB: the stacks make them, bills price them.
DATABASE_GB = 30  # Redis hosts; gp3 gives 125 MB/s at any size, which every write reaches before it is acknowledged
PEER_GB = 20  # torch and its packages take a quarter of it
GPU_GB = 100  # the Deep Learning image asks for it


def processor(instance_type: str) -> str:
    """`arm64` for Graviton (a `g` behind the generation: m7g, c7gn, t4g), else `amd64`: Debian's names. An image and a tensor module are
    made for one of them.
    """
    return "arm64" if re.match(r"[a-z]+\d+[a-z]*g[a-z]*\.", instance_type) else "amd64"

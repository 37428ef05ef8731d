"""Programs on EC2: how one joins a run, holds its rank, is replaced, and leaves.

Instances do not know their rank: each claims one by creating `runs/<id>/lease/<rank>/<n>` and renews a heartbeat. A lease whose heart has
stopped is taken over as n + 1, and the older attempt, should it still live, stops before it publishes anything more. The object store
decides all of it; nobody's clock is compared with another's.
"""

from crossover.training.fleet.lease import Membership, ServingSettings
from crossover.training.fleet.serving import ProgramBody, serve

__all__ = ["Membership", "ProgramBody", "ServingSettings", "serve"]

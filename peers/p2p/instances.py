"""What peers run on: an instance each, without a GPU."""

from crossover.architecture.instances import Instances, computing
from crossover.experiment import Experiment


def instances(e: Experiment) -> Instances:
    """Peers whose batches functions compute wait for them most of the time, within what a burstable type earns."""
    busy = computing(e.training.threads) if e.module == "p2p_instance" else 0.0
    kind, setting = e.p2p.instance_type, "p2p.instance_type"
    return Instances(purpose="peer", setting=setting, instance_type=kind, count=e.workers, busy=busy)

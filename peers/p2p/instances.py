"""The instances of peers: one each, without a GPU."""

from crossover.experiment import Experiment
from crossover.workflow.architecture import Instances, count_busy_vcpus


def instances(e: Experiment) -> Instances:
    """Return the description of the run's EC2 instances: one per peer, without a GPU.

    If functions compute the gradients, the peers count as not busy, because they wait most of the time: a burstable instance type earns
    enough credits for them.
    """
    busy = count_busy_vcpus(e.training.threads) if e.module == "p2p_instance" else 0.0
    kind, setting = e.p2p.instance_type, "p2p.instance_type"
    return Instances(purpose="peer", setting=setting, instance_type=kind, count=e.workers, busy=busy)

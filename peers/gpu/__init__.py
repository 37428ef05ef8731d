"""The GPU baseline: data-parallel training with one process per GPU. A practitioner would compare a serverless run with it.

Gradients go through the object store, as published, or through torch.distributed (NCCL between GPUs, gloo between CPUs), as one would
really run it. Without a GPU the CPU computes, bit for bit as the other architectures.
"""

import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from crossover import runtime
from crossover.experiment import Experiment
from crossover.training.fleet import Membership, ServingSettings, serve
from crossover.workflow.architecture import EXCHANGES, Architecture, Instances, Program, check_gpu_type
from crossover.workflow.context import Context, Resources, new_learner, process_resources

if TYPE_CHECKING:
    from crossover.learning.device import DeviceLearner
    from crossover.training.peer import PeerExchange

PROCESSES, NUMBER = "CROSSOVER_PROCESSES", "CROSSOVER_PROCESS"  # on one instance; which of them this is
LOOK_S = 0.5


def main(resources: Resources | None = None, settings: ServingSettings | None = None) -> None:
    """Run the program of a GPU instance until the run is over: serve the fleet's run in this process, or start one process per GPU if the
    environment's CROSSOVER_PROCESSES is more than 1.

    `resources`, `settings`: those of this process and of its environment if None.
    """
    count = int(runtime.environment().get(PROCESSES, "1"))
    if resources is None and count > 1 and NUMBER not in runtime.environment():
        _run_one_per_gpu(count)
        return
    serve(resources or process_resources(), settings or ServingSettings.from_environment(runtime.environment()), worker)


def worker(ctx: Context, member: Membership) -> None:
    """Train the member that holds a rank of the run, from its newest checkpoint to the end, on this process's GPU or, without one, CPU."""
    from crossover.training import peer  # torch
    from peers.gpu.prefetching import Prefetching

    learner = device_learner(ctx)
    peer.train(
        ctx,
        member,
        computing=Prefetching(ctx, learner),
        exchange=_exchange(ctx, member, learner),
        step=PROGRAM.step,
        instance_type=ctx.experiment.gpu.instance_type,
    )


def _exchange(ctx: Context, member: Membership, learner: "DeviceLearner | None") -> "PeerExchange":
    """Return the exchange that `gpu.exchange` names: `Collective` for "distributed", `Gathering` otherwise. `learner`: gives the GPU; None
    for a CPU.
    """
    if ctx.experiment.gpu.exchange == "distributed":
        from peers.gpu.collective import Collective

        return Collective(ctx, member, learner.device if learner else None)
    from peers.gpu.gathering import Gathering

    return Gathering(ctx, member)


def device_learner(ctx: Context, *, keeps_vectors: bool = False) -> "DeviceLearner | None":
    """Build a learner on this process's GPU, make it available to this run's contexts, and return it. `keeps_vectors`: whether model and
    optimizer stay in the GPU's memory.

    Return None if there is no GPU, or if the process's resources build learners of their own, as in a simulation; contexts then use those.
    Raises Missing if the store lacks the base weights or constants, Corrupt if the weights' checksum differs.
    """
    from crossover.learning import device as device_learning

    device = device_learning.choose_device(int(runtime.environment().get(NUMBER, "0")))
    if device is None or ctx.resources.make_learner is not new_learner:
        return None
    manifest = ctx.facts.manifest
    ctx.resources.load_base_weights(ctx.experiment, ctx.objects)
    learner = device_learning.DeviceLearner(
        ctx.experiment,
        classes=manifest["classes"],
        input_shape=tuple(manifest["input_shape"]),
        affine=manifest["affine"],
        device=device,
        keeps_vectors=keeps_vectors,
    )
    if ctx.facts.constants:
        learner.take_constants(ctx.objects.get(ctx.keys.constants))
    ctx.resources.learners.setdefault(ctx.run, []).append(learner)  # type: ignore[arg-type]  # it offers what Learner offers
    return learner


def _run_one_per_gpu(count: int) -> None:
    """Run `count` processes, one per GPU, until they end. If one fails, all are killed and this process exits with status 1, so that the
    instance's service starts all again.
    """
    command = [sys.executable, "-c", "from peers.gpu import main; main()"]
    children = [
        subprocess.Popen(command, env={**runtime.environment(), NUMBER: str(number)}) for number in range(count)
    ]
    try:
        while any(child.poll() is None for child in children) and not any(child.poll() for child in children):
            runtime.sleep(LOOK_S)
    finally:
        for child in children:
            child.kill()
    if any(child.wait() for child in children):
        sys.exit(1)


def checks(e: Experiment) -> Iterator[str]:
    """Yield one error message for each setting of the experiment that the GPU architecture does not support."""
    if e.gpu.exchange == "distributed" and e.aggregation.rule != "mean":
        yield (
            f"aggregation.rule: {e.aggregation.rule} needs every gradient separately, but an all-reduce computes only their sum; "
            "expected mean, or gpu.exchange: s3"
        )
    if e.gpu.exchange == "distributed" and e.exchange.compression != "none":
        yield (
            f"exchange.compression: {e.exchange.compression} makes bytes of a gradient, an all-reduce sums float32 on the way; "
            "expected none, or gpu.exchange: s3"
        )
    yield from check_gpu_type(instances(e))


def instances(e: Experiment) -> Instances:
    """Return the description of the run's EC2 instances, with `gpu.instances` as their number and one or several GPUs each."""
    gpu = e.gpu
    return Instances(
        purpose="GPU worker",
        setting="gpu.instance_type",
        instance_type=gpu.instance_type,
        count=gpu.instances,
        gpu=True,
        spot=gpu.spot,
    )


PROGRAM = Program(main, instances, step="train_gpu")
ARCHITECTURE = Architecture(
    "gpu",
    program=PROGRAM,
    simulation="programs",
    sync_every=1,
    exchanges=EXCHANGES,
    checks=checks,
    claims={"equals_reference", "survives_kills", "resumes", "stops"},
)

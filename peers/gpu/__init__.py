"""The GPU baseline: one process per GPU, data-parallel. What a practitioner would compare a serverless run with.

Gradients go through the object store, as published, or through torch.distributed (NCCL between GPUs, gloo between CPUs), as one would
really run it. Without a GPU the CPU computes, bit for bit as the other architectures.
"""

import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from crossover import runtime
from crossover.architecture import EXCHANGES, Architecture, Program
from crossover.architecture.instances import Instances, needs_a_gpu
from crossover.context import Context, Resources, new_learner, process_resources
from crossover.experiment import Experiment
from crossover.training.fleet import Membership, ServingSettings, serve

if TYPE_CHECKING:
    from crossover.training.peer.exchange import PeerExchange
    from peers.gpu.cuda import CudaLearner

PROCESSES, NUMBER = "CROSSOVER_PROCESSES", "CROSSOVER_PROCESS"  # on one instance; which of them this is
LOOK_S = 0.5


def main(resources: Resources | None = None, settings: ServingSettings | None = None) -> None:
    """The program of one instance: this process serves its GPU, or starts one process for each."""
    count = int(runtime.environment().get(PROCESSES, "1"))
    if resources is None and count > 1 and NUMBER not in runtime.environment():
        _one_each(count)
        return
    serve(resources or process_resources(), settings or ServingSettings.of(runtime.environment()), worker)


def worker(ctx: Context, member: Membership) -> None:
    from crossover.training.peer import algorithm  # torch
    from peers.gpu.prefetching import Prefetching

    learner = device_learner(ctx)
    algorithm.train(
        ctx,
        member,
        computing=Prefetching(ctx, learner),
        exchange=_exchange(ctx, member, learner),
        step=PROGRAM.step,
        instance_type=ctx.experiment.gpu.instance_type,
    )


def _exchange(ctx: Context, member: Membership, learner: "CudaLearner | None") -> "PeerExchange":
    if ctx.experiment.gpu.exchange == "distributed":
        from peers.gpu.collective import Collective

        return Collective(ctx, member, learner.device if learner else None)
    from peers.gpu.gathering import Gathering

    return Gathering(ctx, member)


def device_learner(ctx: Context) -> "CudaLearner | None":
    """Where there is a GPU, the learner that this process's contexts take; None: the CPU's, or whatever else the process's resources make,
    as those of a simulated one do.
    """
    from peers.gpu import cuda

    device = cuda.best_device(int(runtime.environment().get(NUMBER, "0")))
    if device is None or ctx.resources.make_learner is not new_learner:
        return None
    manifest = ctx.facts.manifest
    ctx.resources.hold_base(ctx.experiment, ctx.objects)
    learner = cuda.CudaLearner(
        ctx.experiment,
        classes=manifest["classes"],
        input_shape=tuple(manifest["input_shape"]),
        affine=manifest["affine"],
        device=device,
    )
    if ctx.facts.constants:
        learner.take_constants(ctx.objects.get(ctx.keys.constants))
    ctx.resources.learners.setdefault(ctx.run, []).append(learner)  # type: ignore[arg-type]  # it offers what Learner offers
    return learner


def _one_each(count: int) -> None:
    """As many processes as GPUs; all end when one fails, so that the instance's service starts all of them again."""
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
    """What an experiment on GPUs cannot ask for."""
    if e.gpu.exchange == "distributed" and e.aggregation.rule != "mean":
        yield (
            f"aggregation.rule: {e.aggregation.rule} needs every gradient by itself, an all-reduce has their sum; "
            "expected mean, or gpu.exchange: s3"
        )
    if e.gpu.exchange == "distributed" and e.exchange.compression != "none":
        yield (
            f"exchange.compression: {e.exchange.compression} makes bytes of a gradient, an all-reduce sums float32 on the way; "
            "expected none, or gpu.exchange: s3"
        )
    yield from needs_a_gpu(instances(e))


def instances(e: Experiment) -> Instances:
    """As many as the YAML says, of one or several GPUs each."""
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

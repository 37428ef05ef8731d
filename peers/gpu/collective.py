"""The other exchange of the GPU baseline: torch.distributed's all-reduce, NCCL between GPUs, gloo between CPUs.

It is what one would run without serverless in mind: nothing goes through a store. A group does not survive the loss of a member. All
members then meet again, at the oldest of their newest checkpoints. Sums are in the library's order: they equal the other architectures'
within rounding, and the replicas are bitwise equal to one another. The library waits in sockets of its own, which no virtual clock reaches,
so this exchange refuses to be simulated.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from crossover import runtime
from crossover.errors import ConfigError, Unavailable
from crossover.training.fleet import Membership
from crossover.training.peer import Replica
from crossover.training.progress import worker_weights
from crossover.workflow.context import Context
from peers.gpu.meeting import Meeting, own_address

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.algorithms.contributions import Contribution

_c10d: Any = dist  # groups by themselves are there, and not declared as exported
_CONNECT = timedelta(seconds=5)  # gloo waits five times as long
_OPERATION = timedelta(seconds=120)  # until all members have come to it


class Collective:
    """Exchange of a peer by torch.distributed (`gpu.exchange: distributed`): an all-reduce of the gradients, each multiplied by its
    weight. Nothing goes through a store. `every`: rounds between two checkpoints.
    """

    replicas_agree = True

    def __init__(self, ctx: Context, member: Membership, device: torch.device | None = None) -> None:
        """Prepare the exchange on `device`, None for the CPU; `open` connects. Raises ConfigError in a simulation."""
        if runtime.is_simulated():
            raise ConfigError(
                "gpu.exchange: distributed waits in its library's own sockets, where no virtual clock reaches; expected s3"
            )
        self._ctx, self._member, self._device = ctx, member, device or torch.device("cpu")
        self.every = ctx.experiment.functions.checkpoint_every
        self._group: Any = None
        self._store: Any = None

    def open(self, replica: Replica) -> None:
        """Connect to all other members, and start together at the oldest of their newest checkpoints: `replica`, which must be at its
        newest checkpoint, is set back to that round if it is ahead, and its later checkpoints are deleted.

        Members are less than two checkpoints apart, and each keeps two. Raises Unavailable if the group breaks, and the errors of
        `Meeting.join` and `Replica.restore`.
        """
        try:
            self._meet()
            oldest = torch.tensor([replica.round], dtype=torch.int64, device=self._device)
            self._reduce(oldest, dist.ReduceOp.MIN)
        except RuntimeError as error:
            raise self._drop_broken_group(error) from error
        if int(oldest) < replica.round:
            replica.restore(at=int(oldest))

    def send(self, own: "Contribution", round: int, *, exchange: int = 0) -> None:
        """Raise StaleAttempt if another program has taken this rank over; checked only in every `every`th round. Nothing is sent: `receive`
        does that.

        `own` and `exchange` are not used.
        """
        if round % self.every == 0:
            self._member.confirm()

    def receive(self, own: "Contribution", round: int, out: "Tensor", *, exchange: int = 0) -> None:
        """All-reduce the gradients of `round`, and write their mean, weighted by samples, into `out`. `own`: this member's gradient.

        `exchange` is not used: there is one a round. Raises Unavailable if the group breaks.
        """
        samples = worker_weights(self._ctx.facts, round)
        torch.mul(own.values, float(samples[self._member.rank]), out=out)
        shared = out.to(self._device)
        try:
            self._reduce(shared, dist.ReduceOp.SUM)
        except RuntimeError as error:
            raise self._drop_broken_group(error) from error
        if shared is not out:
            out.copy_(shared)
        out.div_(float(sum(samples)))

    def keep(self) -> None:
        """Do nothing: no message is stored that could be lost."""

    def close(self) -> None:
        """Drop the group, and delete the object with the address of its meeting."""
        self._group = self._store = None
        self._ctx.objects.delete(self._ctx.keys.rendezvous)

    def _reduce(self, tensor: "Tensor", operation: Any) -> None:
        """All-reduce `tensor` in place over the group by `operation`, a ReduceOp. Raises RuntimeError if the group breaks."""
        options = dist.AllreduceOptions()
        options.reduceOp, options.timeout = operation, _OPERATION
        self._group.allreduce([tensor], options).wait()
        if tensor.is_cuda:
            torch.cuda.synchronize(self._device)

    def _meet(self) -> None:
        """Wait until all members are there, and build a process group of them for this object.

        torch.distributed's default group is not used: a process has only one, and the peers of an inline run share a process.
        """
        rank, count = self._member.rank, self._member.members
        self._store = Meeting(self._ctx, self._member).join()
        if self._device.type == "cuda":
            options = _c10d.ProcessGroupNCCL.Options()
            options._timeout = _OPERATION
            self._store.set_timeout(_OPERATION)  # the first operation connects
            self._group = _c10d.ProcessGroupNCCL(self._store, rank, count, options)
        else:
            gloo = _c10d.ProcessGroupGloo._Options()
            gloo._devices = [_c10d.ProcessGroupGloo.create_device(hostname=own_address())]
            gloo._timeout = _CONNECT  # all are there
            self._group = _c10d.ProcessGroupGloo(self._store, rank, count, gloo)

    def _drop_broken_group(self, error: RuntimeError) -> Unavailable:
        """Drop the group, and return (not raise) the Unavailable error that reports `error`."""
        self._group = self._store = None
        return Unavailable(f"peer {self._member.rank}: the group broke: {str(error).splitlines()[0]}")

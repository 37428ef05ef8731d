"""The other exchange of the GPU baseline: torch.distributed's all-reduce, NCCL between GPUs, gloo between CPUs.

What one would run without serverless in mind: nothing goes through a store. A group does not survive one of its
members, so all members come together anew then, at the oldest of their newest checkpoints. Sums are in the library's
order: equal to the other architectures' within rounding, the replicas bitwise equal to one another.
"""

import json
import socket
import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from crossover.context import Context
from crossover.errors import ConfigError, Missing, Unavailable
from crossover.programs import Membership
from peers.computing import round_samples
from peers.replica import Replica

if TYPE_CHECKING:
    from torch import Tensor

_c10d: Any = dist  # groups and stores by themselves are there, and not declared as exported
_LOOK_S = 0.1
_MEETING_S = 120.0  # until all members of a new group have come
_CONNECT_S = 5.0  # to somebody who is there


class Collective:
    """All-reduce of the sample-weighted gradients."""

    replicas_agree = True

    def __init__(self, ctx: Context, member: Membership, device: torch.device | None = None) -> None:
        if ctx.experiment.aggregation.rule != "mean":
            raise ConfigError(
                f"aggregation.rule: {ctx.experiment.aggregation.rule} needs every gradient by itself, an all-reduce has their sum; "
                "expected mean, or gpu.exchange: s3"
            )
        self._ctx, self._member, self._device = ctx, member, device or torch.device("cpu")
        self.every = ctx.experiment.functions.checkpoint_every
        self._group: Any = None
        self._store: Any = None

    def open(self, replica: Replica) -> None:
        """Meet, and start together: members are less than two checkpoints apart, and each keeps two."""
        try:
            self._meet()
            oldest = torch.tensor([replica.round], dtype=torch.int64, device=self._device)
            self._reduce(oldest, dist.ReduceOp.MIN)
        except RuntimeError as error:
            raise self._broken(error) from error
        if int(oldest) < replica.round:
            replica.restore(at=int(oldest))

    def send(self, gradient: "Tensor", round: int) -> None:
        """Sending and receiving are one."""

    def receive(self, gradient: "Tensor", round: int, out: "Tensor") -> None:
        samples = round_samples(self._ctx, round)
        torch.mul(gradient, float(samples[self._member.rank]), out=out)
        shared = out.to(self._device)
        try:
            self._reduce(shared, dist.ReduceOp.SUM)
        except RuntimeError as error:
            raise self._broken(error) from error
        if shared is not out:
            out.copy_(shared)
        out.div_(float(sum(samples)))

    def keep(self) -> None:
        """Nobody reads what one has sent."""

    def close(self) -> None:
        self._group = self._store = None
        self._ctx.objects.delete(self._ctx.keys.rendezvous)

    def _reduce(self, tensor: "Tensor", operation: Any) -> None:
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        self._group.allreduce([tensor], options).wait()
        if tensor.is_cuda:
            torch.cuda.synchronize(self._device)

    def _meet(self) -> None:
        """A group of its own instead of the library's one per process: peers of an inline run share theirs."""
        rank, count = self._member.rank, self._member.members
        limit = timedelta(seconds=_MEETING_S)
        token, store = self._host(limit) if rank == 0 else self._visit(limit)
        self._store = _c10d.PrefixStore(token, store)
        if self._device.type == "cuda":
            options = _c10d.ProcessGroupNCCL.Options()
            options._timeout = limit
            self._group = _c10d.ProcessGroupNCCL(self._store, rank, count, options)
        else:
            gloo = _c10d.ProcessGroupGloo._Options()
            gloo._devices = [_c10d.ProcessGroupGloo.create_device(hostname=own_address())]
            gloo._timeout = limit
            self._group = _c10d.ProcessGroupGloo(self._store, rank, count, gloo)

    def _host(self, limit: timedelta) -> tuple[str, Any]:
        store = _c10d.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=limit)
        place = {"host": own_address(), "port": store.port, "token": uuid.uuid4().hex}
        self._member.confirm()
        self._ctx.objects.put(self._ctx.keys.rendezvous, json.dumps(place).encode())
        return str(place["token"]), store

    def _visit(self, limit: timedelta) -> tuple[str, Any]:
        """The store of whoever holds rank 0 now; that of a former one does not answer.

        The library tries a refused connection again for all of its time limit. So one looks first, and gives it little
        time: between looking and connecting a former rank 0 can still go.
        """
        end_s, ask_s = time.monotonic() + _MEETING_S, time.monotonic() + self._member.settings.look_s
        while time.monotonic() < end_s:
            try:
                place = json.loads(self._ctx.objects.get(self._ctx.keys.rendezvous))
                with socket.create_connection((place["host"], place["port"]), timeout=_CONNECT_S):
                    pass
                store = _c10d.TCPStore(
                    place["host"], place["port"], is_master=False, timeout=timedelta(seconds=_CONNECT_S)
                )
                store.set_timeout(limit)
                return place["token"], store
            except (Missing, OSError, RuntimeError):
                pass
            if time.monotonic() > ask_s:
                self._member.question([0], what="waited to meet all, for word")
                ask_s = time.monotonic() + 5 * self._member.settings.look_s
            time.sleep(_LOOK_S)
        raise Unavailable(f"peer {self._member.rank}: rank 0 has not come to the meeting within {_MEETING_S:.0f} s")

    def _broken(self, error: RuntimeError) -> Unavailable:
        self._group = self._store = None
        return Unavailable(f"peer {self._member.rank}: the group broke: {str(error).splitlines()[0]}")


def own_address() -> str:
    """The address by which others on the network reach this machine. Connecting a datagram socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("169.254.169.254", 80))  # what every instance has a route to
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"

"""What an architecture of peers hands to the algorithm: how a gradient comes about, and how gradients go round."""

from typing import TYPE_CHECKING, Protocol

from crossover.errors import CrossoverError
from crossover.event import Event
from crossover.training.peer.replica import Replica

if TYPE_CHECKING:
    from torch import Tensor


class Computing(Protocol):
    """ComputeBatchGradients and AverageBatchesGradients."""

    def gradient(self, event: Event, out: "Tensor") -> None:
        """The mean gradient over the round's minibatches, (P + B,) float32, into `out`."""

    def forget(self, round: int) -> None:
        """The round is behind this peer for good: what computing it left in stores may go."""


class Concluded(CrossoverError):
    """The others have come to the end of the run meanwhile: there is no round left that this peer could take part in."""


class PeerExchange(Protocol):
    """SendGradientsToMyQueue, ConsumeGradientsFromQueue and, where there is one, SynchronisationBarrier."""

    every: int  # rounds between checkpoints
    replicas_agree: bool  # whether all peers hold the same bits after a round

    def open(self, replica: Replica) -> None:
        """Raises Concluded."""

    def send(self, gradient: "Tensor", round: int) -> None:
        """Show the peers this round's gradient. Lossy compression leaves in `gradient` what the peers will read."""

    def receive(self, gradient: "Tensor", round: int, out: "Tensor") -> None:
        """The combination of the own gradient and the peers', into `out`; both (P + B,) float32."""

    def keep(self) -> None:
        """What this peer has shown last must stay readable: called while the others may still read."""

    def close(self) -> None:
        """Nobody reads any more: take back what `open` and `send` made."""

"""What an architecture of peers hands to the algorithm: how a gradient comes about, and how gradients go round."""

from typing import TYPE_CHECKING, Protocol

from crossover.clients.protocol import Event
from crossover.errors import CrossoverError
from crossover.training.peer.replica import Replica

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.algorithms.contributions import Contribution


class Computing(Protocol):
    """ComputeBatchGradients and AverageBatchesGradients."""

    def gradient(self, event: Event, out: "Tensor") -> None:
        """The mean gradient over the round's minibatches, (P + B,) float32, into `out`."""

    def steps(self, event: Event, replica: Replica, history: list[tuple[float, float]]) -> None:
        """Instead, with local steps: the replica's own optimizer goes on after each of the round's minibatches."""

    def forget(self, round: int) -> None:
        """Nobody comes back to the round: what computing it left in stores may go."""


class Concluded(CrossoverError):
    """The others have come to the end of the run meanwhile: there is no round left that this peer could take part in."""


class PeerExchange(Protocol):
    """SendGradientsToMyQueue, ConsumeGradientsFromQueue and, where there is one, SynchronisationBarrier."""

    every: int  # rounds between checkpoints
    replicas_agree: bool  # whether all peers hold the same bits after a round

    def open(self, replica: Replica) -> int | None:
        """The round that is to be sent again, where what held this peer's gradient of the round before is gone: others may still be in that
        round. Raises Concluded.
        """

    def send(self, own: "Contribution", round: int, *, exchange: int = 0) -> None:
        """Show the peers what this one contributes to the round; `exchange`: to which of the round's, where it has several. What an earlier
        attempt of the peer has shown already holds: it is left in the contribution's values.
        """

    def receive(self, own: "Contribution", round: int, out: "Tensor", *, exchange: int = 0) -> None:
        """The combination of the own contribution and the peers', into `out`, as long as its values."""

    def keep(self) -> None:
        """What this peer has shown last must stay readable: called while the others may still read."""

    def close(self) -> None:
        """Nobody reads any more: take back what `open` and `send` made."""

"""Every key Crossover writes, built here and nowhere else.

Keys carry run, round and worker, so a retried or late attempt can only ever meet its own work. Nothing under a key is changed in place:
round t reads `.../t/...` and creates `.../t+1/...`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from crossover.data.protocols import StateKeys

UNDER_WAY = "runs/under-way"  # the key of the deadline that counts, read by cdk/expiry.py
MOMENT = "%Y-%m-%dT%H:%M:%SZ"  # UTC: so written, an earlier one sorts first, which is how the expiry compares


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one run. What one attempt of it writes and no other reads has `attempt` in its name: see training/progress.py."""

    run: str
    attempt: int = 0
    exchange: int = 0  # which of a round's exchanges, where it has several

    # --- object store -------------------------------------------------------------------------------------------------

    @property
    def prefix(self) -> str:
        return f"runs/{self.run}/"

    @property
    def experiment(self) -> str:
        return f"runs/{self.run}/experiment.json"

    @property
    def constants(self) -> str:
        """What the run's model has besides its vector: buffers that nothing changes."""
        return f"runs/{self.run}/constants"

    def deadline(self, began: float) -> str:
        """When the attempt that began then (unix seconds) ends, whoever follows it: a MOMENT. One each: a late function of an earlier one
        meets its own alone.
        """
        return f"runs/{self.run}/deadline/{began:.6f}"

    @property
    def attempt_markers(self) -> str:
        return f"runs/{self.run}/attempt/"

    def attempt_marker(self, attempt: int) -> str:
        """Return the key of the marker which records that the attempt has begun."""
        return f"{self.attempt_markers}{attempt:012d}"

    @property
    def overtaken(self) -> str:
        """Key of the marker which records that a higher attempt has begun."""
        return f"runs/{self.run}/overtaken/{self.attempt}"

    @property
    def taken_over(self) -> str:
        """That a higher attempt has what it needs of this one's state: what is left, or comes late, may go."""
        return f"runs/{self.run}/taken-over/{self.attempt}"

    @property
    def purpose(self) -> str:
        """What this attempt resumes the run for: to train, once it has set itself up, or to clear away."""
        return f"runs/{self.run}/purpose/{self.attempt}"

    @property
    def records(self) -> str:
        return f"runs/{self.run}/records/"

    @property
    def marks(self) -> str:
        return f"runs/{self.run}/marks/"

    def mark(self, invocation: str) -> str:
        """Return the key of a long invocation's latest usage snapshot."""
        return f"{self.marks}{invocation}.json"

    def record(self, step: str, invocation: str) -> str:
        return f"{self.records}{step}/{invocation}.json"

    @property
    def decisions(self) -> str:
        return f"runs/{self.run}/decision/"

    def decision(self, epoch: int) -> str:
        """Return the key of the decision that all workers agreed on after `epoch`: learning rate, whether to stop."""
        return f"{self.decisions}{epoch:06d}.json"

    @property
    def drops(self) -> str:
        return f"runs/{self.run}/dropped/"

    def dropped(self, round: int) -> str:
        """Which workers are left out of `round`, because what they contributed is not finite."""
        return f"{self.drops}{self.attempt:012d}/{round:08d}.json"

    @property
    def evaluations(self) -> str:
        return f"runs/{self.run}/evaluating/{self.attempt:012d}/"

    def evaluating(self, epoch: int) -> str:
        """Which long worker evaluates after `epoch`, and since when, so that not all of them need to."""
        return f"{self.evaluations}{epoch:06d}.json"

    def final_model(self, sha256: str) -> str:
        """By its content, which the outcome names: of two peers that conclude side by side neither overwrites the other's."""
        return f"runs/{self.run}/model/{sha256}"

    @property
    def outcome(self) -> str:
        return f"runs/{self.run}/outcome.json"

    @property
    def checkpoints(self) -> str:
        return f"runs/{self.run}/checkpoint/"

    @property
    def own_checkpoints(self) -> str:
        """Of this attempt."""
        return f"{self.checkpoints}{self.attempt:012d}/"

    def checkpoints_of(self, worker: int) -> str:
        return f"{self.own_checkpoints}{worker}/"

    def checkpoint(self, worker: int, round: int, minibatch: int = 0) -> str:
        """All of a long worker's state with `minibatch` minibatches of `round` behind it, one create-only object."""
        return f"{self.checkpoints_of(worker)}{round:08d}.{minibatch:05d}"

    @property
    def kept_states(self) -> str:
        return f"runs/{self.run}/kept/"

    def kept_state(self, round: int, name: str) -> str:
        """Return the key of a part (model, velocity, ...) of the state of `round`, saved from a worker's database that has ended since."""
        return f"{self.kept_states}{round:08d}/{name}"

    def failed(self, attempt: int, member: int) -> str:
        """Why `member` left this attempt of the run for good: whoever waits for it need not wait on."""
        return f"runs/{self.run}/failed/{attempt}/{member}"

    # --- aggregation ----------------------------------------------------------------------------------------------------

    def partial_means(self, level: int) -> str:
        return f"runs/{self.run}/mean/{level:03d}/"

    def partial_mean(self, level: int, member: int, part: int) -> str:
        """Return the key of part `part` of what a member of a level passes to the next (level 0: a client's gradient). Its bits follow
        from the seed, so no attempt needs one of its own.
        """
        return f"{self.partial_means(level)}{member:05d}/{part:05d}"

    # --- programs (peers, GPU workers) --------------------------------------------------------------------------------

    @property
    def leases(self) -> str:
        return f"runs/{self.run}/lease/"

    def lease(self, rank: int, attempt: int) -> str:
        """Who holds `rank`: nobody where it is empty. A program that takes over a silent one's rank does so as the next attempt."""
        return f"{self.leases}{rank}/{attempt:06d}"

    def heartbeat(self, rank: int) -> str:
        return f"runs/{self.run}/heartbeat/{rank}"

    @property
    def failures(self) -> str:
        return f"runs/{self.run}/failure/"

    def failure(self, rank: int) -> str:
        """Why the program of that rank gave up, in plain words."""
        return f"{self.failures}{rank}"

    def left(self, rank: int) -> str:
        """Return the key of the marker which records that the program of `rank` is done, so that no other program takes the rank over."""
        return f"runs/{self.run}/left/{rank}"

    @property
    def rendezvous(self) -> str:
        """Key of the address of rank 0, where the members of a collective meet."""
        return f"runs/{self.run}/rendezvous"

    @property
    def over(self) -> str:
        """Nobody trains any more, and what the run left behind is being cleared away: whoever writes yet takes that back himself."""
        return f"runs/{self.run}/over"

    @property
    def finished(self) -> str:
        """The run has its outcome, and what it left behind is cleared away: there is nothing to resume."""
        return f"runs/{self.run}/finished"

    @property
    def bodies(self) -> str:
        return f"runs/{self.run}/body/"

    def body(self, round: int, peer: int) -> str:
        """Return the key of a peer's gradient of a round, used if the message itself does not carry it."""
        return f"{self.bodies}{round:08d}/{peer}{self._of_exchange}"

    @property
    def computing(self) -> str:
        return f"runs/{self.run}/computing/"

    def peer_model(self, round: int, peer: int) -> str:
        """Return the key of the model that a peer's functions compute with."""
        return f"{self.computing}{round:08d}/{peer}/model"

    def peer_gradient(self, round: int, peer: int, minibatch: int, part: int | None = None) -> str:
        """Return the key of the gradient that a peer's function computed; of one `part` of it if functions average."""
        whole = f"{self.computing}{round:08d}/{peer}/gradient/{minibatch}"
        return whole if part is None else f"{whole}/{part}"

    def peer_average(self, round: int, peer: int, part: int) -> str:
        """Return the key of one part of the mean over a peer's minibatches."""
        return f"{self.computing}{round:08d}/{peer}/average/{part}"

    # --- tensor store -------------------------------------------------------------------------------------------------

    @property
    def _own(self) -> str:
        return f"{self.run}/attempt-{self.attempt}" + (f"/exchange-{self.exchange}" if self.exchange else "")

    def of_exchanges(self, count: int) -> "list[Keys]":
        """For each of a round's exchanges, the keys of what travels in it."""
        return [replace(self, exchange=number) for number in range(count)]

    def state(self, round: int, worker: int, *, optimizer: Sequence[str]) -> StateKeys:
        """Return the keys of a worker's whole state at the start of `round`; `optimizer`: the names of its vectors."""
        base = f"{self._own}/{round}/{worker}"
        return StateKeys(f"{base}/model", tuple(f"{base}/{vector}" for vector in optimizer))

    def model(self, round: int, worker: int) -> str:
        return f"{self._own}/{round}/{worker}/model"

    def own_optimizer(self, round: int, worker: int, vector: str) -> str:
        """With local steps: what the worker's own optimizer keeps, at the start of `round`."""
        return f"{self._own}/{round}/{worker}/own/{vector}"

    def gradient(self, round: int, worker: int, minibatch: int) -> str:
        return f"{self._own}/{round}/{worker}/gradient/{minibatch}"

    def average(self, round: int, worker: int, *, copy_of: int | None = None) -> str:
        """Return the key of the average over a worker's minibatches; `copy_of`: a peer's average, copied into this worker's database."""
        own = f"{self._own}/{round}/{worker}/average"
        return own if copy_of is None else f"{own}/{copy_of}"

    def aggregate(self, round: int, worker: int) -> str:
        """Return the key of the combination of all workers' averages, in this worker's database."""
        return f"{self._own}/{round}/{worker}/aggregate"

    def merged(self, round: int, part: int | None = None) -> str:
        """Return the key, in a shared database, of the combination of all workers' contributions, or of chunk `part` of it."""
        return f"{self._own}/{round}/merged" if part is None else f"{self._own}/{round}/merged/{part}"

    def chunk(self, round: int, worker: int, part: int) -> str:
        """Chunk `part` of a worker's contribution, for the worker of that rank."""
        return f"{self._own}/{round}/{worker}/chunk/{part}"

    def verdict(self, round: int, worker: int) -> str:
        """Whose chunk for this worker is not finite, as one number for each worker."""
        return f"{self._own}/{round}/{worker}/verdict"

    def update(self, step: int, worker: int) -> str:
        """MLLess: what a worker tells the others after `step`."""
        return f"{self._own}/{step}/{worker}/update"

    def report(self, step: int, worker: int) -> str:
        """MLLess: what a worker tells the supervisor after `step`."""
        return f"{self._own}/{step}/{worker}/report"

    def expected(self, step: int) -> str:
        """MLLess: the supervisor's word on `step`: whose updates all workers apply, and who goes on."""
        return f"{self._own}/{step}/expected"

    # --- bus ----------------------------------------------------------------------------------------------------------

    @property
    def barrier(self) -> str:
        return f"{self.run}.round" + self._of_attempt + self._of_exchange

    @property
    def _of_attempt(self) -> str:
        return f".{self.attempt}" if self.attempt else ""

    @property
    def _of_exchange(self) -> str:
        return f".exchange-{self.exchange}" if self.exchange else ""

    def mailbox(self, peer: int, parity: int = 0) -> str:
        """Return the mailbox of a peer's newest message. Synchronous runs alternate between two: one peer may publish while another still
        reads the round before.
        """
        return f"{self.run}.mailbox.{peer}.{parity}{self._of_exchange}"

    @property
    def updates(self) -> str:
        """MLLess: where workers announce their updates to all, and the supervisor, the last member, its word."""
        return f"{self.run}.updates" + self._of_attempt


def minibatch(fingerprint: str, worker: int, minibatch: int) -> str:
    return f"data/{fingerprint}/train/{worker}/{minibatch}"


def validation_chunk(fingerprint: str, chunk: int) -> str:
    return f"data/{fingerprint}/validation/{chunk}"


def data_manifest(fingerprint: str) -> str:
    return f"data/{fingerprint}/manifest.json"


def weights(sha256: str) -> str:
    """Return the key of the initial weights with the digest `sha256`."""
    return f"data/weights/{sha256}"


def current_run(fleet: str) -> str:
    """Where a fleet's programs find the run that they are to join."""
    return f"fleet/{fleet}/current.json"

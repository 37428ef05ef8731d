"""Every key Crossover writes, built here and nowhere else.

Keys carry run, round and worker, so a retried or late attempt can only ever meet its own work. Nothing under a key is changed in place:
round t reads `.../t/...` and creates `.../t+1/...`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from crossover.stores.protocols import StateKeys

CURRENT_DEADLINE = "runs/under-way"  # the key of the deadline that counts, read by cdk/expiry.py
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"  # UTC: so written, an earlier one sorts first, which is how the expiry compares


@dataclass(frozen=True, slots=True)
class Keys:
    """Builder of all keys of one run in the object store, tensor store and message bus, with a property or method for each kind of
    object. It only builds strings; nothing is stored or read. `run`: the run's identifier. `attempt`: number of the attempt to run it,
    from 0, raised by each resumption; keys that contain it are never shared with other attempts.

    `exchange`: number of the exchange within its round, if a round has several.
    """

    run: str
    attempt: int = 0
    exchange: int = 0  # which of a round's exchanges, where it has several

    # --- object store -------------------------------------------------------------------------------------------------

    @property
    def prefix(self) -> str:
        """Prefix of all keys of the run in the object store."""
        return f"runs/{self.run}/"

    @property
    def experiment(self) -> str:
        """Key of the run's experiment as JSON."""
        return f"runs/{self.run}/experiment.json"

    @property
    def constants(self) -> str:
        """Key of the safetensors file with the model's buffers that no vector holds, and with the digest of its frozen parameters."""
        return f"runs/{self.run}/constants"

    def deadline(self, began: float) -> str:
        """Return the key of the time, in TIME_FORMAT, by which an attempt ends. `began`: unix seconds at which the attempt began,
        so that each attempt has its own key.
        """
        return f"runs/{self.run}/deadline/{began:.6f}"

    @property
    def attempt_markers(self) -> str:
        """Prefix of the markers of all attempts that have begun; a marker is an object whose existence says so."""
        return f"runs/{self.run}/attempt/"

    def attempt_marker(self, attempt: int) -> str:
        """Return the key of the marker which records that `attempt` has begun."""
        return f"{self.attempt_markers}{attempt:012d}"

    @property
    def superseded_marker(self) -> str:
        """Key of the marker which says that a later attempt has begun, so that this one must stop."""
        return f"runs/{self.run}/overtaken/{self.attempt}"

    @property
    def takeover_marker(self) -> str:
        """Key of the marker which says that a later attempt has read all it needs of this attempt's state, which may be deleted
        from then on.
        """
        return f"runs/{self.run}/taken-over/{self.attempt}"

    @property
    def purpose(self) -> str:
        """Key of the record of what this attempt is for: to continue training, or to delete what the run left."""
        return f"runs/{self.run}/purpose/{self.attempt}"

    @property
    def records(self) -> str:
        """Prefix of the records (times, traffic) of all invocations of functions, and of programs."""
        return f"runs/{self.run}/records/"

    @property
    def marks(self) -> str:
        """Prefix of the usage snapshots of long invocations, which report before their end."""
        return f"runs/{self.run}/marks/"

    def mark(self, invocation: str) -> str:
        """Return the key of the latest usage snapshot of the long invocation with the identifier `invocation`."""
        return f"{self.marks}{invocation}.json"

    def record(self, step: str, invocation: str) -> str:
        """Return the key of the record of one invocation of `step`, which has the identifier `invocation`."""
        return f"{self.records}{step}/{invocation}.json"

    @property
    def decisions(self) -> str:
        """Prefix of the decisions after the epochs (see `decision`)."""
        return f"runs/{self.run}/decision/"

    def decision(self, epoch: int) -> str:
        """Return the key of the decision after `epoch` (from 1), which all workers follow: losses so far, whether to stop and why."""
        return f"{self.decisions}{epoch:06d}.json"

    @property
    def drop_decisions(self) -> str:
        """Prefix of the decisions about which workers' vectors are dropped from a round."""
        return f"runs/{self.run}/dropped/"

    def dropped_workers(self, round: int) -> str:
        """Return the key of the decision about which workers' vectors are dropped from `round` because they are not finite."""
        return f"{self.drop_decisions}{self.attempt:012d}/{round:08d}.json"

    @property
    def evaluations(self) -> str:
        """Prefix of this attempt's evaluation claims (see `evaluation_claim`)."""
        return f"runs/{self.run}/evaluating/{self.attempt:012d}/"

    def evaluation_claim(self, epoch: int) -> str:
        """Return the key of the claim that a long-running worker creates to be the only one that evaluates the model after `epoch` (from
        1).
        """
        return f"{self.evaluations}{epoch:06d}.json"

    @property
    def final_evaluation(self) -> str:
        """Key of the evaluation of this attempt's final model, if it differs from the model that an earlier attempt has decided on."""
        return f"{self.evaluations}final.json"

    def final_model(self, sha256: str) -> str:
        """Return the key of the trained model. It contains the model's digest `sha256`, so that two peers that finish at the same
        time do not overwrite each other's model.
        """
        return f"runs/{self.run}/model/{sha256}"

    @property
    def outcome(self) -> str:
        """Key of the run's result record."""
        return f"runs/{self.run}/outcome.json"

    @property
    def checkpoints(self) -> str:
        """Prefix of the checkpoints of all attempts."""
        return f"runs/{self.run}/checkpoint/"

    @property
    def own_checkpoints(self) -> str:
        """Prefix of this attempt's checkpoints."""
        return f"{self.checkpoints}{self.attempt:012d}/"

    def checkpoints_of(self, worker: int) -> str:
        """Return the prefix of this attempt's checkpoints of `worker`."""
        return f"{self.own_checkpoints}{worker}/"

    def checkpoint(self, worker: int, round: int, minibatch: int = 0) -> str:
        """Return the key of a long-running worker's checkpoint after `minibatch` minibatches of `round`; it is created once and
        never changed.
        """
        return f"{self.checkpoints_of(worker)}{round:08d}.{minibatch:05d}"

    @property
    def saved_states(self) -> str:
        """Prefix of the training states that were copied from workers' databases to the object store."""
        return f"runs/{self.run}/kept/"

    def saved_state(self, round: int, name: str) -> str:
        """Return the key of the part `name` (model, velocity, ...) of the training state of `round`, copied from a worker's
        database before that database was shut down.
        """
        return f"{self.saved_states}{round:08d}/{name}"

    def member_failure(self, attempt: int, member: int) -> str:
        """Return the key of the reason why `member` has left the `attempt` for good; others that find it stop waiting for that member."""
        return f"runs/{self.run}/failed/{attempt}/{member}"

    # --- programs (peers, GPU workers) --------------------------------------------------------------------------------

    @property
    def leases(self) -> str:
        """Prefix of the leases of all ranks (see `lease`)."""
        return f"runs/{self.run}/lease/"

    def lease(self, rank: int, attempt: int) -> str:
        """Return the key that holds the name of the program that works as `rank`, or nothing if none does. Each program that takes
        the rank over uses the next `attempt`.
        """
        return f"{self.leases}{rank}/{attempt:06d}"

    def heartbeat(self, rank: int) -> str:
        """Return the key of the last heartbeat of the program that works as `rank`: its attempt, the heartbeat's number, and whether the
        program gives the rank back.
        """
        return f"runs/{self.run}/heartbeat/{rank}"

    @property
    def failures(self) -> str:
        """Prefix, in the object store, of the failure messages of the run's programs, each under the key that `failure` returns. All
        attempts of a program have the same key.
        """
        return f"runs/{self.run}/failure/"

    def failure(self, rank: int) -> str:
        """Return the key of the error (its type and message) because of which the program that worked as `rank` gave up."""
        return f"{self.failures}{rank}"

    def leaving_marker(self, rank: int) -> str:
        """Return the key of the marker which says that the program of `rank` has finished its training and only waits for the others. Other
        programs take such a rank over last.
        """
        return f"runs/{self.run}/left/{rank}"

    @property
    def rendezvous(self) -> str:
        """Key of the network address of rank 0, at which torch.distributed's members meet."""
        return f"runs/{self.run}/rendezvous"

    @property
    def clearing_marker(self) -> str:
        """Key of the marker which says that training has ended and the run's intermediate objects are being deleted. A program that
        writes after that must delete what it wrote.
        """
        return f"runs/{self.run}/over"

    @property
    def finished_marker(self) -> str:
        """Key of the marker which says that the run has its outcome and its intermediate objects are deleted, so that it cannot be
        resumed.
        """
        return f"runs/{self.run}/finished"

    @property
    def bodies(self) -> str:
        """Prefix of the contributions (gradients, models or deltas) that peers store as objects (see `body`)."""
        return f"runs/{self.run}/body/"

    def body(self, round: int, peer: int) -> str:
        """Return the key of the contribution of `peer` to this exchange of `round`, if it is an object: it is too large for a message, or
        there is no message bus. The key is the same for all attempts.
        """
        return f"{self.bodies}{round:08d}/{peer}{self._exchange_suffix}"

    @property
    def peer_work(self) -> str:
        """Prefix of the models and gradients that peers and their functions exchange."""
        return f"runs/{self.run}/computing/"

    def peer_model(self, round: int, peer: int) -> str:
        """Return the key of the model with which the functions of `peer` compute in `round`."""
        return f"{self.peer_work}{round:08d}/{peer}/model"

    def peer_gradient(self, round: int, peer: int, minibatch: int, part: int | None = None) -> str:
        """Return the key of the gradient that a function of `peer` computed for one `minibatch` of `round`; with `part`, the key of
        that slice of it, for functions that average slices.
        """
        whole = f"{self.peer_work}{round:08d}/{peer}/gradient/{minibatch}"
        return whole if part is None else f"{whole}/{part}"

    def peer_average(self, round: int, peer: int, part: int) -> str:
        """Return the key of the slice `part` of the mean of the gradients of `peer` in `round`."""
        return f"{self.peer_work}{round:08d}/{peer}/average/{part}"

    # --- tensor store -------------------------------------------------------------------------------------------------

    @property
    def _attempt_prefix(self) -> str:
        """Prefix of this attempt's keys in the tensor store, with the exchange if that is not 0."""
        return f"{self.run}/attempt-{self.attempt}" + (f"/exchange-{self.exchange}" if self.exchange else "")

    def list_by_exchange(self, count: int) -> "list[Keys]":
        """Return `count` copies of these keys, with `exchange` 0, 1, ..., one for each exchange of a round."""
        return [replace(self, exchange=number) for number in range(count)]

    def state(self, round: int, worker: int, *, optimizer: Sequence[str]) -> StateKeys:
        """Return the keys of the model and the optimizer's vectors of `worker` at the start of `round`. `optimizer`: names of the
        optimizer's vectors.
        """
        base = f"{self._attempt_prefix}/{round}/{worker}"
        return StateKeys(f"{base}/model", tuple(f"{base}/{vector}" for vector in optimizer))

    def model(self, round: int, worker: int) -> str:
        """Return the key of the model of `worker` at the start of `round` (from 0)."""
        return f"{self._attempt_prefix}/{round}/{worker}/model"

    def own_optimizer(self, round: int, worker: int, vector: str) -> str:
        """Return the key of the `vector` (by name) of the optimizer with which `worker` takes local steps, at the start of `round`."""
        return f"{self._attempt_prefix}/{round}/{worker}/own/{vector}"

    def gradient(self, round: int, worker: int, minibatch: int) -> str:
        """Return the key of the gradient of `worker` for one `minibatch` (its number in the round, from 0) of `round`."""
        return f"{self._attempt_prefix}/{round}/{worker}/gradient/{minibatch}"

    def average(self, round: int, worker: int, *, copy_of: int | None = None) -> str:
        """Return the key of the mean of the gradients of `worker` in `round`. `copy_of`: rank of another worker, to get the key for
        a copy of that worker's mean in this worker's database.
        """
        own = f"{self._attempt_prefix}/{round}/{worker}/average"
        return own if copy_of is None else f"{own}/{copy_of}"

    def aggregate(self, round: int, worker: int) -> str:
        """Return the key, in the database of `worker`, of the aggregate of all workers' means in `round`."""
        return f"{self._attempt_prefix}/{round}/{worker}/aggregate"

    def combination(self, round: int, part: int | None = None) -> str:
        """Return the key, in a database that workers share, of the aggregate of all workers' contributions to `round`, or of its
        chunk number `part`.
        """
        return (
            f"{self._attempt_prefix}/{round}/merged"
            if part is None
            else f"{self._attempt_prefix}/{round}/merged/{part}"
        )

    def chunk(self, round: int, worker: int, part: int) -> str:
        """Return the key of the chunk number `part` of the contribution of `worker` to `round`; the worker of rank `part`
        aggregates these chunks.
        """
        return f"{self._attempt_prefix}/{round}/{worker}/chunk/{part}"

    def verdict(self, round: int, worker: int) -> str:
        """Return the key of what `worker` found in the chunks it received in `round`: a vector of one number per worker, 1 if that
        worker's chunk is not finite, otherwise 0.
        """
        return f"{self._attempt_prefix}/{round}/{worker}/verdict"

    def update(self, step: int, worker: int) -> str:
        """Return the key of the update that `worker` sends to the other workers after `step` (MLLess)."""
        return f"{self._attempt_prefix}/{step}/{worker}/update"

    def report(self, step: int, worker: int) -> str:
        """Return the key of the report (loss, time) that `worker` sends to the supervisor after `step` (MLLess)."""
        return f"{self._attempt_prefix}/{step}/{worker}/report"

    def supervisor_word(self, step: int) -> str:
        """Return the key of the supervisor's answer after `step`: whose updates all workers apply, and which workers continue (MLLess)."""
        return f"{self._attempt_prefix}/{step}/expected"

    # --- bus ----------------------------------------------------------------------------------------------------------

    @property
    def barrier(self) -> str:
        """Name, on the message bus, of the barrier at the end of a round."""
        return f"{self.run}.round" + self._attempt_suffix + self._exchange_suffix

    @property
    def _attempt_suffix(self) -> str:
        """Suffix `.ATTEMPT` for names on the message bus; empty for attempt 0."""
        return f".{self.attempt}" if self.attempt else ""

    @property
    def _exchange_suffix(self) -> str:
        """Suffix `.exchange-NUMBER` for names; empty for exchange 0."""
        return f".exchange-{self.exchange}" if self.exchange else ""

    def mailbox(self, peer: int, parity: int = 0) -> str:
        """Return the name, on the message bus, of the mailbox with the latest message of `peer`, the same for all attempts. `parity`: 0 or
        1; synchronous runs alternate between two mailboxes, since a peer may publish while another still reads the message of the previous
        round.
        """
        return f"{self.run}.mailbox.{peer}.{parity}{self._exchange_suffix}"

    @property
    def updates(self) -> str:
        """Name, on the message bus, of the barrier on which workers announce their updates, and the supervisor, its last member,
        its answer (MLLess).
        """
        return f"{self.run}.updates" + self._attempt_suffix


def minibatch(fingerprint: str, worker: int, minibatch: int) -> str:
    """Return the key of the staged minibatch number `minibatch`, from 0 within an epoch, of `worker`. `fingerprint`: of the staged data
    set.
    """
    return f"data/{fingerprint}/train/{worker}/{minibatch}"


def validation_chunk(fingerprint: str, chunk: int) -> str:
    """Return the key of the chunk number `chunk` of the staged validation set. `fingerprint`: of the staged data set."""
    return f"data/{fingerprint}/validation/{chunk}"


def data_manifest(fingerprint: str) -> str:
    """Return the key of the manifest of the staged data with this `fingerprint`."""
    return f"data/{fingerprint}/manifest.json"


def weights(sha256: str) -> str:
    """Return the key of the pretrained weights whose file has the digest `sha256`."""
    return f"data/weights/{sha256}"


def current_run(fleet: str) -> str:
    """Return the key of the document that tells the programs of `fleet` which run to join."""
    return f"fleet/{fleet}/current.json"

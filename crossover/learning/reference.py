"""The single-process reference that every synchronous architecture must equal bit for bit: all workers in one loop, nothing stored or sent.

Two levels of means (minibatches within a worker, workers by rank), one state, one optimizer step per round. With `exchange.what: model` or
`delta` each worker takes steps of its own within a round, with an optimizer of its own; what all hold after it is the mean model, or the
outer optimizer's next. Such a round may go through several epochs: only after it is there one model to evaluate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from crossover.algorithms import buffers
from crossover.algorithms.aggregation import combine_vectors
from crossover.algorithms.averaging import mean
from crossover.algorithms.compression import make_generator
from crossover.algorithms.contributions import build_encoder, exchange_in_process
from crossover.algorithms.optimizers import Update
from crossover.algorithms.outer import compute_delta, take_outer_step
from crossover.algorithms.robust import attack_vector
from crossover.algorithms.schedule import History, find_stop_reason, learning_rate, weigh_contributions
from crossover.algorithms.updates import step
from crossover.experiment import Experiment
from crossover.learning.learner import Learner, learner_for
from crossover.learning.samples import Dataset
from crossover.learning.staging import VALIDATION_CHUNK, Minibatches, plan_staging


@dataclass(frozen=True, slots=True)
class Epoch:
    """Results of one epoch, or of several without an evaluation in between: mean training loss, loss and metric on the validation set."""

    train_loss: float
    val_loss: float
    val_metric: float


@dataclass(frozen=True, slots=True)
class RoundState:
    """Training state after a round. `model`: vector (P + B,) of parameters and BatchNorm statistics. `optimizer`: the optimizer's
    vectors, (P,) each; if models or deltas are exchanged, the outer optimizer's. `own`: then the vectors of each worker's
    optimizer, by rank.
    """

    model: Tensor
    optimizer: tuple[Tensor, ...] = ()
    own: tuple[tuple[Tensor, ...], ...] = ()


def train_reference(
    experiment: Experiment,
    dataset: Dataset,
    *,
    on_round: Callable[[int, RoundState], None] | None = None,
    learner: Learner | None = None,
) -> tuple[bytes, tuple[bytes, ...], list[Epoch]]:
    """Train on `dataset` with all workers simulated in one process, until the last epoch, or until the target or early stopping ends it.
    Returns (final model vector as bytes, the optimizer's vectors as bytes, the results of each evaluation).

    A round has `exchange.every` minibatches per worker, or a whole epoch's if that is None or "epoch". `on_round`: called after each round
    with the number of rounds done and the state. `learner`: used instead of a new one; its model and gradient are overwritten. Raises as
    `Learner.compute_gradient` and `combine_vectors` do.
    """
    reference = _Reference(experiment, dataset, learner or learner_for(experiment, dataset))
    history: list[Epoch] = []
    known: list[tuple[float, float]] = []
    while not find_stop_reason(experiment.training, known, epochs=reference.epochs):
        history.append(reference.run_until_evaluation(known, on_round))
        known.append((history[-1].val_loss, history[-1].val_metric))
    state = reference.state
    return bytes(buffers.view(state.model)), tuple(bytes(buffers.view(part)) for part in state.optimizer), history


class _Reference:
    """Training of all workers of an experiment in one process, round by round, for `train_reference`. `state` is the result of the last
    round, `round` and `epochs` count those that are done. `plan` assigns samples to `minibatches`; `answers[worker][minibatch]` are the
    numbers of labels that count; `per_round`: minibatches of a worker in a round; `encoders`: the codec's, by rank, if there is one.
    """

    def __init__(self, experiment: Experiment, dataset: Dataset, learner: Learner) -> None:
        """Plan the minibatches and start from the initial model of `learner`, with a codec's encoder per worker if the experiment
        compresses.
        """
        every = experiment.exchange.every
        self.experiment = experiment
        self.plan = plan_staging(experiment, len(dataset.train_labels))
        self.per_round = self.plan.minibatches if every in (None, "epoch") else int(every)
        self.minibatches = Minibatches(experiment, dataset, self.plan)
        self.answers = self.minibatches.count_answers(
            learner.count_answers if ":" in experiment.training.loss else None
        )
        self.chunks = -(-len(dataset.validation_labels) // VALIDATION_CHUNK)
        self.learner = learner
        shapes, parameters = learner.shapes, learner.parameters
        each = (
            build_encoder(experiment, worker=rank, shapes=shapes, parameters=parameters)
            for rank in range(experiment.workers)
        )
        self.encoders = [own for own in each if own is not None]
        self.state = RoundState(buffers.tensor(bytes(self.learner.initialise_model())), own=((),) * experiment.workers)
        self.round = self.epochs = 0

    def run_until_evaluation(self, history: History, on_round: Callable[[int, RoundState], None] | None) -> Epoch:
        """Run the rounds of the next epoch, or of all epochs that one round spans, then evaluate; return training loss and evaluation.
        Continues where the last call ended, and ends early at `training.steps`; the learner's model is overwritten. `history`: (validation
        loss, metric) of earlier epochs, for the learning-rate schedule. `on_round`: called after each round.
        """
        losses, samples = 0.0, 0
        begin = self.epochs * self.plan.minibatches
        self.epochs = min(
            self.epochs + max(1, self.per_round // self.plan.minibatches), self.experiment.training.epochs
        )
        end = self.epochs * self.plan.minibatches
        for first in range(begin, end, self.per_round):
            if self.round == self.experiment.training.steps:
                break
            numbers = range(first, min(first + self.per_round, end))
            contributions, counts = [], []
            for worker in range(self.experiment.workers):
                contribution, count, loss = self._run_worker(worker, numbers, history)
                contributions.append(contribution)
                counts.append(count)
                losses += loss
            samples += sum(counts)
            names = [f"worker {worker}, round {self.round}: its average" for worker in range(self.experiment.workers)]
            average = self._combine(contributions, weigh_contributions(counts), names)
            self.state = self._build_next_state(average, history)
            self.round += 1
            if on_round is not None:
                on_round(self.round, self.state)
        self.learner.model[:] = buffers.view(self.state.model)
        result = self.learner.evaluate(self.minibatches.build_validation_chunk(chunk) for chunk in range(self.chunks))
        return Epoch(losses / max(1, samples), result.loss, result.metric)

    def _combine(self, contributions: Sequence[Tensor], counts: Sequence[int], names: Sequence[str]) -> Tensor:
        """Return the aggregate of the workers' contributions by the experiment's rule; with a codec, each contribution is first encoded and
        decoded as in an exchange, which updates the encoders' fed-back errors: call it once per round. The result is valid until the next
        call. `counts`: weight of each; `names`: of each, for errors.
        """

        def combine(vectors: Sequence[Tensor]) -> Tensor:
            """Return the aggregate of the vectors by the experiment's rule, weighted by the outer call's `counts`, one per vector."""
            return combine_vectors(vectors, counts, self.experiment.aggregation, names=names)

        if not self.encoders:
            return combine(contributions)
        return exchange_in_process(self.encoders, contributions, combine, round=self.round)

    def _run_worker(self, worker: int, numbers: range, history: History) -> tuple[Tensor, int, float]:
        """Compute one worker's part of the round. Returns (its contribution, number of labels that count, summed loss). The contribution is
        a mean gradient, a model or a delta, as `exchange.what` says. Unless it is a gradient, the worker trains a model of its own on all
        the minibatches, and its optimizer's state is kept.

        `numbers`: the round's minibatches, counted from the start of the run. `history`: (validation loss, metric) of earlier
        epochs.
        """
        what = self.experiment.exchange.what
        gradients, counts, losses, model, own = [], [], 0.0, self.state.model, self.state.own[worker]
        for position, number in enumerate(numbers):
            epochs, of_epoch = divmod(number, self.plan.minibatches)
            answers = self.answers[worker][of_epoch]
            batch = replace(self.minibatches.build_minibatch(worker, of_epoch), answers=answers)
            self.learner.model[:] = buffers.view(model)
            loss = self.learner.compute_gradient(
                batch, epoch=epochs + 1, round=self.round, worker=worker, minibatch=position
            )
            gradients.append(self._copy_gradient(worker))
            counts.append(answers)
            losses += loss * answers
            if what != "gradients":
                update = self._build_update(history, number=number, per_step=1)
                model, own = step(model, gradients.pop(), own, update)
        if what == "gradients":
            return mean(gradients, weigh_contributions(counts)), sum(counts), losses
        self._store_optimizer(worker, own)
        delta = compute_delta(self.state.model, model, buffers=self.learner.buffers)
        return model if what == "model" else delta, sum(counts), losses

    def _store_optimizer(self, worker: int, own: Sequence[Tensor]) -> None:
        """Store `own`, the vectors of that worker's own optimizer, in `state`."""
        all_ = [tuple(own) if rank == worker else held for rank, held in enumerate(self.state.own)]
        self.state = replace(self.state, own=tuple(all_))

    def _copy_gradient(self, worker: int) -> Tensor:
        """Return a copy of the learner's gradient, changed by the simulated attack if the worker is one of the faulty ones."""
        faults, own = self.experiment.faults, buffers.tensor(bytes(self.learner.gradient))
        if worker not in faults.workers:
            return own
        random = make_generator("attack", self.experiment.seed, self.round, worker)
        return attack_vector(
            own, attack=faults.attack, scale=faults.scale, generator=random, buffers=self.learner.buffers
        )

    def _build_next_state(self, average: Tensor, history: History) -> RoundState:
        """Return the state after the round, computed from `average`, the aggregated contribution: the next model by an optimizer
        step, by the outer optimizer, or `average` itself, as `exchange.what` says. `history`: (validation loss, metric) of
        earlier epochs.
        """
        state, exchange = self.state, self.experiment.exchange
        match exchange.what:
            case "model":
                return RoundState(average, own=state.own)
            case "delta":
                count = self.learner.buffers
                after = take_outer_step(
                    state.model, average, state.optimizer, exchange.outer, number=self.round, buffers=count
                )
            case _:
                update = self._build_update(history, number=self.round, per_step=self.per_round)
                after = step(state.model, average, state.optimizer, update)
        return RoundState(*after, own=state.own)

    def _build_update(self, history: History, *, number: int, per_step: int) -> Update:
        """Return the settings of one optimizer step, with the learning rate that the schedule gives it. `number`: step's number in
        the run; `per_step`: minibatches per worker in each step; `history`: (validation loss, metric) of earlier epochs.
        """
        training = self.experiment.training
        steps = training.steps or training.epochs * -(-self.plan.minibatches // per_step)
        rate = learning_rate(training, round=number, rounds=steps, history=history)
        return Update.from_training(
            training,
            number=number,
            rate=rate,
            buffers=self.learner.buffers,
            sync_every=per_step,
            undecayed=self.learner.list_undecayed() if training.no_decay else (),
        )

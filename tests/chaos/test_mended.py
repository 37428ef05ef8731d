"""What schedules once found in the protocols, each by hand and as small as it goes: it stays mended."""

import sys
from dataclasses import replace

import pytest

from crossover.experiment import Exchange, Experiment
from crossover.validation import load
from functions.mlless.settings import MLLess
from tests.architectures.harness import small
from tests.chaos.world.judged import JudgedRun
from tests.chaos.world.nemeses import Disturbed
from tests.chaos.world.oracles import list_broken_promises
from tests.chaos.world.schedule import Fault
from tests.chaos.world.trials import TURNS, Trials, reduce_experiment
from tests.chaos.world.world import VirtualWorld
from tests.mutation import protocol

GRADIENTS, DELTA = Exchange(every=1), Exchange(what="delta", every="epoch")
SCATTER, PEERS = (load(f"config/{name}.yaml") for name in ("scatter-reduce", "p2p-instance"))

# (experiment, seed, faults that take effect at least, faults)
MENDED = {
    "an attempt that was overtaken takes back what it wrote last, though it cannot ask at once whether it was": (
        *(small("scatter_reduce", workers=2), 693_901_794, 2),
        [
            Fault(kind="client_dies", at_s=1.163, seconds=10.829),
            Fault(kind="outage", service="s3", at_s=14.834, seconds=6.106),
        ],
    ),
    "a first step that is late sets nothing up behind the end of the run": (
        *(small("all_reduce", workers=2), 32, 2),
        [
            Fault(kind="lose", role="initialise 0", request=9, silent=True),
            Fault(kind="duplicate", role="initialise 0", request=1, seconds=0.1),
        ],
    ),
    "a run that a worker was removed from is resumed without that worker": (
        *(small("mlless", workers=3), 2, 8),
        [
            *(Fault(kind="kill", role="train 1", request=number) for number in range(25, 33)),
            Fault(kind="client_dies", at_s=1_815.0, seconds=0.1),
        ],
    ),
    "a worker that has read that it was overtaken does not go on, though the word that it waits for is in the store": (
        *(small("mlless", workers=2), 1, 2),
        [
            Fault(kind="message", role="supervise 0", request=3, side="before", seconds=4.0),
            Fault(kind="client_dies", at_s=14.6, seconds=0.1),
        ],
    ),
    "a run whose last step could not clear away behind its outcome is resumed to clear away": (
        *(small("all_reduce", workers=2), 0, 1),
        [Fault(kind="outage", service="s3", at_s=17.29, seconds=200.0)],
    ),
    "and its state lies in databases": (
        *(small("spirt", workers=2), 0, 1),
        [Fault(kind="outage", service="redis", at_s=29.15, seconds=200.0)],
    ),
    "and a supervisor has left something too": (
        *(small("mlless", workers=2), 0, 1),
        [Fault(kind="outage", service="s3", at_s=18.14, seconds=200.0)],
    ),
    "an attempt that was overtaken while it declared its queues leaves none, though it fails at an exchange that is gone": (
        *(small("spirt", workers=2), 0, 3),
        [
            Fault(kind="lose", role="initialise 0", request=7, side="after"),
            Fault(kind="freeze", role="initialise 0", request=10, seconds=8.245),
            Fault(kind="client_dies", at_s=5.0, seconds=0.1),
        ],
    ),
    "a client whose execution has begun and ended while its answer was lost follows it": (
        *(load("config/mlless.yaml", ["workers=2"]), 0, 2),
        [
            Fault(kind="lose", role="client", request=20, side="after", silent=True),
            Fault(kind="kill", role="client", request=8, side="after"),
        ],
    ),
    "an attempt that was overtaken while it set itself up takes back what it stored, though a connection breaks then": (
        *(load("config/spirt.yaml", ["workers=2"]), 402, 4),
        [
            Fault(kind="freeze", role="initialise 0", request=17, side="after", seconds=10.0),
            Fault(kind="client_dies", at_s=5.0, seconds=0.1),
            Fault(kind="lose", role="initialise 0", request=68),
            Fault(kind="lose", role="initialise 0", request=69),
        ],
    ),
    "a client whose clock is behind resumes a run all the same": (
        *(small("all_reduce", workers=2), 3, 3),
        [
            Fault(kind="clock", role="client", request=2, seconds=100.0),
            Fault(kind="client_dies", at_s=12.0, seconds=0.1),
            Fault(kind="client_dies", at_s=17.0, seconds=0.1),
        ],
    ),
    "a spare whose first look at a heartbeat takes a minute leaves its rank to the program that beats": (
        *(small("p2p_instance", workers=2), 1, 4),
        [
            Fault(kind="limit", service="minibatch_s", seconds=15),
            Fault(kind="limit", service="minibatches", seconds=6),
            Fault(kind="limit", service="spares", seconds=1),
            Fault(kind="lose", role="program 0", request=7, side="after", silent=True),
        ],
    ),
    "a peer's word that it has arrived is lost with the broker's queues, and its message comes again behind that": (
        *(load("config/p2p-serverless.yaml", ["exchange.every=1", "training.epochs=2"]), 252, 3),
        [
            Fault(kind="queues_lost", service="rabbitmq", at_s=55.0),
            Fault(kind="message", role="program 2", request=1, side="after", seconds=21.404),
            Fault(kind="duplicate", role="compute_gradient 0", request=1, seconds=100.0),
        ],
    ),
    "an attempt whose databases have lost the model, and then stored an average, leaves nothing": (
        *(load("config/spirt.yaml", ["workers=2"]), 0, 2),
        [
            Fault(kind="memory_lost", service="redis", server=0, at_s=16.5),
            Fault(kind="memory_lost", service="redis", server=1, at_s=24.0),
        ],
    ),
    "an attempt before concludes the run while the next one sets itself up, and leaves it nothing to go on with": (
        *(small("all_reduce", workers=2), 1_036, 2),
        [
            Fault(kind="client_dies", at_s=16.88, seconds=0.479),
            Fault(kind="duplicate", role="initialise 0", request=1, seconds=2.504),
        ],
    ),
    "and a supervisor would have gone on too": (
        *(small("mlless", workers=2), 0, 2),
        [
            Fault(kind="client_dies", at_s=17.487, seconds=0.1),
            Fault(kind="freeze", role="initialise 0", request=30, seconds=2.0),
        ],
    ),
    "a peer that is a round behind gets what went with the broker once more": (
        *(small("p2p_instance", workers=2), 22, 1),
        [Fault(kind="queues_lost", service="rabbitmq", at_s=42.302)],
    ),
    "and what went was a delta, where deltas go round": (
        *(replace(small("p2p_instance", workers=2), exchange=DELTA), 22, 1),
        [Fault(kind="queues_lost", service="rabbitmq", at_s=47.5)],
    ),
    "and the other peer has left since": (
        *(replace(small("p2p_instance", workers=2), exchange=GRADIENTS), 1, 1),
        [Fault(kind="queues_lost", service="rabbitmq", at_s=56.441)],
    ),
    "what an invocation stores that came again, when its round is long over, it takes back": (
        *(small("spirt", workers=2), 1, 2),
        [
            Fault(kind="freeze", role="compute_gradients 1", request=15, seconds=60.0),
            Fault(kind="duplicate", role="compute_gradients 1", request=1, side="after", seconds=0.1),
        ],
    ),
    "and copies of others' averages": (
        *(small("spirt", workers=2), 0, 2),
        [
            Fault(kind="freeze", role="aggregate_peers 1", request=7, seconds=60.0),
            Fault(kind="duplicate", role="aggregate_peers 1", request=1, side="after", seconds=0.1),
        ],
    ),
    "and what local steps came to": (
        *(replace(small("spirt", workers=2), exchange=DELTA), 0, 2),
        [
            Fault(kind="freeze", role="compute_gradients 1", request=12, seconds=60.0),
            Fault(kind="duplicate", role="compute_gradients 1", request=1, side="after", seconds=0.1),
        ],
    ),
    "but not the optimizer's vectors that others go by": (
        *(replace(small("spirt", workers=2), exchange=DELTA), 1, 3),
        [
            Fault(kind="freeze", role="compute_gradients 1", request=19, seconds=13.6),
            Fault(kind="client_dies", at_s=27.0, seconds=0.1),
            Fault(kind="duplicate", role="compute_gradients 1", request=1, side="after", seconds=0.31),
        ],
    ),
    "a supervisor whose twin has gone on without it asks for words that are gone, and gives way": (
        *(small("mlless", workers=2), 400_003, 3),
        [
            Fault(kind="duplicate", role="supervise 0", request=1, seconds=0.013),
            Fault(kind="duplicate", role="train 0", request=1, seconds=0.1),
            Fault(kind="freeze", role="supervise 0", request=4, seconds=11.618),
        ],
    ),
    "a state is whole for all holders or for none: a first step that dies between two of them can be tried again": (
        *(replace(small("spirt", workers=2), exchange=Exchange(what="delta", every=1)), 1, 2),
        [
            Fault(kind="client_dies", at_s=26.042, seconds=0.1),
            Fault(kind="kill", role="initialise 0", request=72, side="after"),
        ],
    ),
}


@pytest.mark.parametrize(
    ("experiment", "seed", "struck", "faults"),
    [
        (
            SCATTER,
            930_035,
            2,  # a worker whose twin has finished while it waited for an answer
            [
                Fault(kind="duplicate", role="train 1", request=1, side="after", seconds=0.209),
                Fault(kind="lose", role="train 1", request=129, side="after", silent=True),
            ],
        ),
        (
            SCATTER,
            429,
            3,  # a run that is resumed twice within a second, before the first of the two has begun its attempt
            [
                Fault(kind="client_dies", at_s=10.411, seconds=0.1),
                Fault(kind="freeze", role="initialise 0", request=17, seconds=100.0),
                Fault(kind="client_dies", at_s=11.134, seconds=0.1),
            ],
        ),
        (
            replace(PEERS, p2p=replace(PEERS.p2p, mode="asynchronous")),
            187,
            2,  # peers that wait for one another when the broker loses their mailboxes declare them again
            [Fault(kind="queues_lost", service="rabbitmq", at_s=at_s) for at_s in (40.0, 40.0, 41.0, 47.0, 48.0)],
        ),
        (
            load("config/mlless.yaml"),
            30_022,
            3,  # a dropped worker stores again, behind the supervisor's back, what the supervisor has deleted
            [
                Fault(kind="limit", service="minibatches", seconds=4),
                Fault(kind="limit", service="timeout_s", seconds=60),
                Fault(kind="slow", role="train 2", request=27, side="after", seconds=2.088),
            ],
        ),
    ],
)
def test_a_run_continues_by_itself_after_faults_that_pass(
    experiment: Experiment, seed: int, struck: int, faults: list[Fault]
) -> None:
    """Run the experiment under `faults` that a run must survive without a new client. `struck`: how many of them take effect; no promise
    may be broken.
    """
    trial = Trials(reduce_experiment(experiment)).run_with(faults, seed)

    assert len(trial.struck) == struck and not trial.findings


@pytest.mark.parametrize("found", MENDED.values(), ids=MENDED)
def test_a_schedule_that_once_broke_a_promise_breaks_none(found: tuple[Experiment, int, int, list[Fault]]) -> None:
    """Run a schedule that once broke a promise. `found`: experiment, seed, number of faults that take effect at least, and faults. Killed
    processes and lost state excuse nothing here.
    """
    experiment, seed, least, faults = found
    trials, nemesis = Trials(reduce_experiment(experiment)), Disturbed(faults)
    world = VirtualWorld(trials.experiment, seed, nemesis, turns=TURNS)
    outcome = world.run()

    assert len(nemesis.struck) >= least
    judged = trials.collect_facts(nemesis, outcome, world)
    assert not list_broken_promises(replace(judged, killed=(), state_lost=False))  # nothing is excused


@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        (0, []),  # a worker's own checkpoint of this step says nothing of the step whose word it waits for
        (3, [Fault(kind="client_dies", at_s=13.0, seconds=0.1)]),  # what is on its way does not reach the next attempt
    ],
    ids=["undisturbed", "resumed"],
)
def test_mlless_with_a_slack_keeps_its_promises_over_checkpoints(seed: int, faults: list[Fault]) -> None:
    """Run MLLess with a slack of 1 step and a checkpoint every 2 steps, undisturbed and resumed: no promise is broken."""
    experiment = reduce_experiment(small("mlless")).with_settings(MLLess(slack=1))
    experiment = replace(experiment, functions=replace(experiment.functions, checkpoint_every=2))
    nemesis = Disturbed(faults)
    world = VirtualWorld(experiment, seed, nemesis, minibatches=4)

    assert not list_broken_promises(JudgedRun(nemesis.history, world.run(), "", ()))
    assert nemesis.struck == faults


SEEN = {  # of the faults that it was blind to: a seed that finds each
    "dead-worker-not-removed": "102",
    "resumed-at-the-oldest-common-round": "6",
    "report-before-update": "0",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEN)
def test_a_planted_fault_that_the_world_once_missed_is_found(name: str) -> None:
    """Plant a bug in a copy of the code: the seed that is known for it breaks a promise there, and none in the unchanged copy."""
    fault = next(each for each in protocol.listed() if each.name == name)
    chaos = [sys.executable, "-m", "tests.chaos.world", "{config}", "--first", "--processes", "1"]

    assert protocol.outcome(fault, [*chaos, "--seeds", SEEN[name]]).startswith("found")
    assert protocol.outcome(replace(fault, edits=()), [*chaos, "--seeds", SEEN[name]]) == "missed"


@pytest.mark.slow
def test_a_planted_fault_that_changes_nothing_is_told_from_one_that_is_missed() -> None:
    """If the code around a planted fault changes, the changed line may have no effect any more, so that nothing can find it."""
    fault = next(each for each in protocol.listed() if each.name == "drawn-6")
    digests = [sys.executable, "-m", "tests.chaos.world", "{config}", "--digests", "--seeds", "0"]
    without_effect = replace(fault.edits[0], new=fault.edits[0].old + "                # nothing\n")

    assert not protocol.is_dead(fault, digests)
    assert protocol.is_dead(replace(fault, edits=(without_effect,)), digests)


def test_a_worker_whose_twin_has_finished_goes_on_by_itself() -> None:
    """Deliver an invocation twice and lose a late reply of it: no promise is broken."""
    faults = [
        Fault(kind="duplicate", role="train 1", request=1, side="after", seconds=0.209),
        Fault(kind="lose", role="train 1", request=129, side="after", silent=True),
    ]

    assert not Trials(reduce_experiment(load("config/scatter-reduce.yaml"))).run_with(faults, 930_035).findings


def test_a_worker_that_wakes_when_the_others_have_dropped_it_does_not_end_their_run() -> None:
    """The word that the worker waits for is deleted by then, and its failure would fail a run that the others have trained to its end."""
    limits = [
        Fault(kind="limit", service=name, seconds=value)
        for name, value in (("minibatches", 6.0), ("minibatch_s", 12.0))
    ]
    sleeps = [Fault(kind="freeze", role="train 0", request=number, seconds=1_200.0) for number in (202, 205, 207)]
    trial = Trials(reduce_experiment(load("config/mlless.yaml"))).run_with((*limits, *sleeps), 80)

    assert set(sleeps) <= set(trial.struck) and not trial.findings
    assert {entry.process for entry in trial.history.entries if entry.role == "client"} == {"client 1"}


def test_what_a_dropped_worker_stores_late_goes_though_the_run_is_resumed_many_rounds_later() -> None:
    """Drop a worker in the first round, let it store its step when the others are far ahead, and resume the run at its last step: nothing
    is left.
    """
    limits = [
        Fault(kind="limit", service=name, seconds=value)
        for name, value in (("minibatches", 6.0), ("checkpoint_every", 1.0))
    ]
    sleeps = [
        Fault(kind="freeze", role="train 0", request=request, seconds=seconds)
        for request, seconds in ((1, 1_208.0), (5, 1_258.0))
    ]
    dies = [Fault(kind="kill", role="collect 0", request=request) for request in range(1, 9)]
    trial = Trials(reduce_experiment(load("config/mlless.yaml"))).run_with((*limits, *sleeps, *dies), 50)

    assert {*sleeps, *dies} <= set(trial.struck) and not trial.findings


def test_a_resumed_run_that_drops_a_worker_after_all_decisions_stores_the_metric_of_its_own_model() -> None:
    """Resume a run of MLLess that has made all decisions at a round before its last, and let a worker die then: the model is another one
    than that of the decisions.
    """
    limits = [
        Fault(kind="limit", service=name, seconds=value)
        for name, value in (("minibatches", 4.0), ("checkpoint_every", 3.0))
    ]
    ends = [Fault(kind="kill", role="collect 0", request=request) for request in range(1, 9)]
    dies = [Fault(kind="kill", role="train 1", request=request) for request in range(380, 392)]
    trial = Trials(reduce_experiment(load("config/mlless.yaml"))).run_with((*limits, *ends, *dies), 1)

    assert {*ends, dies[0]} <= set(trial.struck) and not trial.findings
    assert any(entry.key.endswith("/final.json") and entry.left for entry in trial.history.entries)

"""What a run is judged by where no run of the same program may judge it: one process's models, metrics and ends of training."""

from dataclasses import replace

import pytest

from functions.mlless.settings import MLLess
from tests.architectures.harness import small
from tests.chaos.world.nemeses import Disturbed
from tests.chaos.world.oracles import list_broken_promises
from tests.chaos.world.trials import Trials, reduce_experiment
from tests.chaos.world.world import VirtualWorld
from tests.chaos.world.yardstick import ends_training, measure_mlless, measure_reference


def test_mlless_in_one_process_that_sends_all_at_once_is_the_reference() -> None:
    """Compare MLLess in one process, with a threshold of 0, with the reference: models, losses and ends of training are equal after each
    epoch.
    """
    trials = Trials(reduce_experiment(small("mlless").with_settings(MLLess(threshold=0.0))))
    world = VirtualWorld(trials.experiment, 0, Disturbed(), sizes=(10, 0))
    of_reference = measure_reference(world.resolved, world.dataset, trials.make_learner(world))

    assert measure_mlless(world.resolved, world.dataset, trials.make_learner(world)) == of_reference
    assert len(of_reference) == 2 and of_reference[2].finished and not of_reference[1].finished


@pytest.mark.parametrize(
    ("loss", "metric", "finished", "reason"),
    [(0.5, 0.0, False, ""), (0.0, 0.5, False, ""), (0.0, 0.0, True, "target: reached")],
    ids=["loss", "metric", "finished"],
)
def test_a_decision_that_says_what_is_not_so_is_found(loss: float, metric: float, finished: bool, reason: str) -> None:
    """Change a run's first decision by these figures: only the oracle `decisions_say_what_is_so` reports it."""
    trials, nemesis = Trials(reduce_experiment(small("mlless"))), Disturbed()
    world = VirtualWorld(trials.experiment, 0, nemesis)
    outcome = world.run()
    assert not list_broken_promises(trials.collect_facts(nemesis, outcome, world))

    said = outcome.decisions[0]
    wrong = said | {"val_loss": said["val_loss"] + loss, "val_metric": said["val_metric"] + metric}
    wrong |= {"finished": said["finished"] or finished, "reason": reason}
    changed = replace(outcome, decisions=[wrong, *outcome.decisions[1:]])
    assert [each.partition(":")[0] for each in list_broken_promises(trials.collect_facts(nemesis, changed, world))] == [
        "decisions_say_what_is_so"
    ]


def test_training_ends_at_its_target_without_patience_or_behind_its_last_epoch() -> None:
    """Check `ends_training`: after the last epoch, at the target, and if early stopping's epochs without improvement are reached."""
    training = replace(small("single").training, epochs=4)
    falling, rising = [(0.5, 0.1), (0.4, 0.2)], [(0.4, 0.1), (0.5, 0.2)]

    assert ends_training(training, falling, 4) and not ends_training(training, falling, 3)
    assert ends_training(replace(training, target=0.2), falling, 2)
    assert not ends_training(replace(training, target=0.3), falling, 2)
    assert ends_training(replace(training, early_stopping=1), rising, 2)
    assert not ends_training(replace(training, early_stopping=1), falling, 2)


def test_an_asynchronous_peers_model_that_does_not_follow_from_what_it_averaged_is_found() -> None:
    """Replace the model in a peer's checkpoint by the earlier one: the oracle reports that peer and round."""
    experiment = small("p2p_instance")
    p2p = replace(experiment.p2p, mode="asynchronous", staleness_weights="inverse", min_gradients=2)
    trials, nemesis = Trials(reduce_experiment(replace(experiment, p2p=p2p))), Disturbed()
    world = VirtualWorld(trials.experiment, 0, nemesis)
    outcome = world.run()
    assert any(saved.facts["seen"] for saved in nemesis.states[0].values())
    assert not list_broken_promises(trials.collect_facts(nemesis, outcome, world))

    saved = nemesis.states[0][2]
    vectors = {**saved.vectors, "model": nemesis.states[0][1].vectors["model"]}
    nemesis.states[0][2] = replace(saved, vectors=vectors)
    assert [each.partition(";")[0] for each in list_broken_promises(trials.collect_facts(nemesis, outcome, world))] == [
        "peers_step_along_what_they_average: peer 0, round 2: its model is not the step along the mean of the gradients that it says it "
        "averaged"
    ]

"""What holds for every tree, not for today's seven alone: names unique in a whole machine, ways that lead somewhere."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from crossover.experiment import Experiment
from crossover.workflow import Child, ForEach, Node, Parallel, Repeat, Sequence, Step
from crossover.workflow.architecture import Architecture
from crossover.workflow.state_machines import HISTORY_LIMIT, build_definitions, count_events
from tests.unit.test_asl import blocks, onward

State = dict[str, Any]
LONG = "a_step_whose_name_is_longer_than_step_functions_allows_the_name_of_any_one_of_its_states_to_be"


def step(name: str) -> Step:
    """Return a step that does nothing."""
    return Step(name, "functions.x", lambda ctx, event: None)


STEPS = [step(name) for name in ("compute", "compute failed", "Done", LONG)]  # names that meet those of other states


def grown(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    """Return a strategy for trees whose parts come from `inner`."""
    several = st.lists(inner, min_size=1, max_size=3)
    until = st.sampled_from(["synchronised", "finished"])
    return st.one_of(
        several.map(lambda nodes: Sequence(*nodes)),
        several.map(lambda nodes: Parallel(*nodes)),
        st.tuples(inner, st.booleans()).map(lambda drawn: ForEach("worker", "workers", drawn[0], tolerant=drawn[1])),
        inner.map(lambda body: ForEach("minibatch", "minibatches", body)),
        st.tuples(inner, until).map(lambda drawn: Repeat(drawn[0], until=drawn[1], timeout_s=900)),  # type: ignore[arg-type]
        inner.map(lambda body: Child("", body)),
    )


def named(node: Node, names: Iterator[str]) -> Node:
    """Return the tree with each Child named by the next of `names`."""
    match node:
        case Sequence(nodes=nodes):
            return Sequence(*(named(each, names) for each in nodes))
        case Parallel(branches=branches):
            return Parallel(*(named(each, names) for each in branches))
        case Child(body=body):
            return Child(next(names), named(body, names))
        case ForEach(body=body) | Repeat(body=body):
            return replace(node, body=named(body, names))
    return node


TREES = st.recursive(st.sampled_from(STEPS), grown, max_leaves=12).map(
    lambda tree: named(tree, (f"child{n}" for n in range(1_000)))
)


@given(tree=TREES, workers=st.sampled_from([2, 64]), minibatches=st.sampled_from([2, 100, None]))
def test_a_states_name_occurs_once_in_its_machine_and_every_way_leads_on(
    tree: Node, workers: int, minibatches: int | None
) -> None:
    """The state machines of any tree have unique names of at most 80 characters, and each state can be reached and has a successor or
    ends.
    """
    assume(count_events(tree, {"workers": workers, "minibatches": minibatches}) <= HISTORY_LIMIT)
    experiment = Experiment(name="x", architecture="x", workers=workers)
    for definition in build_definitions(Architecture("x", run=tree), experiment, minibatches=minibatches).values():
        names = [name for block in blocks(definition) for name in block["States"]]
        assert len(names) == len(set(names)), names
        assert all(len(name) <= 80 for name in names)
        for block in blocks(definition):
            reached, todo = set(), [block["StartAt"]]
            while todo:
                reached.add(name := todo.pop())
                todo += onward(block["States"][name]) - reached
            assert reached == block["States"].keys()
            for name, state in block["States"].items():
                ends = state["Type"] in ("Fail", "Succeed") or state.get("End")
                assert bool(ends) != bool(onward(state) - {each["Next"] for each in state.get("Catch", [])}), name
                if state["Type"] == "Map":  # iterations return nothing
                    done = [each for each in state["ItemProcessor"]["States"].values() if each.get("End")]
                    assert done and all(each.get("Result") == {} for each in done)
                if state["Type"] == "Fail":
                    # Step Functions keeps the prefix for its own errors: a child's failure arrives as States.TaskFailed and must not be
                    # passed on by name.
                    assert "ErrorPath" not in state and not state["Error"].startswith("States.")
                    assert state.get("Cause") or state["CausePath"].startswith("States.Format('")
        maps = [s for block in blocks(definition) for s in block["States"].values() if "Label" in s]
        assert len({each["Label"] for each in maps}) == len(maps)
        assert all(len(each["Label"]) <= 40 and each["Label"].isalnum() for each in maps)

"""The pictures of docs/architectures: drawn from today's code, and equal to trees, templates and a simulated round."""

from collections import Counter

import pytest

from crossover.simulation.mirror.spirt import DECISION_BYTES
from crossover.workflow import Child, ForEach, Node, Parallel, Repeat, Step, walk
from crossover.workflow.architecture import architectures, steps
from crossover.workflow.infrastructure import database_hosts
from tests.conftest import ROOT
from tests.infrastructure.assemblies import actions_of, resources
from tests.infrastructure.conftest import Assembled
from tools.pictures.drawing import find_label_problems
from tools.pictures.figures import load_figures
from tools.pictures.layouts import CHANNEL_OF, LAYOUTS, NOT_DRAWN, Layout
from tools.pictures.pages import FOLDER, count_arrow_bytes, draw_pictures, find_wires, render_pages, render_pictures

# Requests that arrows stand for; others ask, delete or compute.
DIRECTIONS = {
    **dict.fromkeys(("get", "peek", "arrived"), "in"),
    **dict.fromkeys(("put", "create", "replace", "arrive"), "out"),
}
each = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


def test_every_compared_architecture_has_its_pictures() -> None:
    """Check that there is a layout for every architecture except `single`."""
    assert {layout.name.replace("-", "_") for layout in LAYOUTS} == {*architectures()} - {"single"}


def test_committed_pictures_and_figures_are_what_the_program_draws() -> None:
    """Check that the committed pictures and pages equal what the program writes now."""
    made = {**render_pictures(), **render_pages()}
    committed = {path.name: path.read_text("utf-8") for path in FOLDER.iterdir() if path.name != "README.md"}
    stale = sorted(name for name in made.keys() | committed.keys() if made.get(name) != committed.get(name))
    assert not stale, "make pictures"


def test_no_label_leaves_its_box_or_lies_on_another() -> None:
    """Check that no text in a picture crosses its edges or overlaps another one."""
    wrong = {name: found for name, drawing in draw_pictures().items() if (found := find_label_problems(drawing))}
    assert not wrong


@each
def test_a_page_shows_both_pictures_and_names_stack_and_yaml(layout: Layout) -> None:
    """Check that an architecture's page links to its two pictures, its stack and its example."""
    page = (FOLDER / f"{layout.name}.md").read_text("utf-8")
    module = layout.name.replace("-", "_")
    for needed in (
        f"{layout.name}-structure.svg",
        f"{layout.name}-round.svg",
        f"stacks/{module}.py",
        f"config/{layout.name}.yaml",
    ):
        assert needed in page
    assert layout.name in (FOLDER / "README.md").read_text("utf-8")


@each
def test_boxes_and_frames_are_the_tree(layout: Layout) -> None:
    """Check that boxes and frames of a structure picture match the steps and nodes of the architecture's trees."""
    architecture, plan = load_figures(layout.name).architecture, layout.structure
    program = [architecture.program.step] if architecture.program else []
    assert Counter(box.name for box in plan.boxes) == Counter([*program, *(step.name for step in steps(architecture))])
    roots = [architecture.run] if architecture.run else []
    together = {_names(root) for root in roots}
    for root in [*roots, *architecture.machines.values()]:
        together |= {_names(node) for node in walk(root) if isinstance(node, ForEach | Repeat | Child | Parallel)}
    assert {frozenset(frame.steps) for frame in plan.frames} == together
    assert len(plan.frames) == len(together)
    machines = {name: _names(node) for name, node in architecture.machines.items()}
    assert {frame.machine: frozenset(frame.steps) for frame in plan.frames if frame.machine} == machines
    assert {name for box in plan.boxes for name in box.starts} == set(machines)


def _names(node: Node) -> frozenset[str]:
    """Return the names of the steps in a subtree."""
    return frozenset(part.name for part in walk(node) if isinstance(part, Step))


@each
def test_frames_enclose_their_boxes_and_no_others(layout: Layout) -> None:
    """Check that each frame surrounds the boxes of its steps by position."""
    for frame in layout.structure.frames:
        inside = {box.name for box in layout.structure.boxes if frame.top < box.y and box.y + 40 < frame.bottom}
        assert inside == set(frame.steps)


@each
def test_boxes_stores_and_wires_are_the_template(layout: Layout, assembled: Assembled) -> None:
    """Check that boxes, stores and wires of a structure picture match the functions, hosts, fleets and permissions in the template."""
    of, assembly, plan = load_figures(layout.name), assembled(layout.name), layout.structure
    template = assembly.experiment
    functions = assembly.functions()
    assert set(functions) == {box.name for box in plan.boxes if box.kind == "function"}
    hosts = resources(template, "AWS::EC2::Instance")
    assert len(hosts) == database_hosts(of.experiment, of.architecture)
    assert bool(hosts) == any(store.kind == "database" for store in plan.stores)
    programs = resources(template, "AWS::AutoScaling::AutoScalingGroup")
    assert len(programs) == sum(box.kind != "function" for box in plan.boxes)
    machines = resources(template, "AWS::StepFunctions::StateMachine")
    assert bool(machines) == bool(plan.frames)
    connected = find_wires(layout, of)
    assert {kind for _, kind in connected} == {store.kind for store in plan.stores}
    for name, function in functions.items():
        granted = actions_of(template, function["Role"])
        secrets = " ".join(granted.get("secretsmanager:GetSecretValue", ()))
        assert ((name, "database") in connected) == ("RedisPassword" in secrets), name
        assert ((name, "broker") in connected) == ("brokersecret" in secrets), name
        assert ((name, "bucket") in connected) == ("s3:PutObject" in granted), name
    drawn_kinds = {
        "AWS::Lambda::Function",
        "AWS::EC2::Instance",
        "AWS::AutoScaling::AutoScalingGroup",
        "AWS::S3::Bucket",
    }
    drawn_kinds.add("AWS::StepFunctions::StateMachine")
    others = {resource["Type"] for resource in template["Resources"].values()} - drawn_kinds
    assert not {kind for kind in others if not kind.startswith(NOT_DRAWN)}


@each
def test_arrows_carry_the_bytes_of_the_simulated_round(layout: Layout) -> None:
    """Check that the bytes of a round's arrows add up to those of the simulated round."""
    of = load_figures(layout.name)
    lanes = {lane.name: lane for lane in layout.round.lanes}
    complete = {(lane.kind, lane.rank) for lane in lanes.values() if lane.rank >= 0 and not lane.sketched}
    ranks = {rank for _, rank in complete}
    found: Counter[tuple[str, int, str, str]] = Counter()
    for arrow in layout.round.arrows:
        source, target = lanes[arrow.source], lanes[arrow.target]
        for store, actor, direction in ((source, target, "in"), (target, source, "out")):
            if store.kind in CHANNEL_OF and not actor.sketched:
                found[arrow.by, actor.rank, CHANNEL_OF[store.kind], direction] += count_arrow_bytes(arrow, of)
    expected: Counter[tuple[str, int, str, str]] = Counter()
    for (step, rank), part in of.round.items():
        if rank in ranks:
            expected.update({(step, rank, channel, "in"): count for channel, count in part.bytes_in.items()})
            expected.update({(step, rank, channel, "out"): count for channel, count in part.bytes_out.items()})
    differing = {key: found[key] - expected[key] for key in found | expected}
    # A decision's text is not drawn, and chunks of a vector are drawn as equal ones.
    assert all(abs(bytes_) <= DECISION_BYTES for bytes_ in differing.values()), differing


@each
def test_arrows_are_requests_of_the_simulated_round(layout: Layout) -> None:
    """Check that the number of items of a round's arrows equals the requests of the simulated round."""
    of = load_figures(layout.name)
    lanes = {lane.name: lane for lane in layout.round.lanes}
    starts = {box.name for box in layout.structure.boxes if box.starts}
    drawn: Counter[tuple[str, int, str, str]] = Counter()
    for arrow in layout.round.arrows:
        source, target = lanes[arrow.source], lanes[arrow.target]
        if source.kind in CHANNEL_OF:
            drawn[arrow.by, target.rank, CHANNEL_OF[source.kind], "in"] += of.counts[arrow.count]
        elif target.kind in CHANNEL_OF:
            drawn[arrow.by, source.rank, CHANNEL_OF[target.kind], "out"] += of.counts[arrow.count]
        else:
            assert arrow.by in starts, f"{arrow.text}: no store in between, and {arrow.by} starts no state machine"
    counted: Counter[tuple[str, int, str, str]] = Counter()
    for (step, rank), part in of.round.items():
        for channel, operations in part.operations.items():
            for operation, count in operations.items():
                counted[step, rank, channel, DIRECTIONS.get(operation, "")] += count
    assert not (unsent := drawn - counted), unsent


@each
def test_each_step_of_the_round_is_in_the_picture_and_those_that_wait_have_a_wait(layout: Layout) -> None:
    """Check that a round's picture has every step, and a bar of waiting exactly for the steps that wait."""
    of, plan = load_figures(layout.name), layout.round
    assert {arrow.by for arrow in plan.arrows} | {bar.by for bar in plan.bars} == {step for step, _ in of.round}
    waits = {bar.by for bar in plan.bars if bar.wait}
    program = of.architecture.program
    assert waits == {step.name for step in steps(of.architecture) if step.waits} | (
        {program.step} if program else set()
    )


def test_make_pictures_is_the_program() -> None:
    """Check that `make pictures` runs `python -m tools.pictures`."""
    assert (
        "$(PYTHON) -m tools.pictures"
        in (ROOT / "Makefile").read_text("utf-8").split("\npictures: ")[1].split("\n\n")[0]
    )

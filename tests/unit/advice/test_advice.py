"""The advice holds its wishes at p95, is monotone in them, and is written down; tests/architectures/test_advised.py trains by it."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest

from crossover.advice import advice, explain, page
from crossover.advice import question as question_
from crossover.advice import question as subject
from crossover.advice.advice import Advice, advise, headline, turning_point, verdict
from crossover.advice.candidates import Candidate
from crossover.advice.evaluation import Estimate
from crossover.advice.question import Constraints, Sizes
from crossover.advice.recurrence import MonthlyCost, Schedule
from crossover.advice.search import Finalist, SearchResult, ThisMachine, choose_finalist, pick_cards
from crossover.errors import ConfigError, NoProjection
from crossover.reports import display
from crossover.reports.report_pages import render
from crossover.simulation.repetitions import Outcome
from crossover.validation import check_deployment, load
from tests.unit.advice.few import few_candidates

CONFIG = Path(__file__).parents[3] / "config"
SCHEMA = Path(__file__).parents[3] / "crossover" / "cli" / "schemas" / "advise.json"
SMALL = ("training.epochs=2", "workers=2", "data.limit=8192")


@pytest.fixture(scope="module", autouse=True)
def _few() -> Iterator[None]:
    """Limit the candidates for all tests of the module, so that none of them depends on which ran before."""
    with few_candidates():
        yield


@pytest.fixture(scope="module")
def found() -> Advice:
    """Return advice for a small all-reduce experiment on CIFAR-10 with Lambda and EC2 to choose from."""
    question, sizes, _ = subject.build_question(load(CONFIG / "all-reduce-cifar10.yaml", SMALL))
    return advise(question, Constraints(on_hand=("lambda", "ec2")), sizes, processes=1, repetitions=5)


def written(found: Advice, out: Path, *, config: Path) -> list[Path]:
    """Write the files of the advice into `out` and return their paths. `config`: the experiment's YAML file."""
    due = page.plan_files(found, out, config=config)
    answer = {
        **page.as_json(found),
        "data": None,
        "notes": [],
        "every": {"often": "once", "monthly": []},
        "files": list(map(str, due.paths)),
    }
    page.write_files(due, answer, found)
    return due.paths


def finalist(architecture: str, seconds: float, usd: float) -> Finalist:
    """Return a finalist of two workers with three outcomes: 90, 100 and 110 % of the seconds and dollars."""
    candidate = Candidate(architecture, 2, 60, 1, memory_mb=1_769)
    outcomes = tuple(
        Outcome(seconds=seconds * f, epoch_s=1.0, usd=usd * f, paper_method_usd=0.0, moved_bytes=0.0)
        for f in (0.9, 1.0, 1.1)
    )
    return Finalist(candidate, Estimate(seconds, usd), outcomes, 0.0)


FRONT = [finalist("single", 1_000, 1.0), finalist("all_reduce", 500, 2.0), finalist("gpu", 100, 5.0)]


# As the first, and dearer by less than 1 %; as quick as the third, and cheaper.
TIED = [finalist("spirt", 800, 1.004), finalist("mlless", 100.3, 4.0)]


@pytest.mark.parametrize(
    ("front", "constraints", "architecture"),
    [
        *((FRONT, Constraints(deadline_s=s), name) for s, name in ((111, "gpu"), (400, "gpu"), (1_200, "single"))),
        *(
            (FRONT, Constraints(budget_usd=usd), name)
            for usd, name in ((1.2, "single"), (2.5, "all_reduce"), (9, "gpu"))
        ),
        (FRONT, Constraints(deadline_s=520), "gpu"),  # wishes hold at p95: 500 in the middle are 550 there
        (FRONT, Constraints(deadline_s=560), "all_reduce"),
        (FRONT, Constraints(deadline_s=50), "gpu"),  # impossible: the nearest
        (FRONT, Constraints(budget_usd=0.1), "single"),
        ([*FRONT, *TIED], Constraints(deadline_s=50), "mlless"),  # as near as the soonest, and cheaper
        ([*FRONT, *TIED], Constraints(), "spirt"),  # where one figure ties, the other decides
        ([*FRONT, *TIED], Constraints(budget_usd=9), "mlless"),
    ],
)
def test_constraints_decide_which_finalist_is_chosen(
    front: list[Finalist], constraints: Constraints, architecture: str
) -> None:
    """`choose_finalist` returns the candidate of `architecture` from `front` under `constraints`."""
    assert choose_finalist(front, constraints).candidate.architecture == architecture


def test_a_longer_deadline_never_costs_more() -> None:
    """The finalist that `choose_finalist` returns never costs more (median) for a longer deadline."""
    by_deadline = [choose_finalist([*FRONT, *TIED], Constraints(deadline_s=s)).usd.p50 for s in range(111, 1_200)]
    assert by_deadline == sorted(by_deadline, reverse=True)


def named(constraints: Constraints) -> dict[str, tuple[str, ...]]:
    """Return the names of the card that each picked architecture gets from the finalists under the constraints."""
    return {card.finalist.candidate.architecture: card.names for card in pick_cards([*FRONT, *TIED], constraints, {})}


def test_the_named_ones_keep_to_the_wishes_and_are_told_once() -> None:
    """The cheapest, the balanced and the soonest candidate keep to the constraints, and one that is several of these gets one card."""
    assert named(Constraints()) == {"spirt": ("cheapest",), "mlless": ("balanced", "soonest")}
    assert named(Constraints(budget_usd=3)) == {"spirt": ("cheapest", "balanced"), "all_reduce": ("soonest",)}
    assert named(Constraints(budget_usd=1.2, deadline_s=900)) == {"spirt": ("cheapest", "balanced", "soonest")}
    assert named(Constraints(budget_usd=0.1)) == named(Constraints()), "where none keeps to them"


def test_the_soonest_is_sooner_than_the_same_machine_that_is_interrupted() -> None:
    """A spot machine that is later in some repetitions, and never sooner, is not named the soonest, however much cheaper it is."""
    spot = finalist("single", 1_000, 1.0)
    delays = (1.0, 1.3, 1.3)
    outcomes = tuple(replace(each, seconds=each.seconds * by) for each, by in zip(spot.outcomes, delays, strict=True))
    spot = replace(spot, candidate=spot.candidate._replace(spot=True), outcomes=outcomes)
    on_demand = finalist("single", 1_000, 2.0)
    cards = pick_cards([spot, on_demand], Constraints(), {spot.candidate: on_demand})
    assert [card.finalist for card in cards if "soonest" in card.names] == [on_demand]


@pytest.mark.slow
def test_spot_never_leads_without_what_it_is_on_demand(tmp_path: Path) -> None:
    """If the winner or a card uses spot instances, its figures at the on-demand price stand beside it."""
    question, sizes, _ = subject.build_question(load(CONFIG / "all-reduce-cifar10.yaml", SMALL))
    found = advise(question, Constraints(on_hand=("gpu", "spot")), sizes, processes=1, repetitions=5)
    assert found.winner.candidate.spot
    assert found.on_demand and found.on_demand.candidate == found.winner.candidate._replace(spot=False)
    said = verdict(found)
    assert said[1].startswith("The same on demand: about ")
    assert said[-1].startswith(f"In figures: {found.winner.words}. ")
    for card in found.cards:
        assert (card.on_demand is not None) is card.finalist.candidate.spot
    rows = [row[0] for row in explain.card_rows(found)]
    assert rows[:2] == [", ".join(found.cards[0].names), "the same on demand"]
    files = [path for path in written(found, tmp_path, config=tmp_path / "mine.yaml") if path.suffix == ".yaml"]
    assert {row[-1] for row in explain.card_rows(found, files)} <= set(map(str, files))
    assert load(Path(explain.card_rows(found, files)[1][-1])).gpu.spot is False


@pytest.mark.slow
def test_in_a_real_search_a_looser_constraint_never_gives_a_worse_answer(
    found: Advice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later deadline never costs more dollars, and a larger budget never more seconds. The shortlist does not depend on either."""
    listed = (found.winner, *found.front, *(each.best for each in found.rejected if each.best))
    runnable = [each for each in listed if each.would_run]
    deadlines = sorted(1.001 * each.seconds.p95 for each in runnable)
    budgets = sorted(1.001 * each.usd.p95 for each in runnable)
    by_deadline = [choose_finalist(runnable, Constraints(deadline_s=each)).usd.p50 for each in deadlines]
    by_budget = [choose_finalist(runnable, Constraints(budget_usd=each)).seconds.p50 for each in budgets]
    for figures in (by_deadline, by_budget):
        assert figures == sorted(figures, reverse=True)
        assert len(set(figures)) > 1, "the wishes change nothing here"
    monkeypatch.setattr(advice, "search", lambda *_, **__: found.searched)
    wished = replace(found.constraints, deadline_s=deadlines[0])
    again = advise(found.question, wished, subject.build_question(found.question.base)[1], processes=1, repetitions=5)
    assert again.met
    assert again.winner.candidate == choose_finalist(runnable, wished).candidate != found.winner.candidate


@pytest.mark.slow
def test_the_same_input_gives_the_same_advice(found: Advice) -> None:
    """Advice for the same question, also if computed by two processes, has the same JSON."""
    again = advise(
        found.question, found.constraints, subject.build_question(found.question.base)[1], processes=2, repetitions=5
    )
    assert page.as_json(again) == page.as_json(found)


def test_the_verdict_names_the_winner_and_the_front_is_in_order(found: Advice) -> None:
    """The verdict begins with the winner and marks alternatives above the budget; the Pareto front goes from cheapest to soonest."""
    assert found.met
    assert verdict(found)[0].startswith(f"Train it on {found.winner.candidate.words}: ")
    kinds = {each.candidate.on for each in found.finalists if each.candidate.architecture == "single"}
    assert {"function", "instance"} <= kinds, "one function and one machine are always among the candidates"
    assert not any(each.gpu for each in found.searched.simulated)
    thrifty = replace(found, constraints=replace(found.constraints, budget_usd=1.001 * found.winner.usd.p95))
    dear = [each for each in advice.rivals_of(found) if each.usd.p95 > 1.001 * found.winner.usd.p95]
    assert "".join(verdict(thrifty)).count("more than was asked for") == len(dear) > 0
    assert 1 <= len(advice.alternatives(found)) <= 4
    assert all(each.reason for each in found.rejected)
    front = [(each.usd.p50, each.seconds.p50) for each in found.front]
    assert front == sorted(front)
    assert [seconds for _, seconds in front] == sorted((seconds for _, seconds in front), reverse=True)


def test_its_files_are_accepted_and_say_what_was_projected(found: Advice, tmp_path: Path) -> None:
    """The YAML files of an advice can be loaded and deployed, describe their candidates, and advice.json has the projected figures."""
    files = written(found, tmp_path, config=tmp_path / "mine.yaml")
    yamls = [path for path in files if path.suffix == ".yaml"]
    assert found.told[0] is found.winner and {*found.alternatives} <= {*found.told}
    for path, each in zip(yamls, found.told, strict=True):
        experiment = load(path)
        check_deployment(experiment)
        assert found.question.task(each.candidate).experiment.exchange == experiment.exchange
        assert experiment.workers == each.candidate.workers
    assert "p2p" not in yamls[0].read_text(), "what the winner has no use for is not said"
    told = json.loads((tmp_path / "advice.json").read_text())
    assert told["label"] == "projected"
    assert told["winner"]["usd"]["p5"] <= told["winner"]["usd"]["p50"] <= told["winner"]["usd"]["p95"]
    rows = (tmp_path / "advice.csv").read_text().splitlines()
    assert len(rows) == 1 + len(found.searched.simulated)
    assert all(row.startswith("projected,") for row in rows[1:])


def test_files_of_earlier_advice_go_and_files_of_ones_own_stay(found: Advice, tmp_path: Path) -> None:
    """A new advice deletes the YAML files of the earlier one in its folder, but no file that the user wrote or edited."""
    config, other = tmp_path / "mine.yaml", replace(found, winner=found.alternatives[-1], alternatives=(), cards=())
    before = [path for path in written(found, tmp_path, config=config) if path.suffix == ".yaml"]
    own, changed = tmp_path / "1-mine.yaml", before[1]
    for path in (own, changed):
        path.write_text("name: mine\n")
    (after,) = (path for path in written(other, tmp_path, config=config) if path.suffix == ".yaml")
    assert len(before) == len(found.told) > 2 and after not in before
    assert {*tmp_path.glob("*.yaml")} == {own, changed, after}


def called(found: Advice, name: str, **training: str) -> Advice:
    """Return the advice as if its experiment had this name and these training settings."""
    base = found.question.base
    base = replace(base, name=name, training=replace(base.training, **training))
    return replace(found, question=replace(found.question, base=base))


def test_a_file_that_somebody_changed_is_not_overwritten(found: Advice, tmp_path: Path) -> None:
    """Advice raises ConfigError with the names of YAML files that were edited since it wrote them, and changes no file."""
    config = tmp_path / "mine.yaml"
    for each in (found, found, called(found, "other")):
        first, second, *_ = (path for path in written(each, tmp_path, config=config) if path.suffix == ".yaml")
    for path in (first, second):
        path.write_text("name: mine\n")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match=rf"{first.name}, .*{second.name}: changed since advice wrote it"):
        written(found, tmp_path, config=config)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_beside_own_code_each_folder_of_advice_has_its_own_files(found: Advice, tmp_path: Path) -> None:
    """Unchanged files of one folder's advice are rewritten by the next; another folder's files stay as they are."""
    config, own = tmp_path / "mine.yaml", called(found, "own", model="mine:network")
    first = [path for path in written(own, tmp_path / "first", config=config) if path.suffix == ".yaml"]
    before = {path: path.read_bytes() for path in first}
    second = written(called(own, "other"), tmp_path / "second", config=config)
    assert not {*first} & {*second} and {path: path.read_bytes() for path in first} == before
    assert written(called(own, "third"), tmp_path / "first", config=config)[0] == first[0]
    assert b"name: third-" in first[0].read_bytes()


def test_no_two_answers_share_the_name_of_a_stack(found: Advice, tmp_path: Path) -> None:
    """Candidates of one advice, of another question, and of another folder have names of their own, which deployment accepts however long
    that of the question is; the same answer keeps its names.
    """

    def names(base: str, folder: str, epochs: int = 2) -> list[str]:
        """Return the names in the files of the advice for an experiment called `base` that trains `epochs` epochs, written to `folder`."""
        asked = called(found, base)
        training = replace(asked.question.base.training, epochs=epochs)
        asked = replace(asked, question=replace(asked.question, base=replace(asked.question.base, training=training)))
        paths = written(asked, tmp_path / folder, config=tmp_path / "mine.yaml")
        experiments = [load(path) for path in paths if path.suffix == ".yaml"]
        for each in experiments:
            check_deployment(each)
        return [each.name for each in experiments]

    mine = names("mine", "first")
    every = [*mine, *names("mine", "second"), *names("mine", "third", epochs=7), *names("m" * 32, "fourth")]
    assert len({*every}) == len(every) == 4 * len(found.told)
    assert names("mine", "first") == mine and all(re.fullmatch("mine-[0-9a-f]{6}", name) for name in mine)


def test_a_file_of_another_advice_or_a_changed_one_is_refused_by_name(found: Advice, tmp_path: Path) -> None:
    """A YAML file that is part of another folder's advice, or that somebody edited, is not overwritten: ConfigError names it."""
    config, own = tmp_path / "mine.yaml", called(found, "own", model="mine:network")
    first, *_ = written(own, tmp_path / "a" / "advice", config=config)
    before = first.read_bytes()
    with pytest.raises(ConfigError, match=rf"{first.name}.*: part of the advice in .*a/advice.*--out"):
        written(called(own, "other"), tmp_path / "b" / "advice", config=config)
    assert first.read_bytes() == before and not (tmp_path / "b").exists()
    (tmp_path / "a" / "advice" / "advice.json").unlink()
    assert written(called(own, "other"), tmp_path / "b" / "advice", config=config)[0] == first
    first.write_text(first.read_text().replace("workers: ", "workers:  "))
    with pytest.raises(ConfigError, match=r"mine-advice-1-.*changed since advice wrote it"):
        written(own, tmp_path / "b" / "advice", config=config)


def test_tables_name_the_file_to_type_into_run(found: Advice, tmp_path: Path) -> None:
    """The tables of candidates have the path of each one's YAML file in their last column, or a dash if no file was written."""
    own = called(found, "own", model="mine:network")
    due = page.plan_files(own, Path("answers/advice"), config=Path("models/mine.yaml"))
    rows = explain.card_rows(own, due.yamls)
    assert {row[-1] for row in rows} <= {str(path) for path in due.texts}
    assert rows[0][-1].startswith("models/mine-advice-")
    choices, *_, copied = page.build_page(own, [], due.yamls).sheets
    assert copied.command == page.as_yaml(own, own.winner, due.yamls[0].parent) and copied.folded
    assert {row[-1] for row in choices.rows} <= {str(path) for path in due.texts}
    assert {row[-1] for row in explain.card_rows(own)} == {display.DASH}, "no file was written"


def test_files_of_an_earlier_version_are_known_by_their_digests(found: Advice, tmp_path: Path) -> None:
    """Unchanged files of an earlier version, which have no digest inside, are replaced: advice.json has their digests."""
    config = tmp_path / "mine.yaml"
    first, *_ = written(found, tmp_path, config=config)
    first.write_text("name: earlier\n")
    gone = tmp_path / "9-gone.yaml"
    gone.write_text("name: gone\n")
    files = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in (first, gone)}
    (tmp_path / "advice.json").write_text(json.dumps({"files": files}))
    written(found, tmp_path, config=config)
    assert not gone.exists() and "name: earlier" not in first.read_text()


def test_advice_json_has_its_published_form(found: Advice, tmp_path: Path) -> None:
    """A written advice.json is valid by the JSON Schema of `advise`."""
    written(found, tmp_path, config=tmp_path / "mine.yaml")
    jsonschema.validate(json.loads((tmp_path / "advice.json").read_text()), json.loads(SCHEMA.read_text()))


def test_the_front_is_that_of_the_figures_that_are_printed(found: Advice) -> None:
    """No candidate beats one of the front by median time and dollars, and each candidate outside is matched or beaten by one of the
    front.
    """
    figures = {
        each.candidate: (each.usd.p50, each.seconds.p50) for each in found.finalists if each not in found.unknown
    }
    front = [figures[each.candidate] for each in found.front]
    for usd, seconds in front:
        assert not any((a, b) != (usd, seconds) and a <= usd and b <= seconds for a, b in figures.values())
    runnable = {each.candidate for each in found.finalists if each.would_run}
    for candidate in figures.keys() & runnable:
        assert any(a <= figures[candidate][0] and b <= figures[candidate][1] for a, b in front), candidate.words


def test_nobody_who_is_beaten_is_on_the_front_and_nobody_else_is_left_out() -> None:
    """The Pareto front has a cheap machine and a GPU that is hardly quicker, each once, but not a function that both beat."""
    machine, gpu, function = (
        finalist(*each) for each in (("spirt", 593, 0.0213), ("gpu", 570, 0.0302), ("mlless", 593.4, 0.0647))
    )
    assert advice.pareto_front([function, machine, gpu, gpu]) == (machine, gpu)
    alike = finalist("single", 592.8, 0.0214)  # quicker by less than is shown, and dearer
    assert advice.pareto_front([alike, machine]) == (machine,)


def test_with_code_of_ones_own_its_files_stand_where_that_is_found(found: Advice, tmp_path: Path) -> None:
    """If the experiment names user code, the YAML files of the advice are written beside the experiment's file."""
    config = tmp_path / "experiments" / "mine.yaml"
    config.parent.mkdir()
    paths = written(called(found, "own", model="mine:network"), tmp_path / "advice", config=config)
    yamls = [path for path in paths if path.suffix == ".yaml"]
    assert yamls and all(path.parent == config.parent and path.name.startswith("mine-advice-") for path in yamls)


def test_a_burstable_machines_credits_are_of_its_instances(found: Advice) -> None:
    """CPU credits of a burstable instance type count among the dollars of instances, not of the endpoint for secrets."""
    machine = Candidate("single", 1, 120, 1, on="instance", instance="t4g.medium", threads=2)
    steady = machine._replace(instance="c7g.large")
    credits, none = (
        advice.dollars_by_component(found.question, each)["the private endpoint for secrets"]
        for each in (machine, steady)
    )
    assert credits == pytest.approx(none)


def test_a_single_function_waits_for_nobody(found: Advice) -> None:
    """No part of a single function's dollars is for waiting for others, as it is of two functions'."""
    alone = Candidate("single", 1, 1_024, 1, on="function", memory_mb=3_008)
    pair = Candidate("all_reduce", 2, 512, 1, memory_mb=3_008, channel="s3", limit=8_192)
    waiting = "functions that wait for others"
    assert waiting not in advice.dollars_by_component(found.question, alone)
    assert waiting in advice.dollars_by_component(found.question, pair)


def test_where_a_round_goes_through_several_epochs_shortened_runs_are_of_whole_rounds() -> None:
    """Candidates whose workers exchange every two epochs are bounded and extrapolated from simulations of a multiple of two epochs."""
    local = ("exchange.what=model", "exchange.every=8", "training.epochs=4", "workers=2", "data.limit=4096")
    question = subject.build_question(load(CONFIG / "all-reduce-cifar10.yaml", local))[0]
    own = Candidate("all_reduce", 2, 512, 8, what="model", memory_mb=3_008, channel="s3", limit=4_096)
    scattered = own._replace(architecture="scatter_reduce")
    assert question.span(own) == 2
    simulated = question.simulated(own)[0]
    assert not simulated.problem
    assert question.bound_by_profile(own, question.profile(question.shape(own))).is_within(simulated)
    assert sum(advice.dollars_by_component(question, own).values()) == pytest.approx(simulated.usd, rel=0.05)
    assert turning_point(question, own, own) is None
    assert {round(each.smaller, 3) for each in explain.list_swings(question, own, own)} == {1.0}
    assert explain.list_swings(question, own, scattered)


def test_a_winner_that_stays_deployed_gets_the_longest_lifetime(found: Advice) -> None:
    """The file of a winner that stays deployed between runs has the longest `lifetime.ttl_hours`; the files of other candidates do not."""
    stays = replace(found, stays=True)
    hours = [
        page.build_experiment(each, finalist, Path()).lifetime.ttl_hours
        for each, finalist in ((stays, stays.winner), (found, found.winner), (stays, stays.alternatives[0]))
    ]
    assert hours[0] == page.MOST_HOURS > max(hours[1:])


def test_this_machine_is_the_answer_if_it_is_sooner_or_nearly(found: Advice) -> None:
    """The headline advises this machine if it was measured and takes at most twice the winner's time, and names that winner beside it; if
    only a budget is given, it must be ready before the winner; it keeps to a deadline even if it is busy.
    """
    middle = display.rough_seconds(found.winner.seconds.p50)
    aws = f"{found.winner.candidate.words}: about {display.rough_usd(found.winner.usd.p50)}, ready in {middle} "
    assert headline(found).startswith(f"Train it on {aws}") and f" of the {middle} for start-up)" in headline(found)
    here = ThisMachine(seconds=found.winner.seconds.p50 / 2, threads=1, sooner=found.winner, times=None)
    said = headline(replace(found, here=here))
    assert said.startswith("Train it on this machine: ready in ") and f"If it must be AWS: {aws}" in said
    low, middle, high = map(display.rough_seconds, here.band)
    assert f"({low} to {high})" in said and "starting the command" not in said
    said = headline(replace(found, here=replace(here, before_s=11.0)))
    assert (
        f"({low} to {high}; 11{display.GAP}s of the {middle} for starting the command, reading the data and the report)"
        in said
    )
    slow = replace(here, seconds=2.1 * found.winner.seconds.p50)
    assert headline(replace(found, here=slow)) == headline(found)
    near = replace(found, here=replace(here, seconds=1.9 * found.winner.seconds.p50))
    assert advice.is_this_machine_best(near)
    for wished in (Constraints(budget_usd=1e6), Constraints(deadline_s=near.here.band.p95 - 1)):
        assert not advice.is_this_machine_best(replace(near, constraints=wished))
    assert advice.is_this_machine_best(replace(near, constraints=Constraints(deadline_s=near.here.band.p95 + 1)))


def test_the_page_shows_answer_chart_choices_and_assumptions(found: Advice, tmp_path: Path) -> None:
    """The advice page has a headline, a plot in a wide and a narrow drawing, an open table of choices, folded further tables, and
    assumptions of which only the first is unfolded.
    """
    text = page.write_page(found, tmp_path, ["a note"]).read_text()
    assert "Train it on" in text
    assert text.count("<title>") == 1 + 2 * len(page.list_drawn(found)), (
        "each point says what it is, on a desk and on a phone"
    )
    made = page.build_page(found, ["a note"])
    assert made.title == f"{headline(found)}." and len(made.plots) == 1
    for card in found.cards:
        assert f"{', '.join(card.names)}: " in " ".join(
            re.findall(r"<text[^>]*>([^<]*)</text>", str(made.plots[0].svg))
        )
    choices, *others = made.sheets
    assert not choices.folded and 1 < len(choices.rows) <= page.MOST_CHOICES and all(sheet.folded for sheet in others)
    for name, figure in (("money", found.winner.usd.p50), ("time", found.winner.seconds.p50)):
        (parts,) = (sheet for sheet in others if sheet.title == f"Where the {name} goes")
        shown_ = display.usd if name == "money" else display.seconds
        assert (
            parts.rows[-1][:2] == ["the candidate, median", shown_(figure)]
            and parts.rows[-2][0] == "sum of these parts"
        )
    first, *others_ = made.assumptions
    assert len(first) < 200 and "a note" in others_, "one short paragraph is open"
    shown = text[text.index('class="card assumptions"') :].split("</section>")[0]
    assert shown.index(first) < shown.index("<details><summary>") < shown.index("a note")


def test_dear_outliers_are_left_out_of_the_chart_and_counted(found: Advice) -> None:
    """A candidate that is far dearer than the front and the cards is not drawn, so that these stay readable; the caption counts it."""
    dear = finalist("gpu", 1.5 * found.winner.seconds.p50, 1_000 * max(each.usd.p50 for each in found.front))
    more = replace(found, rejected=(*found.rejected, advice.Rejected("gpu", dear, "dear")))
    assert dear in more.finalists and dear not in page.list_drawn(more)
    assert {found.winner, *found.alternatives, *found.front} <= {*page.list_drawn(more)}
    assert {card.finalist for card in found.cards} <= {*page.list_drawn(more)}
    left_out = len(more.finalists) - len(page.list_drawn(more))
    (plot,) = page.build_page(more, []).plots
    assert f"{left_out} more, over 3 times as dear or as long" in plot.caption


def test_this_machine_is_a_point_of_the_chart(found: Advice) -> None:
    """The plot, wide and narrow, shows this machine as a point at $0, and marks it as the advice if it is the fastest."""
    slow = ThisMachine(seconds=10 * found.winner.seconds.p50, threads=2, sooner=found.winner, times=None)
    for here, label in ((slow, "this machine"), (replace(slow, seconds=1.0), "advice: this machine")):
        made = page.build_page(replace(found, here=here), [])
        for drawn in (str(made.plots[0].svg), str(made.plots[0].narrow)):
            texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
            assert label in texts and "this machine" in texts and "$0" in texts, "label, legend and tick"
            assert here.words in re.findall(r"<title>([^<]*)</title>", drawn)


def test_the_pages_command_and_months_follow_the_answer(found: Advice) -> None:
    """The page shows the commands of the advice (deploy, run and destroy, or a run on this machine) and the monthly costs."""
    here = ThisMachine(seconds=found.winner.seconds.p50 / 2, threads=1, sooner=found.winner, times=None)
    files, asked = [Path(f"advice/{n}.yaml") for n in range(len(found.told))], "mine.yaml --set training.epochs=3"
    assert page.build_page(found, [], files, here=asked).commands == [
        "crossover deploy advice/0.yaml",
        "crossover run advice/0.yaml --on aws",
        "crossover destroy advice/0.yaml",
    ]
    made = page.build_page(replace(found, here=here), [], files, here=asked)
    assert made.commands == ["crossover run mine.yaml --set training.epochs=3 --on inline"]
    way = MonthlyCost("left deployed", 7.4, "parts", 90.0, "late")
    made = page.build_page(found, [], every="day", monthly=[way], schedule=Schedule("add this:", "0 3 * * * run"))
    (months,) = (each for each in made.sheets if "every day" in each.title)
    assert months.rows == [["left deployed", "parts", "late", "$7.40", f"1.5{display.GAP}minutes"]]
    assert not months.folded and (months.note, months.command) == ("Add this:", "0 3 * * * run")
    assert '<pre class="command" tabindex="0" aria-label="command: Trained every day' in render(made)


def test_another_answer_than_the_first_estimate_says_why(found: Advice) -> None:
    """`explain_change` returns "" if the advice is the first estimate's candidate, else why not: which of the two is dearer, by figures
    that were made in the same way, a missed budget, or repeated simulations.
    """

    def change(advised: Advice, candidate: Candidate, usd: float) -> str:
        """Return the sentence for a first estimate of the candidate for `usd` dollars."""
        return explain.explain_change(advised, explain.FirstEstimate(candidate, Estimate(1.0, usd), "words"))

    winner, other = found.winner, found.alternatives[0]
    assert explain.explain_change(found, None) == change(found, winner.candidate, 1.0) == ""
    dear, ratio = change(found, other.candidate, 9 * winner.usd.p50), display.times(other.usd.p50 / winner.usd.p50)
    costs = f", which costs {ratio} the dollars of {winner.candidate.words}."
    assert dear == f"The first estimate was {other.candidate.words}{costs}"
    strict = replace(found, constraints=replace(found.constraints, budget_usd=0.99 * other.usd.p95))
    assert f"bad luck (p95) it needs a budget of {display.usd(other.usd.p95)}" in change(strict, other.candidate, 0.0)
    shortlisted = {each.candidate for each in found.finalists}
    unrepeated = max(
        (each for each in found.searched.simulated.items() if each[0] not in shortlisted), key=lambda each: each[1].usd
    )
    ratio = display.times(unrepeated[1].usd / winner.figures.usd)
    assert f"costs {ratio} the dollars of" in change(found, unrepeated[0], 9 * winner.usd.p50)
    here = ThisMachine(seconds=1.0, threads=1, sooner=winner, times=None)
    dearer = replace(winner, outcomes=tuple(replace(each, usd=2 * other.usd.p95) for each in winner.outcomes))
    said = change(replace(found, winner=dearer, here=here), other.candidate, 9 * winner.usd.p50)
    assert said.endswith("; the model's speed was measured on this machine after it.")


def test_tables_compare_times_with_start_up(found: Advice) -> None:
    """The tables of candidates have a column "ready in", which includes start-up, and none for the time alone."""
    for head in (explain.CARDS_HEAD, explain.FRONT_HEAD, explain.REJECTED_HEAD):
        assert "ready in" in head and "time" not in head
    column = explain.FRONT_HEAD.index("ready in")
    for row, each in zip(explain.front_rows(found.front), found.front, strict=True):
        assert row[column] == display.seconds(each.seconds.p50)


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (Candidate("single", 1, 60, 1), "1 minibatch"),
        (Candidate("all_reduce", 2, 60, 4), "4 minibatches per worker"),
        (Candidate("all_reduce", 2, 60, "epoch", what="model"), "an epoch, by averaging models"),
        (Candidate("all_reduce", 2, 60, "epoch", what="delta"), "an epoch, by an outer step (DiLoCo)"),
    ],
)
def test_updates_are_described_in_words(candidate: Candidate, words: str) -> None:
    """`describe_update` returns `words` for how often, and by what, the candidate updates the model."""
    assert explain.describe_update(replace(finalist("single", 1.0, 1.0), candidate=candidate)) == words


def test_if_this_machine_is_the_answer_the_page_says_what_would_change_that(found: Advice) -> None:
    """If this machine is the advice, the page has a table of what would make AWS sooner, such as half this machine's speed."""
    here = ThisMachine(found.winner.seconds.p50 / 1.5, 1, found.winner, None, before_s=1.0)
    (sheet,) = (
        each for each in page.build_page(replace(found, here=here), []).sheets if each.title.startswith("What would")
    )
    assert "divided by when this machine is: below 1 AWS would be the sooner one" in sheet.note
    assert "this machine's speed, half to twice" in {row[0] for row in sheet.rows}
    assert {row[1] for row in sheet.rows} >= {"the other is better with less"}, "at half the speed AWS is as soon"


@pytest.mark.parametrize(("given", "words"), [
    ({"deadline": "soon"}, "--deadline: 'soon' is not a time"),
    ({"deadline": "90d"}, "at most 30 days"),
    ({"deadline": "0h"}, "more than nothing"),
    ({"budget": "-1"}, "--budget: '-1'"),
    ({"budget": "nan"}, "--budget: 'nan'"),
    ({"on_hand": "tpu"}, "--on-hand: tpu is unknown"),
    ({"on_hand": "spot"}, "spot is a price"),
    ({"on_hand": "spot,spot"}, "spot is a price"),
])  # fmt: skip
def test_constraints_that_make_no_sense_are_refused(given: dict[str, str], words: str) -> None:
    """An option with an invalid value raises ConfigError, which names the option and contains `words`. `given`: the options."""
    asked = {"deadline": None, "budget": None, "on_hand": None, **given}
    with pytest.raises(ConfigError, match="--") as refused:
        question_.parse_constraints(asked["deadline"], asked["budget"], None, asked["on_hand"])
    assert words in str(refused.value)


def test_a_model_too_large_for_any_function_is_told() -> None:
    """If only functions may be used and the model fits none, NoProjection names the needed memory and that of the largest function."""
    question, sizes, _ = subject.build_question(load(CONFIG / "all-reduce-cifar10.yaml", SMALL))
    vast = type(sizes)(vector_bytes=8 * 2**30, kept_bytes=1.0, evaluation_bytes=1)
    with pytest.raises(NoProjection, match=r"needs .* MB at its peak, and the function of 10,240 MB"):
        advise(question, Constraints(on_hand=("lambda",)), vast, processes=1)


def test_where_nothing_is_left_what_came_furthest_says_why() -> None:
    """If no candidate can run, the reason given is the problem of the best candidate, not of the first of many that lacked memory."""
    small, large = (Candidate("single", 1, 512, 1, memory_mb=mb) for mb in (512, 10_240))
    refused = {small: ("memory", "needs more than 512 MB"), large: ("", "")}
    reached = SearchResult(impossible={large: "training.precision: not there"})
    sizes = Sizes(vector_bytes=0, kept_bytes=0.0, evaluation_bytes=0)
    assert (
        advice._explain_no_candidate(refused, reached, sizes)
        == "none of 2 ways to train it is possible: training.precision: not there"
    )


@pytest.mark.parametrize(
    ("running", "picked"), [("ab", "a"), ("bc", "b"), ("", "a"), ("z", "a")], ids=["first", "second", "none", "too far"]
)
def test_if_aws_would_not_run_the_cheapest_the_next_one_stands_for_its_architecture(running: str, picked: str) -> None:
    """The first candidate of an architecture that AWS would run, the cheapest first, is picked; the cheapest if there is none."""
    judges = object.__new__(advice._Repeater)
    judges.repeat = lambda found, count: (SimpleNamespace(would_run=found[0][0] in running),)  # type: ignore[method-assign,assignment]
    found = [(each, Estimate(1.0, 1.0)) for each in "abcdefghijklz"]
    assert judges.pick_first_to_run(found)[0] == picked  # type: ignore[arg-type,comparison-overlap]

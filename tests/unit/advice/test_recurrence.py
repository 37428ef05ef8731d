"""What training again and again costs in a month, by arithmetic on the advice's own figures."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from crossover.advice import advice, page, recurrence
from crossover.advice import question as subject
from crossover.advice.advice import Advice
from crossover.advice.candidates import Candidate
from crossover.advice.question import Constraints, describe_needed_quota
from crossover.advice.search import Finalist, ThisMachine
from crossover.errors import ConfigError
from crossover.reports import display
from crossover.simulation import figures
from crossover.validation import load
from tests.unit.advice.few import few_candidates

CONFIG = Path(__file__).parents[3] / "config"
HOURLY = recurrence.HourlyCost(standing_usd=0.5, machine_usd=0.25, endpoint_usd=0.01, checks_usd=0.001)


@pytest.fixture(scope="module", autouse=True)
def _few() -> Iterator[None]:
    """Limit the candidates for all tests of the module."""
    with few_candidates():
        yield


@pytest.fixture(scope="module")
def found() -> Advice:
    """Return advice for a small all-reduce experiment on CIFAR-10."""
    question, sizes, _ = subject.build_question(
        load(CONFIG / "all-reduce-cifar10.yaml", ("training.epochs=2", "workers=2", "data.limit=8192"))
    )
    return advice.advise(question, Constraints(), sizes, processes=1, repetitions=5)


def test_a_run_that_is_made_once_has_no_month(found: Advice) -> None:
    """Training once has no monthly costs."""
    assert recurrence.monthly_costs(found, "once", hourly_cost=lambda _: HOURLY) == ()


@pytest.mark.parametrize(("every", "runs"), [("hour", 730.0), ("day", 730 / 24), ("week", 730 / 168), ("month", 1.0)])
def test_start_up_is_counted_each_time_and_standing_all_the_time(every: str, runs: float, found: Advice) -> None:
    """A month costs start-up for each run if the stack is deployed each time, and standing hours all month if it stays deployed."""
    costs = {
        each.way.partition(f"{found.winner.candidate.words}, ")[2].partition(" (")[0] or each.way: each
        for each in recurrence.monthly_costs(found, every, hourly_cost=lambda _: HOURLY)
        if each.of_winner or not each.usd
    }
    run_usd, before_h, ready_h = found.winner.usd.p50, found.winner.before_s / 3_600, found.winner.seconds.p50 / 3_600
    run_h = found.winner.running.p50 / 3_600
    assert ready_h < 1, "the endpoint's started hour is the first, which the run's bill has"
    once_usd = run_usd + 0.49 * before_h
    assert costs["deployed and destroyed each time"].usd == pytest.approx(runs * once_usd)
    assert costs["left deployed between runs"].usd == pytest.approx(
        730 * 0.501 + runs * max(0.0, run_usd - 0.49 * run_h - 0.01)
    )
    (alone,) = (each for each in costs.values() if each.way.endswith("have running, its price not counted"))
    assert alone.usd == 0 and f"{display.rough_usd(730 * 0.25)} if you rent it all month" in alone.parts
    assert "needs such a machine, idle for" in alone.why_not


def test_each_kind_of_machine_has_its_best_line_and_the_reason_against_it(found: Advice) -> None:
    """The monthly costs have the best way on each other kind of machine, with the reason against it, such as a missed deadline; the best
    way has none.
    """
    monthly = recurrence.monthly_costs(found, "week", hourly_cost=lambda _: HOURLY)
    for rival in advice.rivals_of(found):
        (line,) = (each for each in monthly if each.way.startswith(f"{rival.candidate.words}, "))
        assert rival.running.p50 <= line.ready_s <= rival.seconds.p50 and line.why_not
    best, *others = monthly
    assert best.of_winner and not best.why_not and all(each.why_not for each in others)
    strict = replace(found, constraints=Constraints(deadline_s=1.01 * found.winner.seconds.p95))
    missing = [each.why_not for each in recurrence.monthly_costs(strict, "week", hourly_cost=lambda _: HOURLY)]
    late = [each for each in advice.rivals_of(strict) if advice.list_missed_constraints(strict, each)]
    assert "".join(missing).count("misses the deadline") == len(late) > 0


def test_a_stack_left_deployed_says_what_runs_between_runs(found: Advice) -> None:
    """The way that stays deployed says that no instance runs between runs, or that its database hosts and its broker do."""

    def way(candidate: Candidate) -> str:
        """Return the way on the candidate that stays deployed."""
        finalist = replace(found.winner, candidate=candidate)
        return recurrence._price_lasting_deployment(found, finalist, "day", lambda _: HOURLY).way

    size = found.winner.candidate.batch_size
    machine = Candidate("single", 1, size, 1, on="ec2", instance="t2.small")
    assert way(machine) == "one t2.small, left deployed between runs (no instance runs meanwhile)"
    assert way(Candidate("spirt", 2, size, 1, memory_mb=1_024)).endswith(
        "(its database hosts and broker run on meanwhile)"
    )


def test_the_first_sentence_says_what_a_month_costs(found: Advice) -> None:
    """The headline names the dollars of a month, and of one run: the month's divided by its number of runs."""
    monthly = recurrence.monthly_costs(found, "week", hourly_cost=lambda _: HOURLY)
    way = recurrence.find_winner(monthly)
    assert way is not None and way.usd == min(each.usd for each in monthly if each.of_winner)
    runs = recurrence.count_runs(found, "week")
    found = replace(found, month_usd=way.usd, month_runs=runs)
    said = advice.headline(found)
    once, month = (display.rough_usd(usd) for usd in (way.usd / runs, way.usd))
    assert f": about {once} a run with start-up and network, about {month} a month, ready in " in said
    here = ThisMachine(seconds=1.0, threads=1, sooner=found.winner, times=None)
    said = advice.headline(replace(found, here=here))
    assert ", $0 a month (its own price is not counted); AWS would" in said and f"about {month} a month" in said
    assert "a month" not in advice.headline(replace(found, month_usd=None, month_runs=None))


def test_one_that_is_much_sooner_for_little_more_is_named(found: Advice) -> None:
    """`find_sooner` returns the cheapest written candidate that takes half the winner's time and little more money, none that misses the
    deadline or is dear, and none if this machine is the advice; the advice then has a line on it instead of its usual one.
    """

    def made(of: Finalist, seconds: float, usd: float) -> Finalist:
        """Return the candidate of `of` with the given seconds and dollars in each repetition, without start-up."""
        outcomes = tuple(replace(each, seconds=seconds, usd=usd) for each in of.outcomes)
        return replace(of, outcomes=outcomes, before_s=0.0, start_up=())

    def sooner(advised: Advice, every: str = "once") -> advice.Sooner | None:
        """Return what `find_sooner` finds, if what is deployed costs nothing."""
        free = recurrence.HourlyCost(0.0, 0.0)
        return recurrence.find_sooner(advised, every, hourly_cost=lambda _: free)

    winner, rival = made(found.winner, 1_000.0, 0.50), advice.rivals_of(found)[0]
    quick = made(rival, 400.0, 0.598)
    told = replace(found, winner=winner, cards=(), alternatives=(quick,), constraints=Constraints(gpu_quota=64))
    named = sooner(told)
    assert named is not None and named.finalist is quick and named.more_usd == pytest.approx(0.098)
    for dear in (made(rival, 400.0, 1.60), made(rival, 600.0, 0.60)):
        assert sooner(replace(told, alternatives=(dear,))) is None
    assert sooner(replace(told, winner=made(winner, 1_000.0, 10.0), alternatives=(made(rival, 400.0, 11.9),)))
    month, hours = sooner(told, "week"), sooner(told, "hour")
    assert month is not None and month.more_usd == pytest.approx(730 / 168 * 0.098)
    assert hours is not None and hours.more_usd == pytest.approx(71.54), "of 365 dollars"
    here = ThisMachine(seconds=1.0, threads=1, sooner=winner, times=None)
    assert sooner(replace(told, here=here)) is None
    line, *others = advice.alternatives(replace(told, sooner=named))
    assert line.startswith(f"For 9.8 cents more a run the model would be ready in 6.7{display.GAP}minutes, not 17")
    assert rival.candidate.words in line and not any(rival.candidate.words in each for each in others)


@pytest.mark.parametrize(
    ("every", "times"), [("hour", "0 * * * *"), ("day", "0 3 * * *"), ("week", "0 3 * * 1"), ("month", "0 3 1 * *")]
)
def test_the_schedule_is_one_line_for_cron(every: str, times: str, found: Advice) -> None:
    """The line for cron deploys, runs and destroys at the times of `times`; if the stack stays deployed, it only runs, and the words say to
    deploy it first. On this machine the run has the options of the question.
    """
    here, file = "'my model.yaml' --set training.epochs=3", Path("advice/1-single.yaml")

    def line(advised: Advice, hourly: recurrence.HourlyCost) -> str:
        """Return the line for cron. `advised`: the advice; `hourly`: dollars per hour of its stack."""
        monthly = recurrence.monthly_costs(advised, every, hourly_cost=lambda _: hourly)
        found_ = recurrence.describe_schedule(advised, every, monthly, here=here, file=file)
        assert "no schedule on AWS" in found_.words
        stays = " deploy " not in found_.line and "--on aws" in found_.line
        assert stays is ("again every 30 days: `crossover deploy advice/1-single.yaml`" in found_.words)
        return found_.line

    each_time = line(found, HOURLY)
    assert "\n" not in each_time and each_time.startswith(f"{times} cd ")
    assert "crossover deploy advice/1-single.yaml --yes && " in each_time
    assert each_time.index(" run advice/1-single.yaml --on aws; ") < each_time.index(
        " destroy advice/1-single.yaml --yes"
    )
    deployed = line(found, recurrence.HourlyCost(0.0, 0.0))
    assert "run advice/1-single.yaml --on aws" in deployed
    own = replace(found, here=ThisMachine(seconds=1.0, threads=1, sooner=found.winner, times=None))
    assert "run 'my model.yaml' --set training.epochs=3 --on inline" in line(own, HOURLY)
    assert recurrence.describe_schedule(found, "once", (), here=here, file=file) == ("", "")


def test_a_run_that_does_not_end_before_the_next_one_comes_last(found: Advice) -> None:
    """A run on this machine that takes longer than the time until the next one comes last in the monthly costs, marked as not in time."""
    never = ThisMachine(seconds=7_200.0, threads=1, sooner=found.winner, times=None)
    costs = recurrence.monthly_costs(
        replace(found, here=never), "hour", hourly_cost=lambda _: recurrence.HourlyCost(0.0, 0.0)
    )
    assert costs[-1].way == "this machine, its own price not counted" and not costs[-1].in_time
    assert "a run takes longer than the hour between two runs" in costs[-1].words


def test_a_quota_says_which_gpus_may_start_today(found: Advice) -> None:
    """A GPU candidate can start if the quota of GPU vCPUs covers its instances; `Advice.startable` is one that can."""
    gpus = [each.candidate for each in found.finalists if each.candidate.gpu]
    assert gpus, "the example has no candidate with a GPU"
    needed = gpus[0].workers * figures.load_instances()[gpus[0].instance].vcpus
    assert (
        describe_needed_quota(gpus[0])
        and describe_needed_quota(gpus[0], needed - 1)
        and not describe_needed_quota(gpus[0], needed)
    )
    today = found.startable
    assert today is not None and not describe_needed_quota(today.candidate)


def test_the_page_says_above_its_commands_which_quota_is_needed(found: Advice) -> None:
    """The page warns of a needed quota, as the terminal does, unless the account has it or the advice is this machine."""
    gpu = replace(found, winner=next(each for each in found.finalists if each.candidate.gpu))
    granted = replace(gpu, constraints=replace(gpu.constraints, gpu_quota=10_000))
    own = replace(gpu, here=ThisMachine(seconds=1.0, threads=1, sooner=found.winner, times=None))
    line = advice.quota_line(gpu)
    assert line and [page.build_page(each, []).warnings for each in (gpu, granted, own)] == [[line], [], []]


def test_one_sentence_says_what_waiting_for_a_quota_gains(found: Advice) -> None:
    """The line on the needed quota names it, and says by how much the winner is sooner and dearer than what the account may start today."""
    gpu = next(each for each in found.finalists if each.candidate.gpu)
    assert found.startable is not None
    slow = copy_with_outcomes(found.startable, seconds=gpu.running.p50 + 7_200.0, usd=gpu.usd.p50 + 0.4)
    alone = replace(found, winner=gpu, alternatives=(slow,), front=(), unknown=(), rejected=())
    vcpus = gpu.candidate.workers * figures.load_instances()[gpu.candidate.instance].vcpus
    spot = "spot " if gpu.candidate.spot else ""
    sooner = display.rough_seconds(slow.seconds.p50 - gpu.seconds.p50)
    asked = f"With a quota of {vcpus} vCPUs for {spot}G instances (crossover doctor names it)"
    assert f"{asked} it is ready {sooner} sooner and costs 40 cents less." in advice.quota_line(alone)
    free = copy_with_outcomes(slow, seconds=gpu.running.p50 + gpu.before_s - slow.before_s, usd=gpu.usd.p50 / 100)
    dearer = display.rough_usd(gpu.usd.p50 - free.usd.p50)
    said = f"it is ready at about the same time and costs {dearer} more."
    assert said in advice.quota_line(replace(alone, alternatives=(free,)))


def copy_with_outcomes(finalist: Finalist, *, seconds: float, usd: float) -> Finalist:
    """Return the finalist with `seconds` and `usd` in each of its outcomes."""
    return replace(finalist, outcomes=tuple(replace(each, seconds=seconds, usd=usd) for each in finalist.outcomes))


def test_what_a_new_account_may_start_today_takes_few_standard_vcpus(found: Advice) -> None:
    """Standard vCPUs count those of programs and database hosts; an account without a quota cannot start a candidate that needs many."""
    instances = figures.load_instances()
    for each in (finalist.candidate for finalist in found.finalists):
        machines = 0 if each.gpu or not each.instance else each.workers * instances[each.instance].vcpus
        hosts = (
            0 if not each.host else instances[each.host].vcpus * (1 if each.architecture != "spirt" else each.workers)
        )
        assert subject.count_standard_vcpus(each) == machines + hosts
    gpu = next(each for each in found.finalists if each.candidate.gpu)
    large = next(each for each in found.finalists if subject.count_standard_vcpus(each.candidate) > 5)
    alone = replace(found, winner=gpu, alternatives=(), front=(large,), unknown=(), rejected=())
    assert alone.startable is None and advice.quota_line(alone).startswith("Not today: ")
    needed = subject.count_standard_vcpus(large.candidate)
    assert f"needs {needed} vCPUs of standard instances" in describe_needed_quota(large.candidate)
    assert not describe_needed_quota(large.candidate, 8), "an account with a GPU quota is not new"
    assert found.startable is not None and subject.count_standard_vcpus(found.startable.candidate) <= 5


@pytest.mark.parametrize("text", ["some", "-1", "1.5", ""])
def test_a_quota_that_is_no_number_is_refused(text: str) -> None:
    """`parse_constraints` raises ConfigError for a GPU quota that is neither `none` nor a whole number from 0."""
    with pytest.raises(ConfigError, match=r"--gpu-quota: .* expected none, or the vCPUs"):
        subject.parse_constraints(None, None, None, None, text)

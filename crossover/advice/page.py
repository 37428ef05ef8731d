"""Write advise's answer: its page, its YAML files and advice.json."""

import csv
import hashlib
import io
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

import yaml

from crossover.advice import explain
from crossover.advice.advice import (
    Advice,
    cautions,
    describe_drivers,
    headline,
    is_this_machine_best,
    quota_line,
    rivals_of,
    verdict,
)
from crossover.advice.candidates import experiment_of
from crossover.advice.explain import Swing, list_swings, list_time_swings
from crossover.advice.recurrence import MonthlyCost, Schedule
from crossover.advice.search import RULES, Finalist, ThisMachine
from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.reports import display
from crossover.reports.display import Band
from crossover.reports.folder import write_atomically
from crossover.reports.pages import Page, Plot, Sheet, plot
from crossover.validation.combinations import NAME_LIMIT, PROJECT_AND_NAME_LIMIT

# --- page -------------------------------------------------------------------------------------------------------------

PAGE = "advice.html"
NO_SCHEDULE = Schedule("", "")
KINDS = {"lambda": "functions", "ec2": "instances", "gpu": "GPUs"}


def write_page(
    found: Advice,
    out: Path,
    notes: Sequence[str],
    files: Sequence[Path] = (),
    *,
    here: str = "",
    every: str = "once",
    monthly: Sequence[MonthlyCost] = (),
    schedule: Schedule = NO_SCHEDULE,
) -> Path:
    """Write the page of the advice `found` (advice.html) into the folder `out`, which is created if necessary, and return its path. The
    other arguments are those of `build_page`.
    """
    from crossover.reports.report_pages import render  # matplotlib: not before the answer is printed

    out.mkdir(parents=True, exist_ok=True)
    made = build_page(found, notes, files, here=here, every=every, monthly=monthly, schedule=schedule)
    write_atomically(out / PAGE, render(made).encode())
    return out / PAGE


def build_page(
    found: Advice,
    notes: Sequence[str],
    files: Sequence[Path] = (),
    *,
    here: str = "",
    every: str = "once",
    monthly: Sequence[MonthlyCost] = (),
    schedule: Schedule = NO_SCHEDULE,
) -> Page:
    """Return the page of the advice `found`. `notes`: assumptions, a sentence each, which are folded.

    `files`: YAML files of the candidates `found.told`, in their order, empty if none was written; the first is the winner's, for the
    command that deploys it; `here`: YAML file that was asked about with its --set options, quoted (`command_words`), for the command that
    trains it on this machine, if that is the advice; `every`: how often it is trained; `monthly`: the cost of each way to train it that
    often; `schedule`: how to start it so often, empty if it is trained once.
    """
    base, prices = found.question.base, found.question.prices
    entries = (found.winner, *found.alternatives)
    money = Sheet(
        title="Where the money goes",
        head=["", *(each.candidate.words for each in entries)],
        rows=list(_part_rows([(found.drives[each.candidate].usd, each.usd.p50) for each in entries], display.usd)),
        words=1,
        label="projected",
        folded=True,
        stacked=True,
        note=f"Dollars of a run; a function's dollars by what its seconds go to. {PARTS_NOTE}",
    )
    time = Sheet(
        title="Where the time goes",
        head=money.head,
        rows=list(
            _part_rows([(found.drives[each.candidate].seconds, each.seconds.p50) for each in entries], display.seconds)
        ),
        words=1,
        label="projected",
        folded=True,
        stacked=True,
        note="Seconds from deploy on: by how much a run is shorter if nothing moves, and then if nothing has to start. "
        f"{PARTS_NOTE}",
    )
    return Page(
        kind="Advice",
        title=f"{headline(found)}.",
        subtitle=f"{base.training.model} on {base.data.dataset}, {base.training.epochs} epochs: {found.constraints.words}; "
        f"prices of {prices.region}, {prices.as_of}",
        labels=["projected"],
        links=[(TABLE, TABLE), (ANSWER, ANSWER)],
        assumptions=[
            f"Time and dollars are the middle of {len(found.winner.outcomes)} simulated repetitions, not measured; "
            f"prices of {prices.region}, {prices.as_of}.",
            *cautions(found.winner.candidate, found.question.calibration),
            *notes,
            *explain.list_notes(found),
        ],
        verdict=" ".join((*verdict(found), describe_drivers(found))),
        warnings=[line] if (line := quota_line(found)) and not is_this_machine_best(found) else [],
        commands=_list_commands(found, files, here),
        plots=list(_draw_front(found)),
        sheets=[
            Sheet(
                title="The candidates to choose from",
                head=explain.CARDS_HEAD,
                rows=_choice_rows(found, files),
                words=2,
                last_words=1,
                label="projected",
                stacked=True,
            ),
            *_monthly_cost_sheet(every, monthly, schedule),
            *_sensitivity_sheets(found),
            Sheet(
                title="The Pareto front: dollars, and time with start-up",
                head=explain.FRONT_HEAD,
                rows=explain.front_rows(found.front),
                words=explain.FRONT_WORDS,
                label="projected",
                folded=True,
                stacked=True,
            ),
            Sheet(
                title="The best of each other architecture",
                head=[explain.REJECTED_HEAD[n] for n in ORDER],
                rows=[[row[n] for n in ORDER] for row in explain.rejected_rows(found)],
                words=3,
                label="projected",
                folded=True,
                stacked=True,
            ),
            money,
            time,
            *_unknown_accuracy_sheets(found),
            *_yaml_sheet(found, files),
        ],
    )


def _yaml_sheet(found: Advice, files: Sequence[Path]) -> Iterator[Sheet]:
    """Yield a folded text to copy, the winner's YAML file, for a reader who has the page alone; nothing if no file was written. `files`:
    see `build_page`.
    """
    if files:
        yield Sheet(
            title=f"The YAML file of {found.winner.candidate.words}",
            head=(),
            rows=(),
            note=f"To be saved as {files[0]}, which the commands above name.",
            command=as_yaml(found, found.winner, files[0].parent),
            folded=True,
        )


def _list_commands(found: Advice, files: Sequence[Path], here: str) -> list[str]:
    """Return the commands that follow the advice: train on this machine, or deploy the winner, train there and destroy it. Without `files`
    the latter are left out. Arguments: see `build_page`.
    """
    if here and is_this_machine_best(found):
        return [f"crossover run {here} --on inline"]
    steps = (("deploy",), ("run", "--on", "aws"), ("destroy",)) if files else ()
    return [shlex.join(["crossover", name, str(files[0]), *options]) for name, *options in steps]


def _monthly_cost_sheet(every: str, monthly: Sequence[MonthlyCost], schedule: Schedule) -> Iterator[Sheet]:
    """Yield the table of the dollars per month, if the model is trained more than once. `schedule`: how to start it so often. `every`: time
    between two runs, in words such as "week"; `monthly`: cost of each way, empty if the model is trained once.
    """
    if monthly:
        yield Sheet(
            title=f"Trained every {every}: dollars a month",
            head=["way", "consists of", "why not", "a month", "ready in"],
            rows=[[each.way, each.parts, each.why_not or display.DASH, *each.figures] for each in monthly],
            words=3,
            note=f"{schedule.words[:1].upper()}{schedule.words[1:]}",
            command=schedule.line,
            label="projected",
            stacked=True,
        )


MOST_CHOICES = 6


def _choice_rows(found: Advice, files: Sequence[Path]) -> list[list[str]]:
    """Return table rows, with the columns of `explain.CARDS_HEAD`, of the candidates to choose from, at most MOST_CHOICES: the cards
    (cheapest, balanced, soonest) with their on-demand variants, this machine, then the alternatives. `files`: YAML files of the candidates
    `found.told`, in their order.
    """
    named = explain.card_rows(found, files)
    told = {row[1] for row in named}
    others = [each for each in found.alternatives if each.candidate.words not in told]
    rows = [*named, *(explain.card_row("alternative", each, found, files) for each in others)]
    return rows[:MOST_CHOICES]


MATTERS = 1.005  # what changes the ratio by less is left out
ORDER = (0, 1, 4, 2, 3)  # of the columns of the rejected: words first


def _unknown_accuracy_sheets(found: Advice) -> list[Sheet]:
    """Return the table of candidates that make other updates, so that their accuracy is unknown, in a list; an empty list if there are
    none.
    """
    if not found.unknown:
        return []
    note = "They make other updates: what accuracy they reach after as many epochs is not known."
    rows = explain.front_rows(found.unknown)
    return [
        Sheet(
            title="Accuracy unknown",
            head=explain.FRONT_HEAD,
            rows=rows,
            words=explain.FRONT_WORDS,
            note=note,
            label="projected",
            folded=True,
            stacked=True,
        )
    ]


PARTS_NOTE = (
    "The parts are of one simulation at AWS's median speed, without stragglers; the candidate's own figure is the median of repetitions "
    "with them, so it differs from the sum."
)


def _part_rows(each: Sequence[tuple[Mapping[str, float], float]], shown: Callable[[float], str]) -> Iterator[list[str]]:
    """Yield a table row for each part, such as a cost component, the largest first: its name, then its value in each column, a dash for 0;
    then a row with the sums of the parts, and one with the candidates' own figures. `each`: ({part: value}, the candidate's figure) for
    each column; `shown`: formats a value.
    """
    names = dict.fromkeys(name for parts, _ in each for name in parts)
    for name in sorted(names, key=lambda name: -max(parts.get(name, 0.0) for parts, _ in each)):
        yield [name, *(shown(parts[name]) if parts.get(name) else display.DASH for parts, _ in each)]
    yield ["sum of these parts", *(shown(sum(parts.values())) for parts, _ in each)]
    yield ["the candidate, median", *(shown(figure) for _, figure in each)]


DESK_IN, PHONE_IN = (6.4, 3.4), (3.4, 3.6)  # size of the chart on a desk and on a phone


OUTSIDE_TIMES = (
    3.0  # how many times the dollars, or the time, of all that must be readable a candidate may take to be drawn
)


def list_drawn(found: Advice) -> list[Finalist]:
    """Return the shortlisted candidates that the chart shows: the winner, the alternatives, the cards and the front, and all others that
    take at most OUTSIDE_TIMES times the most dollars, and the most time, of these. Dearer ones would squeeze the labelled points.
    """
    named = (found.winner, *found.alternatives, *found.front, *(card.finalist for card in found.cards))
    most_usd, most_s = (
        OUTSIDE_TIMES * max(of) for of in zip(*((f.usd.p50, f.seconds.p50) for f in named), strict=True)
    )
    return [
        each for each in found.finalists if each in named or (each.usd.p50 <= most_usd and each.seconds.p50 <= most_s)
    ]


def _draw_front(found: Advice) -> Iterator[Plot]:
    """Yield the chart of the advice: dollars and time of the candidates of `list_drawn`, and of this machine if it was measured, with
    labels for the advice and the cards. The caption names how many are left out.
    """
    from crossover.reports import plots  # matplotlib

    names = {card.finalist.candidate: ", ".join(card.names) for card in found.cards}
    is_here, drawn = is_this_machine_best(found), list_drawn(found)
    shown = [
        plots.Mark(
            x=each.usd,
            y=Band(*(value / 60 for value in each.seconds)),
            title=f"{each.candidate.words}: {each.words}",
            group="accuracy unknown" if each in found.unknown else KINDS[each.kind],
            chosen=each is found.winner and not is_here,
            label=_point_label(each, names.get(each.candidate, ""), is_advice=each is found.winner and not is_here),
        )
        for each in drawn
    ]
    if found.here is not None:
        shown.append(
            plots.Mark(
                x=(0.0, 0.0, 0.0),
                y=Band(*(value / 60 for value in found.here.band)),
                title=found.here.words,
                group="this machine",
                chosen=is_here,
                label="advice: this machine" if is_here else "this machine",
            )
        )
    desk, phone = (
        plots.marks(
            shown, x="dollars", y="minutes, from deploy on", name=name, format_x=display.usd_tick, size_in=size_in
        )
        for name, size_in in (("front", DESK_IN), ("front-narrow", PHONE_IN))
    )
    count = len(found.finalists) - len(drawn)
    outside = f"{count} more, over {OUTSIDE_TIMES:.0f} times as dear or as long as the front and the options named here, are left out. "
    yield plot(
        "Time against dollars",
        desk,
        narrow=phone,
        caption="Each point is a way to train it, with p5 to p95 both ways; the advice is ringed. Cheapest, balanced and soonest are those "
        f"of the points on AWS that keep to deadline and budget in 19 of 20 repetitions. {outside if count else ''}A pointer that rests on "
        "a point shows its figures, and tables below have all of them.",
        label="projected",
    )


def _point_label(each: Finalist, names: str, *, is_advice: bool) -> str:
    """Return the text beside the point of the candidate `each` in the chart: its names and what it is; "" if it has no name. `names`: such
    as "cheapest, soonest"; `is_advice`: whether it is what the advice recommends.
    """
    called = ", ".join(filter(None, ("advice" if is_advice and not names else "", names)))
    return f"{called}: {each.candidate.words}" if called else ""


def _sensitivity_sheets(found: Advice) -> Iterator[Sheet]:
    """Yield a table of what would change the advice: for each assumption that matters, the dollars of the best alternative (of another kind
    of resource, if there is one) divided by the winner's; or, if this machine is the advice, the time of the soonest candidate on AWS
    divided by this machine's. Yields nothing if there is no other candidate or no assumption matters.
    """
    if found.here is not None and is_this_machine_best(found):
        sooner = found.here.sooner.candidate.words
        note = f"When {sooner} is ready, divided by when this machine is: below 1 AWS would be the sooner one."
        yield from _swing_sheet(list_time_swings(found.question, found.here), note)
        return
    rival = next(iter((*rivals_of(found), *found.alternatives)), None)
    if rival is None:
        return
    note = f"Dollars of {rival.candidate.words}, divided by the dollars of the advice: below 1 it would be the cheaper one."
    yield from _swing_sheet(list_swings(found.question, found.winner.candidate, rival.candidate), note)


def _swing_sheet(swings: Sequence[Swing], note: str) -> Iterator[Sheet]:
    """Yield the table of those assumptions that matter; nothing if there are none. `note`: what the ratios are."""
    rows = [
        [each.what, _describe_turn(each), display.times(each.smaller), display.times(each.larger)]
        for each in swings
        if each.width > MATTERS
    ]
    if rows:  # none of two that are alike: nothing sets one apart from the other
        yield Sheet(
            title="What would change the answer",
            head=["changed by", "then", "with less of it", "with more of it"],
            rows=rows,
            words=2,
            label="projected",
            folded=True,
            stacked=True,
            note=note,
        )


def _describe_turn(each: Swing) -> str:
    """Return in words whether less or more of the assumption `each` would change the advice."""
    ends = [name for name, ratio in (("less", each.smaller), ("more", each.larger)) if ratio < 1]
    return f"the other is better with {' and '.join(ends)}" if ends else "the advice stays"


# --- writing ----------------------------------------------------------------------------------------------------------
# `advice/`: the winner, the named ones and two others as YAML files that run as they are, every simulated candidate as CSV, the whole as
# JSON.

MOST_HOURS = 720.0  # lifetime.ttl_hours
RUN_TIME_MARGIN = 1.5  # hours that a run may take, in p95 of what it is projected to
DIGEST_LETTERS = 6  # at the end of a name: of 100 answers in an account, two share a name in 1 of 3,000 accounts
TABLE, ANSWER = "advice.csv", "advice.json"
OWNER = "# Part of the advice in "
SEAL = "# By `crossover advise`, which overwrites it as long as nobody changes it. As written: "
SCHEMA = Path(__file__).parents[2] / "config" / "experiment.schema.json"


@dataclass(frozen=True, kw_only=True)
class PlannedFiles:
    """The files of an advice before they are written. `out`: folder; `texts`: content of the YAML files by path, the winner's first;
    `earlier`: files of an earlier advice in the folder, each with its digest, or "" if the digest is in the file itself.
    """

    out: Path
    texts: Mapping[Path, bytes]
    earlier: Mapping[Path, str]

    @property
    def paths(self) -> list[Path]:
        """Paths of all files of the advice: the YAML files, advice.csv and advice.json."""
        return [*self.texts, self.out / TABLE, self.out / ANSWER]

    @property
    def yamls(self) -> list[Path]:
        """The YAML files in the order of the advice's candidates; empty if some must not be overwritten, so that none is written."""
        return [] if self.changed or self.foreign else list(self.texts)

    @cached_property
    def foreign(self) -> dict[Path, Path]:
        """The YAML files that exist and are part of an advice in another folder, as {file: that folder}: they must not be overwritten.
        Looked up at the first access, then kept.
        """
        found = ((path, _find_owner(path)) for path, text in self.texts.items() if path.exists())
        return {path: owner for path, owner in found if owner and owner.resolve() != self.out.resolve()}

    @cached_property
    def changed(self) -> list[Path]:
        """The YAML files that exist with another content and that somebody has edited since they were written: they must not be
        overwritten. Looked up at the first access, then kept.
        """
        known = {path.resolve(): digest for path, digest in self.earlier.items()}
        return [
            path
            for path, text in self.texts.items()
            if path.exists() and path.read_bytes() != text and not is_as_written(path, known.get(path.resolve(), ""))
        ]


def plan_files(found: Advice, out: Path, *, config: Path) -> PlannedFiles:
    """Return the files to be written for the advice `found`, without writing them. The YAML files go into `out`, or beside `config`, the
    experiment's file, if that names user code, which is looked up beside the YAML file; there their names contain that of `out`.
    """
    own, texts = _names_user_code(found.question.base), dict[Path, bytes]()
    for number, each in enumerate(found.told, start=1):
        name = f"{number}-{each.candidate.architecture.replace('_', '-')}.yaml"
        path = config.parent / f"{config.stem}-{out.resolve().name}-{name}" if own else out / name
        head = f"# yaml-language-server: $schema={os.path.relpath(SCHEMA, path.parent)}\n"
        head += f"{OWNER}{os.path.relpath(out, path.parent)}\n" if own else ""
        texts[path] = add_seal(head, as_yaml(found, each, path.parent)).encode()
    return PlannedFiles(out=out, texts=texts, earlier=_list_earlier_files(out))


def write_files(files: PlannedFiles, answer: Mapping[str, Any], found: Advice) -> None:
    """Write the planned files: the YAML files, `answer` as advice.json, and the candidates of `found` as advice.csv. YAML files of an
    earlier advice in the folder are deleted, unless somebody has edited them. Raises ConfigError, before anything is written, if a file
    that somebody has edited, or one of another folder's advice, would be overwritten.
    """
    if files.foreign:
        owned = ", ".join(f"{path}: part of the advice in {owner}" for path, owner in files.foreign.items())
        raise ConfigError(
            f"{owned}; nothing was written, the answer is above: give --out a folder of another name, or delete that advice"
        )
    if files.changed:
        raise ConfigError(
            f"{', '.join(map(str, files.changed))}: changed since advice wrote it, so that nothing was written; the answer is "
            "above: move or delete the changed files"
        )
    files.out.mkdir(parents=True, exist_ok=True)
    for path, text in files.texts.items():
        write_atomically(path, text)
    write_atomically(files.out / TABLE, to_csv(found).encode())
    kept = {path.resolve() for path in files.texts}
    for path, digest in files.earlier.items():
        if path.resolve() not in kept and path.suffix == ".yaml" and path.is_file() and is_as_written(path, digest):
            path.unlink()
    write_atomically(files.out / ANSWER, (json.dumps(answer, indent=1, allow_nan=False) + "\n").encode())


def _find_owner(path: Path) -> Path | None:
    """Return the folder of the advice that an existing YAML file is part of, if its first lines name one and an advice is there; None if
    not.
    """
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[:2]:
        if line.startswith(OWNER):
            folder = path.parent / line.removeprefix(OWNER)
            return folder if (folder / ANSWER).is_file() else None
    return None


def _list_earlier_files(out: Path) -> dict[Path, str]:
    """Return the files of an earlier advice that advice.json in `out` names, each with its digest, or "" if the digest is in the file
    itself; {} if there is no such file or it cannot be read as JSON.
    """
    try:
        files = json.loads((out / ANSWER).read_text(encoding="utf-8")).get("files", {})
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}  # another's file: nothing of its own is known
    if isinstance(files, dict):
        return {out / name: str(digest) for name, digest in files.items()}
    return {Path(name): "" for name in files if isinstance(name, str)} if isinstance(files, list) else {}


def add_seal(head: str, body: str) -> str:
    """Return the text of a YAML file with a line between `head` and `body` that contains their digest, by which `is_as_written` notices
    edits.
    """
    return f"{head}{SEAL}{_seal(head, body)}\n{body}"


def is_as_written(path: Path, digest: str = "") -> bool:
    """Return whether nobody has edited the file since advice wrote it: it still has the digest that one of its lines contains, or the
    SHA-256 `digest`, which earlier versions kept in advice.json. A file without a digest counts as edited. Raises OSError if the file
    cannot be read.
    """
    text = path.read_bytes()
    if digest and hashlib.sha256(text).hexdigest() == digest:
        return True
    head, mark, rest = text.decode("utf-8", "replace").partition(SEAL)
    seal, _, body = rest.partition("\n")
    return bool(mark) and seal == _seal(head, body)


def _seal(head: str, body: str) -> str:
    """Return a digest of a file's text, made of the parts before and after the line that contains the digest."""
    return hashlib.sha256((head + body).encode()).hexdigest()[:16]


def _names_user_code(base: Experiment) -> bool:
    """Return whether the experiment's model, loss, metric or data loader is user code."""
    training = base.training
    return any(":" in name for name in (training.model, training.loss, training.metric.name, base.data.dataset))


def build_experiment(found: Advice, finalist: Finalist, folder: Path) -> Experiment:
    """Return the candidate `finalist` of the advice `found` as an experiment that can be run and deployed. Its name ends in a digest of its
    other fields, except the lifetime, and of the `folder` of its file, so that no two answers change each other's stacks. Its lifetime is
    long enough for its projected run, up to MOST_HOURS; it is that if it is the winner and stays deployed between runs.
    """
    base = found.question.base
    made = replace(experiment_of(base, finalist.candidate), recipe="none")
    content = json.dumps([str(folder.resolve()), made.to_plain()], sort_keys=True)
    end = f"-{hashlib.sha256(content.encode()).hexdigest()[:DIGEST_LETTERS]}"
    room = min(NAME_LIMIT, PROJECT_AND_NAME_LIMIT - len(base.project)) - len(end)
    hours = max(base.lifetime.maximum_run_hours, ceil(RUN_TIME_MARGIN * finalist.seconds.p95 / 3_600))
    hours = min(hours, MOST_HOURS)
    stays = found.stays and finalist is found.winner
    ttl_hours = MOST_HOURS if stays else max(base.lifetime.ttl_hours, min(hours + 4, MOST_HOURS))
    lifetime = replace(base.lifetime, maximum_run_hours=hours, ttl_hours=ttl_hours)
    return replace(made, name=f"{base.name[:room].rstrip('-')}{end}", lifetime=lifetime)


def as_yaml(found: Advice, finalist: Finalist, folder: Path) -> str:
    """Return the candidate `finalist` of the advice `found` as the text of an experiment's YAML file: the fields that differ from their
    defaults, below a comment with its projected time and cost. `folder`: folder of the file.
    """
    made = build_experiment(found, finalist, folder)
    usual = Experiment(name=made.name, architecture=made.architecture).to_plain()
    plain = {"name": made.name, "architecture": made.architecture, **_differing_fields(made.to_plain(), usual)}
    names = [name for card in found.cards for name in card.names if card.finalist is finalist]
    called = f"{', '.join(names)}: " if names else ""
    together = f"both together {display.seconds(finalist.seconds.p95)} at p95"
    comment = f"# [projected] {called}{finalist.candidate.words}: {finalist.words}; {together}\n"
    return comment + yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def _differing_fields(plain: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return those fields of `plain` whose values differ from `usual`; of nested mappings only the differing fields. Fields that only
    `usual` has are left out.
    """
    found: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, Mapping) and isinstance(usual.get(name), Mapping):
            if inner := _differing_fields(value, usual[name]):
                found[name] = inner
        elif value != usual.get(name):
            found[name] = value
    return found


def to_csv(found: Advice) -> str:
    """Return all simulated candidates as CSV text with a head, one row for each, the cheapest first, with the 5th to 95th percentiles of
    those that were simulated repeatedly.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    banded = {each.candidate: each for each in found.finalists}
    names = list(found.winner.candidate._fields)
    percentiles = [f"{figure}_{name}" for figure in ("seconds", "usd") for name in ("p5", "p50", "p95")]
    writer.writerow(["label", *names, "seconds", "usd", *percentiles])
    for candidate, figures in sorted(found.searched.simulated.items(), key=lambda each: (each[1].usd, str(each[0]))):
        finalist = banded.get(candidate)
        spread = [*finalist.seconds, *finalist.usd] if finalist else [""] * len(percentiles)
        writer.writerow(["projected", *candidate, figures.seconds, figures.usd, *spread])
    return text.getvalue()


def as_json(found: Advice) -> dict[str, Any]:
    """Return the advice as a dictionary, the core of advice.json, with seconds and dollars as plain numbers. `advice` is the verdict as one
    text, `wishes` are the constraints; `winner`, `cards`, `on_demand`, `alternatives`, `front`, `accuracy unknown` and `rejected` hold
    candidates as `_finalist_as_json` returns them. What does not exist is None or an empty list.
    """
    drives = found.drives[found.winner.candidate]
    return {
        "label": "projected",
        "advice": " ".join(verdict(found)),
        "drives": {"words": describe_drivers(found), "seconds": dict(drives.seconds), "usd": dict(drives.usd)},
        "wishes": asdict(found.constraints),
        "met": found.met,
        "prices_as_of": found.question.prices.as_of,
        "calibration": found.question.calibration.name,
        "candidates": found.candidates,
        "excluded": {
            **found.excluded,
            "by what they take at least": len(found.searched.bounded),
            "AWS would not run them": len(found.searched.impossible),
        },
        "simulated": len(found.searched.simulated),
        "winner": _finalist_as_json(found.winner),
        "start_up": [asdict(each) for each in found.question.start_up(found.winner.candidate)],
        "cards": [
            {
                "names": list(each.names),
                "rule": "; ".join(RULES[name] for name in each.names),
                "finalist": _finalist_as_json(each.finalist),
                "on_demand": _finalist_as_json(each.on_demand) if each.on_demand else None,
            }
            for each in found.cards
        ],
        "on_demand": _finalist_as_json(found.on_demand) if found.on_demand else None,
        "this_machine": {"label": "projected", **_this_machine_as_json(found.here)} if found.here else None,
        "alternatives": [_finalist_as_json(each) for each in found.alternatives],
        "front": [_finalist_as_json(each) for each in found.front],
        "accuracy unknown": [_finalist_as_json(each) for each in found.unknown],
        "rejected": [
            {
                "architecture": each.architecture,
                "reason": each.reason,
                "best": _finalist_as_json(each.best) if each.best else None,
            }
            for each in found.rejected
        ],
    }


def _this_machine_as_json(here: ThisMachine) -> dict[str, Any]:
    """Return the estimate for this machine as a dictionary for advice.json: {"words", "seconds", "before_s", "band", "usd", "threads",
    "times"}. `usd` is always 0; `band` has the percentiles of the seconds by name.
    """
    return {
        "words": here.words,
        "seconds": here.seconds,
        "before_s": here.before_s,
        "band": here.band._asdict(),
        "usd": 0.0,
        "threads": here.threads,
        "times": here.times,
    }


def _finalist_as_json(each: Finalist) -> dict[str, Any]:
    """Return a shortlisted candidate as a dictionary for advice.json: {"words", "candidate" (its fields), "seconds", "running_s", "usd"
    (percentiles by name), "before_s", "problems"}.
    """
    return {
        "words": each.candidate.words,
        "candidate": each.candidate._asdict(),
        "seconds": each.seconds._asdict(),
        "running_s": each.running._asdict(),
        "before_s": each.before_s,
        "usd": each.usd._asdict(),
        "problems": sorted({problem for outcome in each.outcomes for problem in outcome.problems}),
    }

"""`advice/`: the winner, the named ones and two others as YAML files that run as they are, every simulated candidate as CSV, the whole as
JSON.
"""

import csv
import hashlib
import io
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from typing import Any

import yaml

from crossover.advice.advice import Advice, line, sentence
from crossover.advice.candidates import experiment_of
from crossover.advice.finalists import RULES, Finalist, ThisMachine
from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.reports import display
from crossover.reports.folder import write_atomically

MOST_HOURS = 720.0  # lifetime.ttl_hours
ROOM = 1.5  # hours that a run may take, in p95 of what it is projected to
NAME = 32
SCHEMA = Path(__file__).parents[2] / "config" / "experiment.schema.json"


def write(found: Advice, out: Path, *, config: Path) -> list[Path]:
    """The paths of the YAML files, `advice.csv` and `advice.json`. The YAML files stand beside `config` where that names code of one's own,
    which is looked for beside a YAML. YAML files of earlier advice go, unless somebody has changed them since. Raises
    ConfigError, before anything is written, for files that somebody has changed where others of their names are due.
    """
    told = out / "advice.json"
    earlier = json.loads(told.read_text(encoding="utf-8")).get("files", {}) if told.exists() else {}
    own = _own_code(found.question.base)
    texts: dict[Path, bytes] = {}
    for number, each in enumerate(found.told, start=1):
        name = f"{number}-{each.candidate.architecture.replace('_', '-')}.yaml"
        path = config.parent / f"{config.stem}-advice-{name}" if own else out / name
        head = f"# yaml-language-server: $schema={os.path.relpath(SCHEMA, path.parent)}\n"
        texts[path] = (head + as_yaml(found, each, number)).encode()
    _refuse_changed(texts, {out / name: digest for name, digest in earlier.items()})
    out.mkdir(parents=True, exist_ok=True)
    paths = list(texts)
    for path, text in texts.items():
        write_atomically(path, text)
    write_atomically(out / "advice.csv", to_csv(found).encode())
    files = {os.path.relpath(path, out): _digest(path) for path in paths}
    for name, digest in earlier.items():
        if name not in files and (out / name).is_file() and _digest(out / name) == digest:
            (out / name).unlink()
    plain = {**as_json(found), "files": files}
    write_atomically(told, (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode())
    return [*paths, out / "advice.csv", told]


def _refuse_changed(texts: Mapping[Path, bytes], earlier: Mapping[Path, str]) -> None:
    """Files that are neither what earlier advice wrote nor what is to be written are somebody's own."""
    known = {path.resolve(): digest for path, digest in earlier.items()}
    changed = [
        str(path)
        for path, text in texts.items()
        if path.exists() and path.read_bytes() != text and _digest(path) != known.get(path.resolve())
    ]
    if changed:
        raise ConfigError(
            f"{', '.join(changed)}: not as earlier advice in this folder wrote it, and not overwritten; nothing is written: move or "
            "delete what stands there"
        )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _own_code(base: Experiment) -> bool:
    training = base.training
    return any(":" in name for name in (training.model, training.loss, training.metric.name, base.data.dataset))


def experiment(found: Advice, finalist: Finalist, number: int) -> Experiment:
    """The finalist as `run` and `deploy` take it: named after its place, alive for as long as it needs."""
    base = found.question.base
    made = experiment_of(base, finalist.candidate)
    hours = max(base.lifetime.maximum_run_hours, ceil(ROOM * finalist.seconds.p95 / 3_600))
    hours = min(hours, MOST_HOURS)
    lifetime = replace(
        base.lifetime, maximum_run_hours=hours, ttl_hours=max(base.lifetime.ttl_hours, min(hours + 4, MOST_HOURS))
    )
    end = f"-advice-{number}"
    room = NAME - len(end)
    return replace(made, name=f"{base.name[:room].rstrip('-')}{end}", recipe="none", lifetime=lifetime)


def as_yaml(found: Advice, finalist: Finalist, number: int) -> str:
    """What differs from every field's default, with the projection as a comment."""
    made = experiment(found, finalist, number)
    usual = Experiment(name=made.name, architecture=made.architecture).resolved()
    plain = {"name": made.name, "architecture": made.architecture, **_other(made.resolved(), usual)}
    names = [name for card in found.cards for name in card.names if card.finalist is finalist]
    called = f"{', '.join(names)}: " if names else ""
    together = f"both together {display.seconds(finalist.seconds.p95)} at p95"
    comment = f"# [projected] {called}{finalist.candidate.words}: {finalist.words}; {together}\n"
    return comment + yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def _other(plain: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, Mapping) and isinstance(usual.get(name), Mapping):
            if inner := _other(value, usual[name]):
                found[name] = inner
        elif value != usual.get(name):
            found[name] = value
    return found


def to_csv(found: Advice) -> str:
    """One row for each candidate that was simulated; p5 to p95 of those that were repeated."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    banded = {each.candidate: each for each in found.finalists}
    names = list(asdict(found.winner.candidate))
    percentiles = [f"{figure}_{name}" for figure in ("seconds", "usd") for name in ("p5", "p50", "p95")]
    writer.writerow(["label", *names, "seconds", "usd", *percentiles])
    for candidate, figures in sorted(found.searched.simulated.items(), key=lambda each: (each[1].usd, str(each[0]))):
        finalist = banded.get(candidate)
        spread = [*finalist.seconds, *finalist.usd] if finalist else [""] * len(percentiles)
        writer.writerow(["projected", *asdict(candidate).values(), figures.seconds, figures.usd, *spread])
    return text.getvalue()


def as_json(found: Advice) -> dict[str, Any]:
    """For other programs; every figure is projected."""
    drives = found.drives[found.winner.candidate]
    return {
        "label": "projected",
        "advice": sentence(found),
        "drives": {"words": line(found), "seconds": dict(drives.seconds), "usd": dict(drives.usd)},
        "wishes": asdict(found.wishes),
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
        "winner": _finalist(found.winner),
        "cards": [
            {
                "names": list(each.names),
                "rule": "; ".join(RULES[name] for name in each.names),
                "finalist": _finalist(each.finalist),
                "on_demand": _finalist(each.on_demand) if each.on_demand else None,
            }
            for each in found.cards
        ],
        "on_demand": _finalist(found.on_demand) if found.on_demand else None,
        "this_machine": {"label": "projected", **_here(found.here)} if found.here else None,
        "alternatives": [_finalist(each) for each in found.alternatives],
        "front": [_finalist(each) for each in found.front],
        "accuracy unknown": [_finalist(each) for each in found.unknown],
        "rejected": [
            {
                "architecture": each.architecture,
                "reason": each.reason,
                "best": _finalist(each.best) if each.best else None,
            }
            for each in found.rejected
        ],
    }


def _here(here: ThisMachine) -> dict[str, Any]:
    return {"words": here.words, "seconds": here.seconds, "usd": 0.0, "threads": here.threads, "times": here.times}


def _finalist(each: Finalist) -> dict[str, Any]:
    return {
        "words": each.candidate.words,
        "candidate": asdict(each.candidate),
        "seconds": each.seconds._asdict(),
        "running_s": each.running._asdict(),
        "before_s": each.before_s,
        "usd": each.usd._asdict(),
        "problems": sorted({problem for outcome in each.outcomes for problem in outcome.problems}),
    }

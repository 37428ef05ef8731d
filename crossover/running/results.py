"""A run's folder from what it recorded."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from crossover.algorithms.aggregators.plan import Plan
from crossover.context.run_facts import RunFacts
from crossover.costs import infrastructure, prices, spending
from crossover.costs.cost import BilledRun
from crossover.costs.expectations import expected_records, state_transitions
from crossover.costs.invocations import latest
from crossover.dataplane import documents
from crossover.dataplane.vector import VectorKind, decode
from crossover.errors import CrossoverError, RunFailed
from crossover.reports.folder import RunFolder, write
from crossover.reports.html import write_report
from crossover.reports.result import build
from crossover.running.preparing import Prepared
from crossover.training import aggregation, agreement, attempts
from crossover.training.calendar import calendar


def write_folder(prepared: Prepared, out: Path, *, where: str, failure: str | None = None) -> RunFolder:
    """The run's folder from what it recorded; also of a run that failed: what was computed so far is kept."""
    objects, keys = prepared.objects, prepared.keys
    try:
        there = objects.exists(keys.outcome)
        final = documents.read(objects, keys.outcome, attempts.OUTCOME) if there else None
    except CrossoverError:
        if failure is None:
            raise
        final = None  # the bucket cannot be asked any more, as the failure says
    records = list(prepared.records.values())
    aggregates, wrong = prepared.architecture.aggregates, list[str]()
    if final and aggregates:
        final, wrong = _aggregated(prepared, aggregates(prepared.experiment), final)
        failure = failure or ("; ".join(wrong) or None)
    model = _model(prepared, final) if final and not aggregates else None
    folder = write(
        out, result=_result(prepared, where=where, final=final, failure=failure), records=records, model=model
    )
    write_report(out)
    if wrong:
        raise RunFailed(f"the means are not those of one process that adds in the same order: {'; '.join(wrong)}")
    return folder


def _model(prepared: Prepared, final: Mapping[str, Any]) -> bytes:
    from crossover.learning.saving import safetensors_bytes  # torch

    key = prepared.keys.final_model(final["parameters_sha256"])
    vector = decode(prepared.objects.get(key), key=key, kind=VectorKind.MODEL)
    constants = prepared.objects.get(prepared.keys.constants) if prepared.facts.get("constants") else None
    return safetensors_bytes(prepared.experiment, prepared.facts["data_manifest"], vector, constants=constants)


def _aggregated(prepared: Prepared, plan: Plan, final: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What the run's end says of an aggregation, and which means have other bits than one process computes: it is asked here."""
    from crossover.algorithms.aggregators.one_process import differing  # torch

    records = [each for each in prepared.records.values() if each["step"] == "aggregate" and each["outcome"] == "ok"]
    records = [each for each in records if "sha256" in each]  # an attempt that only cleared away has computed nothing
    wrong = differing(plan, records, seed=prepared.experiment.seed)
    begun = min((float(each["started_at"]) for each in records), default=0.0)
    seconds = (latest(records) or 0.0) - begun
    return {**final, "seconds": seconds, "equals_one_process": not wrong}, wrong


def _result(
    prepared: Prepared, *, where: str, final: dict[str, Any] | None = None, failure: str | None = None
) -> dict[str, Any]:
    facts, records = prepared.facts, list(prepared.records.values())
    workers, decided, aggregates = (
        prepared.experiment.workers,
        len(prepared.decisions),
        prepared.architecture.aggregates,
    )
    days = calendar(RunFacts.from_json(prepared.facts))
    expected = (
        aggregation.invocations(aggregates(prepared.experiment))
        if aggregates
        else expected_records(prepared.architecture, workers=workers, days=days, epochs=decided)
    )
    return build(
        dropped=dropped(prepared),
        experiment=prepared.experiment,
        label="measured-aws" if where == "aws" else "measured-local",
        where=where,
        records=records,
        epochs=prepared.decisions,
        span=days.span,
        started_at=facts["created_at"],
        versions=facts["versions"],
        code=facts.get("code"),
        final=final,
        expected=expected,
        transitions=state_transitions(prepared.architecture, records, workers=workers, epochs=decided),
        failure=failure,
        unrecorded=prepared.unrecorded,
        data={**{k: v for k, v in facts["data_manifest"].items() if k != "counts"}, "fingerprint": facts["data"]},
    )


def dropped(prepared: Prepared) -> list[dict[str, Any]]:
    """Who was left out of which round; of a round that two attempts came to, what the later one did."""
    objects, by_round = prepared.objects, dict[int, dict[str, Any]]()
    if prepared.experiment.aggregation.non_finite == "drop":
        with suppress(CrossoverError):  # a bucket that cannot be asked any more: the failure says so
            for key in objects.list(prepared.keys.drops):
                said = documents.read(objects, key, agreement.DROPPED)
                by_round[said["round"]] = said
    return [by_round[round] for round in sorted(by_round)]


def so_far(prepared: Prepared, *, now: float) -> BilledRun:
    """The bill of a run that goes on, `now` in unix seconds. By AWS's prices; of a local run it is projected from local seconds."""
    return spending.going_on(
        prepared.experiment,
        ended=list(prepared.records.values()),
        marks=prepared.under_way,
        began=prepared.facts["created_at"],
        epochs=len(prepared.decisions),
        now=now,
        infrastructure=infrastructure.of(prepared.experiment),
        prices=prices.load(),
    )

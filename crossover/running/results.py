"""A run's folder, written from the run's records."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from crossover.errors import CrossoverError
from crossover.reports import bill, prices, spending
from crossover.reports.bill import BilledRun
from crossover.reports.folder import RunFolder, build, write
from crossover.reports.usage import expected_records, state_transitions
from crossover.running.preparing import PreparedRun
from crossover.stores import documents
from crossover.stores.encoding import VectorKind, decode
from crossover.training import progress
from crossover.training.progress import calendar
from crossover.workflow.context import RunConfiguration


def write_folder(prepared: PreparedRun, out: Path, *, where: str, failure: str | None = None) -> RunFolder:
    """Write the results folder `out` of the run `prepared`, with its report page, from the records read so far, and return the folder. The
    trained model is included if the run finished.

    `where`: inline, local or aws; `failure`: error message of a failed run, None if it did not fail. Raises CrossoverError if the run's
    outcome cannot be read; with a `failure`, the folder is then written without it. Also raises it, even with a `failure`, if there is an
    outcome but the model cannot be read; nothing is written then.
    """
    from crossover.reports.report_pages import write_report  # with matplotlib

    objects, keys = prepared.objects, prepared.keys
    try:
        there = objects.exists(keys.outcome)
        final = documents.read_document(objects, keys.outcome, progress.OUTCOME) if there else None
    except CrossoverError:
        if failure is None:
            raise
        final = None  # the bucket cannot be read any more, as the failure says
    records = list(prepared.records.values())
    model = _load_model(prepared, final) if final else None
    folder = write(
        out, result=_build_result(prepared, where=where, final=final, failure=failure), records=records, model=model
    )
    write_report(out)
    return folder


def _load_model(prepared: PreparedRun, final: Mapping[str, Any]) -> bytes:
    """Read the trained model from the run's store and return it in safetensors format. `final`: the run's outcome, which names the model by
    its digest. Raises Missing if the model is not stored, Corrupt if it is damaged.
    """
    from crossover.learning.learner import encode_model  # torch

    key = prepared.keys.final_model(final["parameters_sha256"])
    vector = decode(prepared.objects.get(key), key=key, kind=VectorKind.MODEL)
    constants = prepared.objects.get(prepared.keys.constants) if prepared.facts.get("constants") else None
    return encode_model(prepared.experiment, prepared.facts["data_manifest"], vector, constants=constants)


def _build_result(
    prepared: PreparedRun, *, where: str, final: dict[str, Any] | None = None, failure: str | None = None
) -> dict[str, Any]:
    """Return the content of result.json, from the records and decisions read so far. `where`: inline, local or aws; `final`: the run's
    outcome, None if it did not finish; `failure`: error message of a failed run.
    """
    facts, records = prepared.facts, list(prepared.records.values())
    workers, decided = prepared.experiment.workers, len(prepared.decisions)
    days = calendar(RunConfiguration.from_json(prepared.facts))
    return build(
        dropped=list_dropped(prepared),
        damaged=[
            *prepared.damaged,
            *(f"{each['damaged']}; it was passed over" for each in records if "damaged" in each),
        ],
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
        expected=expected_records(prepared.architecture, workers=workers, days=days, epochs=decided),
        transitions=state_transitions(prepared.architecture, records, workers=workers, epochs=decided),
        failure=failure,
        unrecorded=prepared.unrecorded,
        data={
            **{k: v for k, v in facts["data_manifest"].items() if k != "counts"},
            "fingerprint": facts["data"],
            "understood": facts.get("understood"),
        },
    )


def list_dropped(prepared: PreparedRun) -> list[dict[str, Any]]:
    """Return {"round": its number, "workers": ranks} for each round of training in which workers were left out because their values were
    not finite, in order of rounds. If two attempts of the run reached a round, the later entry counts. Empty unless
    `aggregation.non_finite` is `drop`. If an entry cannot be read, it and those after it are left out.
    """
    objects, by_round = prepared.objects, dict[int, dict[str, Any]]()
    if prepared.experiment.aggregation.non_finite == "drop":
        with suppress(CrossoverError):  # the bucket cannot be read any more: the failure says so
            for key in objects.list(prepared.keys.drop_decisions):
                said = documents.read_document(objects, key, progress.DROPPED)
                by_round[said["round"]] = said
    return [by_round[round] for round in sorted(by_round)]


def bill_so_far(prepared: PreparedRun, *, now: float) -> BilledRun:
    """Return the bill of a run that is not finished, from the records read so far. A local run's seconds are charged at AWS's prices, too.
    `now`: unix seconds.
    """
    return spending.bill_running(
        prepared.experiment,
        ended=list(prepared.records.values()),
        marks=prepared.under_way,
        began=prepared.facts["created_at"],
        epochs=len(prepared.decisions),
        now=now,
        infrastructure=bill.infrastructure_of(prepared.experiment),
        prices=prices.load(),
    )

"""One archive of a study: its file with the base in it, versions, of every trial its result (digests of code and data) and records, tables.

    study.json                          as the study's folder has it
    trials.json                         settings and seeds by trial
    cells.json                          the tables, cell by cell
    runs/<trial>/result.json, metrics.jsonl

What comes from elsewhere is read and never run: names are looked at before anything is written, sizes before anything is unpacked.
"""

import hashlib
import json
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory

from crossover.dataplane import plain
from crossover.errors import Corrupt, DataError
from crossover.experiment import from_resolved
from crossover.reports import folder
from crossover.study import tables
from crossover.study.conduct import FORMAT, RUNS, STATE, TrialRow, row_of
from crossover.study.file import Study, of
from crossover.study.report import CELLS
from crossover.study.tables import StudyCell
from crossover.study.trials import MOST, StudyTrial

TRIALS = "trials.json"
KEPT = (folder.RESULT, folder.METRICS)
MOST_BYTES = 2 * 2**30  # unpacked
_NAME = re.compile(r"[\w=+-][\w.=+~-]*")  # of a trial
_STATE = {"study": {"name": str, "base": {}}, "where": ("inline", "local", "aws"), "versions": {str: str}}
_TRIALS = {str: {"varied": {}, "seed": int}}
# What reading an archive raises that is damaged, encrypted, or made to be unpacked by nobody.
_DAMAGE = (
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
)
_CELLS = [{"table": str, "row": str, "column": str, **dict.fromkeys(("value", "low", "high"), (float, None))}]


def write(out: Path, rows: Sequence[TrialRow]) -> Path:
    """Of the study in `out`, beside its tables. The same study gives the same bytes."""
    path = out / f"{out.resolve().name}.zip"
    part = path.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, body: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), body, zipfile.ZIP_DEFLATED)

        trials = {row.trial: {"varied": row.varied, "seed": row.seed} for row in rows}
        add(STATE, (out / STATE).read_bytes())
        add(CELLS, (out / CELLS).read_bytes())
        add(TRIALS, json.dumps(trials, indent=1, sort_keys=True).encode())
        for name in sorted(trials):
            for each in KEPT:
                add(f"{RUNS}/{name}/{each}", (out / RUNS / name / each).read_bytes())
    part.replace(path)
    return path


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A study as it was, with what its records say of its trials now. `digest`: SHA-256 of the archive."""

    digest: str
    study: Study
    where: str
    versions: Mapping[str, str]
    cells: Sequence[StudyCell]
    rows: Sequence[TrialRow]

    def made_again(self) -> list[StudyCell]:
        """The tables, of the records that it holds."""
        return tables.cells(self.study, self.rows)


def read(path: Path) -> Bundle:
    """Raises DataError for what is no bundle, damaged, or of another format."""
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(each.file_size for each in archive.infolist()) > MOST_BYTES:
                raise DataError(f"{path}: unpacks to more than {MOST_BYTES // 2**30} GiB, which no study's bundle does")
            return _read(archive, path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; crossover study ... --bundle writes one") from None
    except (*_DAMAGE, ArithmeticError, Corrupt) as error:
        raise DataError(f"{path}: is no bundle of a study, or is damaged: {error}") from error


def _read(archive: zipfile.ZipFile, path: Path) -> Bundle:
    state = plain.read(archive.read(STATE), {"format": int}, key=STATE)
    if state["format"] != FORMAT:
        raise DataError(f"{path}: format {state['format']!r} is unknown, this version reads {FORMAT}")
    plain.expect(state, _STATE, key=STATE)  # a base by name would be a file of the reader's
    trials = plain.read(archive.read(TRIALS), _TRIALS, key=TRIALS)
    rows = []
    with TemporaryDirectory() as temporary:
        for name, each in trials.items():
            if not _NAME.fullmatch(name):
                raise DataError(f"{path}: {name!r} is no trial's name")
            run = Path(temporary) / name
            run.mkdir()
            for file in KEPT:
                (run / file).write_bytes(archive.read(f"{RUNS}/{name}/{file}"))
            found = folder.read(run)
            experiment = from_resolved(found.result["experiment"])
            rows.append(row_of(StudyTrial(name=name, varied=each["varied"], experiment=experiment), found))
    if not rows:
        raise DataError(f"{path}: holds no trial, so it proves nothing")
    if any(value is not None and not isfinite(value) for row in rows for value in row.measures.values()):
        raise DataError(f"{path}: a trial's figure is not finite, and no run writes such")
    cells = [StudyCell(**each) for each in plain.read(archive.read(CELLS), _CELLS, key=CELLS)]
    if twice := [key for key, times in Counter(cell.key for cell in cells).items() if times > 1]:
        raise DataError(f"{path}: {CELLS} has {', '.join(twice[0])} twice; expected every cell once")
    study = of(state["study"], path.with_suffix(".yaml"))
    if study.count > MOST:
        raise DataError(f"{path}: {study.count:,} trials; a study has {MOST:,} at most")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Bundle(digest=digest, study=study, where=state["where"], versions=state["versions"], cells=cells, rows=rows)

"""A study's archive: its file with the base in it, versions, tables, and the result and records of every trial.

    study.json                          as the study's folder has it
    trials.json                         settings and seeds by trial
    cells.json                          the tables, cell by cell
    runs/<trial>/result.json, metrics.jsonl
    digests.json                        SHA-256 of each of these, by name

Files of others are read and never run: names are checked before anything is written, sizes before anything is unpacked. A result is counted
again from its records, one trial after another, so that memory is bounded by the largest trial. Nothing is signed: if somebody changes
records, results, tables and digests together, only running the trials again shows it.
"""

import hashlib
import json
import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import crossover
from crossover.errors import Corrupt, DataError
from crossover.experiment import from_plain
from crossover.reports import folder
from crossover.stores import encoding
from crossover.study import report
from crossover.study.agreement import ExpectedExperiments, check_trial, find_contradictions
from crossover.study.file import Study, Varied, parse_study
from crossover.study.recount import MAX_FIGURE, MAX_RECORD_BYTES, Recount, read_records, recount
from crossover.study.report import CELLS, StudyCell
from crossover.study.runner import DECISIVE_VERSIONS, FORMAT, RUNS, STATE, TrialRow, make_row
from crossover.study.trials import MAX_TRIALS, StudyTrial

TRIALS = "trials.json"
RUN_FILES = (folder.RESULT, folder.METRICS)
DIGESTS = "digests.json"
MOST_BYTES = 2 * 2**30  # unpacked
MOST_OF = {STATE: 2**20, TRIALS: 8 * 2**20, CELLS: 8 * 2**20, DIGESTS: 8 * 2**20}  # bytes of a file
MOST_OF |= {folder.RESULT: 4 * 2**20, folder.METRICS: 64 * 2**20}
MOST_MEMBERS = 4 + 2 * MAX_TRIALS
MOST_DIRECTORY = 8 * 2**20  # bytes of the archive's list of members, whose names are short
MOST_TOLD = 12  # differing figures of a trial that are kept
_NAME = re.compile(r"[\w=+-][\w.=+~-]*")  # of a trial
_STATE = {"study": {"name": str, "base": {}}, "where": ("inline", "local", "aws"), "versions": {str: str}}
_TRIALS = {str: {"varied": {}, "seed": int}}
# Errors of reading an archive that is damaged, encrypted, or made to exhaust the reader.
_DAMAGE = (
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,
    MemoryError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
)
_CODE = {"files?": {str: str}, "own?": {str: str}}
_CELLS = [{"table": str, "row": str, "column": str, **dict.fromkeys(("value", "low", "high"), (float, None))}]


def write(out: Path, rows: Sequence[TrialRow]) -> Path:
    """Write the archive of the study in the folder `out` as `<name of the folder>.zip` inside that folder, replace an earlier one, and
    return its path. Equal studies give equal bytes. `rows`: the trials to include, whose result.json and metrics.jsonl must exist. Raises
    DataError if a file is larger than `read` accepts; an earlier archive then stays as it was. The number of files is not checked.
    """
    path = out / f"{out.resolve().name}.zip"
    part = path.with_suffix(".part")
    digests = dict[str, str]()
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, body: bytes) -> None:
            """Add the bytes `body` to the archive as the file `name`, and their SHA-256 to `digests`. Raises DataError if they are more
            than MOST_OF allows for files of that name.
            """
            if len(body) > (most := MOST_OF[name.rpartition("/")[2]]):
                raise DataError(f"--bundle: {out / name} has {len(body):,} bytes; a bundle's file may have {most:,}")
            digests[name] = hashlib.sha256(body).hexdigest()
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), body, zipfile.ZIP_DEFLATED)

        by_name = sorted(rows, key=lambda row: row.trial)
        trials = {row.trial: {"seed": row.seed, "varied": row.varied} for row in by_name}
        add(STATE, (out / STATE).read_bytes())
        add(CELLS, (out / CELLS).read_bytes())
        add(TRIALS, json.dumps(trials, indent=1).encode())  # a setting's fields keep their order, which names its row
        for name in trials:
            for each in RUN_FILES:
                add(f"{RUNS}/{name}/{each}", (out / RUNS / name / each).read_bytes())
        add(DIGESTS, json.dumps(digests, indent=1, sort_keys=True).encode())
    part.replace(path)
    return path


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A study's archive as `read` found it, with all figures counted again from its records. `digest`: SHA-256 of the archive; `where`:
    where the study ran (inline, local or aws); `versions`: versions of Crossover and PyTorch, by name; `cells`: the tables as the archive
    has them; `rows`: trials with the figures as counted again, without curves; `recounts`: result of counting again, by trial;
    `other_bytes`: a sentence for each file whose bytes differ from digests.json; `undigested`: one sentence if digests.json is missing,
    else empty; `own_code`: SHA-256 of the user's own files, by path; `code`: digests of Crossover's files by path, shortened as in
    result.json.
    """

    digest: str
    study: Study
    where: str
    versions: Mapping[str, str]
    cells: Sequence[StudyCell]
    rows: Sequence[TrialRow]
    recounts: Mapping[str, Recount]
    other_bytes: Sequence[str]
    undigested: Sequence[str]
    own_code: Mapping[str, str]
    code: Mapping[str, str]

    def list_other_code(self) -> list[str]:
        """Return the paths of those of Crossover's own files with which the study was computed that are missing in this installation or
        have other bytes; empty if all are equal. Files of the user are not compared.
        """
        project = {name: digest for name, digest in self.code.items() if name not in self.own_code}
        return [name for name, digest in project.items() if not _is_here(name, digest)]

    def recompute_cells(self) -> list[StudyCell]:
        """Return the cells of the tables, computed again from the trials' counted figures. Accuracies, which records do not contain, are
        those of the archive's result.json files.
        """
        return report.make_cells(self.study, self.rows)


def read(path: Path) -> Bundle:
    """Read a bundle and count its results again from their records, without running any of its content. Figures and files that differ are
    no error, but listed in the returned Bundle. Raises DataError if the file does not exist, is no bundle, is damaged, too large, or of
    another format.
    """
    try:
        _check_directory(path)
        with zipfile.ZipFile(path) as archive:
            _check_members(archive, path)
            return _read(archive, path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; `crossover study ... --bundle` writes a bundle") from None
    except (*_DAMAGE, ArithmeticError, Corrupt) as error:
        raise DataError(f"{path}: not a study's bundle, or damaged: {error}") from error


def _check_directory(path: Path) -> None:
    """Raise DataError if the file does not end as a ZIP archive without a comment, or if its list of members is larger than MOST_DIRECTORY
    bytes or in the ZIP64 format, and so might not fit into memory. Only the end of the file is read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 42))
        end = file.read()
    if end[-22:-18] != b"PK\x05\x06" or end[-2:] != b"\0\0":
        raise DataError(f"{path}: not a study's bundle: the end of the ZIP archive is not as expected")
    if end[:4] == b"PK\x06\x07" or int.from_bytes(end[-10:-6], "little") > MOST_DIRECTORY:
        raise DataError(f"{path}: has more members than a bundle of {MAX_TRIALS:,} trials, the most that a study has")


def _check_members(archive: zipfile.ZipFile, path: Path) -> None:
    """Raise DataError, before anything is unpacked, if the archive has a file that `write` would not have written: too many, too large,
    repeated, of another name or compression. `path`: the archive, for messages.
    """
    members = archive.infolist()
    if len(members) > MOST_MEMBERS:
        raise DataError(f"{path}: has {len(members):,} members; a bundle has {MOST_MEMBERS:,} at most")
    if twice := [name for name, times in Counter(each.filename for each in members).items() if times > 1]:
        raise DataError(f"{path}: contains {twice[0]!r} twice; expected each file once")
    for each in members:
        last = each.filename.rpartition("/")[2]
        if last not in MOST_OF:
            raise DataError(f"{path}: {each.filename!r} does not belong in a bundle; expected {', '.join(MOST_OF)}")
        if each.file_size > MOST_OF[last]:
            raise DataError(
                f"{path}: {each.filename!r} unpacks to {each.file_size:,} bytes; a bundle has {MOST_OF[last]:,} of it at most"
            )
        if each.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(
                f"{path}: {each.filename!r} has an unexpected compression; a bundle's files are stored or deflated"
            )
    if sum(each.file_size for each in members) > MOST_BYTES:
        raise DataError(f"{path}: unpacks to more than {MOST_BYTES // 2**30} GiB, the most for a bundle")


def _read(archive: zipfile.ZipFile, path: Path) -> Bundle:
    """Read and check every file of the opened archive, and return the bundle. `path`: the archive's file, read once more for its digest.
    Raises KeyError if a file is missing, DataError or Corrupt if one is malformed, inconsistent or not of the study, or if a figure is not
    finite or not below MAX_FIGURE.
    """
    state = _read_json(archive, STATE, {"format": int})
    if state["format"] != FORMAT:
        raise DataError(f"{path}: format {state['format']!r} is unknown, this version reads {FORMAT}")
    encoding.check_shape(state, _STATE, key=STATE)  # a base by name would be a file on the reader's machine
    if absent := [name for name in DECISIVE_VERSIONS if name not in state["versions"]]:
        raise Corrupt(f"{STATE}: versions: {absent[0]} is not there")
    trials = _read_json(archive, TRIALS, _TRIALS)
    if not trials:
        raise DataError(f"{path}: contains no trial, so there is nothing to reproduce")
    if len(trials) > MAX_TRIALS:
        raise DataError(f"{path}: {len(trials):,} trials; a study has {MAX_TRIALS:,} at most")
    study = parse_study(state["study"], path.with_suffix(".yaml"))
    if study.count > MAX_TRIALS:
        raise DataError(f"{path}: {study.count:,} trials; a study has {MAX_TRIALS:,} at most")
    cells = [StudyCell(**each) for each in _read_json(archive, CELLS, _CELLS)]
    if twice := [key for key, times in Counter(cell.key for cell in cells).items() if times > 1]:
        raise DataError(f"{path}: {CELLS} contains {', '.join(twice[0])} twice; expected each cell once")
    for name, each in trials.items():
        if not _NAME.fullmatch(name):
            raise DataError(f"{path}: {name!r} is not a valid name of a trial")
        try:
            check_trial(study, name, each["varied"], each["seed"])
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        each["varied"] = {field: each["varied"][field] for field in study.fields}  # JSON does not promise an order
    _check_names(archive, trials, path)
    rows, recounts, codes = list[TrialRow](), dict[str, Recount](), _Codes(path)
    expected, runs = ExpectedExperiments(study), dict[str, str]()
    for name, each in trials.items():
        row, recounted, run = _read_trial(
            archive, name, varied=each["varied"], seed=each["seed"], codes=codes, state=state, expected=expected
        )
        if run and runs.setdefault(run, name) != name:
            raise DataError(f"{path}: {name} and {runs[run]} have the same run's records; expected one run per trial")
        if any(value is not None and not abs(value) < MAX_FIGURE for value in row.measures.values()):
            raise DataError(f"{path}: {name}: a figure is not finite or exceeds {MAX_FIGURE:g}")
        rows.append(row)
        recounts[name] = recounted
    return Bundle(
        digest=_digest(path.open("rb")),
        study=study,
        where=state["where"],
        versions=state["versions"],
        cells=cells,
        rows=rows,
        recounts=recounts,
        other_bytes=list(_list_other_bytes(archive)) if DIGESTS in archive.namelist() else [],
        undigested=[]
        if DIGESTS in archive.namelist()
        else [f"{DIGESTS} is missing, so files are not checked against digests"],
        own_code=codes.own,
        code=codes.project,
    )


def _check_names(archive: zipfile.ZipFile, trials: Iterable[str], path: Path) -> None:
    """Raise DataError if the archive has a file that is neither one of the study nor one of a trial in trials.json. `trials`: their names;
    `path`: the archive, for messages.
    """
    known = {STATE, TRIALS, CELLS, DIGESTS, *(f"{RUNS}/{name}/{each}" for name in trials for each in RUN_FILES)}
    if others := sorted(set(archive.namelist()) - known):
        raise DataError(f"{path}: {others[0]!r} does not belong in a bundle: {TRIALS} has no such trial")


def _read_json(archive: zipfile.ZipFile, name: str, shape: Any) -> Any:
    """Return the value of a JSON file of the archive. Raises KeyError if the archive has no such file; Corrupt, naming the file, if it is
    not JSON, does not have the `shape` (see `encoding.check_shape`), has a number that is not finite, or an object with the same name
    twice.
    """
    try:
        value = json.loads(
            archive.read(name),
            parse_float=_parse_finite,
            parse_constant=_parse_finite,
            object_pairs_hook=_make_object,
        )
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{name}: not the JSON of a bundle: {error}") from None
    return encoding.check_shape(value, shape, key=name)


def _parse_finite(text: str) -> float:
    """Return the number that a JSON text gives. Raises ValueError if it is infinite or not a number."""
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


def _make_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object's pairs as a dictionary. Raises ValueError if a name appears twice: readers disagree about which one counts."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(name for n, (name, _) in enumerate(pairs) if name in dict(pairs[:n]))
        raise ValueError(f"{twice[:60]!r} appears twice in an object")
    return made


def _read_trial(
    archive: zipfile.ZipFile,
    name: str,
    *,
    varied: Varied,
    seed: int,
    codes: "_Codes",
    state: Mapping[str, Any],
    expected: ExpectedExperiments,
) -> tuple[TrialRow, Recount, str]:
    """Read the files of the trial `name` from the opened `archive` and count it again from its records. Return (its table row without the
    curve; the result of counting again without result.json and with at most MOST_TOLD differing figures, to limit memory; the id of its
    run, "" if its records have none).

    `varied`, `seed`: its setting according to the study; `codes`: collects its code digests; `state`: content of study.json; `expected`:
    experiments of the study's trials. Raises DataError or Corrupt if a file is malformed.
    """
    key = f"{RUNS}/{name}/{folder.RESULT}"
    _read_json(archive, key, {})
    with TemporaryDirectory() as temporary:
        run = Path(temporary) / name
        run.mkdir()
        (run / folder.RESULT).write_bytes(archive.read(key))
        (run / folder.METRICS).touch()  # its records are read from the archive, one line after another
        try:
            found = folder.read(run)
        except DataError as error:  # the temporary folder is not the reader's
            raise Corrupt(str(error).replace(f"{run / folder.RESULT}", key)) from None
        experiment = from_plain(found.result["experiment"])
        metrics = f"{RUNS}/{name}/{folder.METRICS}"
        with archive.open(metrics) as file:
            records = read_records(iter(lambda: file.readline(MAX_RECORD_BYTES + 1), b""), name=metrics)
        counted = recount(found.result, experiment, records)
        codes.add(name, found.result)
        differing = [
            *expected.find_other_settings(experiment, varied, seed),
            *find_contradictions(found.result, records, experiment, where=state["where"], versions=state["versions"]),
            *counted.differing,
        ]
        trial = StudyTrial(name=name, varied=varied, experiment=experiment)
        row = make_row(trial, replace(found, result=counted.result))
        run_id = str(records[0].get("run", "")) if records else ""
        return replace(row, curve=()), replace(counted, result={}, differing=differing[:MOST_TOLD]), run_id


class _Codes:
    """Code digests collected over all trials of a bundle. `own`: SHA-256 by path of the user's own files; `project`: shortened SHA-256 by
    path of all files that the trials list, of the last trial that lists the file.
    """

    def __init__(self, path: Path) -> None:
        """Start without digests. `path`: the bundle's file, for messages."""
        self._path = path
        self.own = dict[str, str]()
        self.project = dict[str, str]()

    def add(self, trial: str, result: folder.Result) -> None:
        """Add the code digests of a trial's result.json, nothing if it has none. Raises DataError if an earlier trial used another version
        of one of the user's own files, Corrupt if the digests have another shape than {"files", "own"} of texts.
        """
        code = encoding.check_shape(result.get("code") or {}, _CODE, key=f"{RUNS}/{trial}/{folder.RESULT}: code")
        self.project |= code.get("files", {})
        for name, digest in code.get("own", {}).items():
            if self.own.setdefault(name, digest) != digest:
                raise DataError(
                    f"{self._path}: {trial} was run with a different {name!r} than an earlier trial; all must be equal"
                )


def _list_other_bytes(archive: zipfile.ZipFile) -> Iterator[str]:
    """Yield a sentence for each file of the archive that differs from its digest in digests.json, has no digest there, or is listed there
    but missing. The archive is read while the result is iterated. Raises KeyError if it has no digests.json, Corrupt if that is malformed.
    """
    there = archive.namelist()
    digests = _read_json(archive, DIGESTS, {str: str})
    for name in sorted({*digests, *there} - {DIGESTS}):
        if name not in digests:
            yield f"{name}: has no digest in {DIGESTS}"
        elif name not in there:
            yield f"{name}: listed in {DIGESTS}, but missing"
        elif (found := _digest(archive.open(name))) != digests[name]:
            yield f"{name}: SHA-256 {found[:12]}, {digests[name][:12]} in {DIGESTS}"


def _is_here(name: str, digest: str) -> bool:
    """Return whether this installation has a file of Crossover called `name`, a path relative to the project, whose SHA-256 begins with
    `digest`. False for an empty digest, for other suffixes than .py, .cpp and .hpp, and for paths that lead outside the project.
    """
    root = Path(crossover.__file__).parents[1]
    file = (root / name).resolve()
    if not file.is_relative_to(root) or file.suffix not in (".py", ".cpp", ".hpp") or not file.is_file():
        return False  # a path from a bundle must not lead outside the project
    return _digest(file.open("rb")).startswith(digest) and bool(digest)


def _digest(opened: IO[bytes]) -> str:
    """Return the SHA-256 of an opened file as hexadecimal text, and close the file."""
    with opened as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]

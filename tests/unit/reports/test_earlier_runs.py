"""A folder holds one run; what an earlier one left there is kept whole beside it."""

import json
from pathlib import Path

import pytest

from crossover.errors import DataError
from crossover.reports.folder import list_own_entries, move_aside, read

FIRST, SECOND = "20261124-063051-44302a", "20261124-070000-0a0b0c"


def run_in(folder: Path, run: str) -> dict[str, bytes]:
    """Write the files of a run and one of the user's into the folder, and return all of the folder's files."""
    (folder / "baseline").mkdir(parents=True)
    for name in ("result.json", "report.html", "model.safetensors", "baseline/result.json"):
        (folder / name).write_text(f"{name} of {run}")
    (folder / "metrics.jsonl").write_text(json.dumps({"run": run}) + "\n")
    (folder / "notes.txt").write_text("mine")
    return files(folder)


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below the folder, by relative path."""
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_an_earlier_run_is_moved_unchanged_and_user_files_stay(tmp_path: Path) -> None:
    """`move_aside` moves a run's files to a folder with the run's id and returns that; other files stay, and without a run it returns
    None.
    """
    before = run_in(tmp_path, FIRST)
    assert move_aside(tmp_path) == tmp_path / FIRST
    assert files(tmp_path / FIRST) | {"notes.txt": b"mine"} == before
    assert list_own_entries(tmp_path) == [] and (tmp_path / "notes.txt").read_text() == "mine"
    assert move_aside(tmp_path) is None


def test_the_run_itself_stays_where_it_is(tmp_path: Path) -> None:
    """`move_aside` moves nothing and returns None if the files are those of the run that it is given."""
    before = run_in(tmp_path, FIRST)
    assert move_aside(tmp_path, FIRST) is None and files(tmp_path) == before
    assert move_aside(tmp_path, SECOND) == tmp_path / FIRST


def test_each_earlier_run_keeps_a_folder_of_its_own(tmp_path: Path) -> None:
    """`move_aside` of a second run leaves the first one's folder as it is."""
    run_in(tmp_path, FIRST)
    move_aside(tmp_path)
    (tmp_path / "notes.txt").unlink()
    run_in(tmp_path, SECOND)
    assert move_aside(tmp_path) == tmp_path / SECOND
    assert (tmp_path / FIRST / "result.json").is_file() and (tmp_path / SECOND / "result.json").is_file()


@pytest.mark.parametrize("at", range(6))
def test_cut_off_at_any_move_the_next_one_goes_on(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If `move_aside` is interrupted before move number `at`, the next call completes it, and all files are in the run's folder."""
    before, rename, moves = run_in(tmp_path, FIRST), Path.rename, [0]

    def cut_off(path: Path, target: Path) -> Path:
        """Move a path, or raise KeyboardInterrupt in the place of move number `at`."""
        if moves[0] == at:
            raise KeyboardInterrupt
        moves[0] += 1
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", cut_off)
        try:
            move_aside(tmp_path)
        except KeyboardInterrupt:
            make_way_again = True
        else:
            make_way_again = False
    assert not make_way_again or move_aside(tmp_path) == tmp_path / FIRST
    assert files(tmp_path / FIRST) | {"notes.txt": b"mine"} == before


def test_files_that_name_no_run_are_moved_aside_too(tmp_path: Path) -> None:
    """Files of an unknown run are moved to a folder too."""
    (tmp_path / "report.html").write_text("cut off")
    (earlier,) = [move_aside(tmp_path)]
    assert earlier is not None and (earlier / "report.html").read_text() == "cut off"


def test_reading_a_folder_without_a_run_names_the_earlier_run(tmp_path: Path) -> None:
    """`read` of a folder whose run was moved aside raises DataError with that run's folder."""
    run_in(tmp_path, FIRST)
    move_aside(tmp_path)
    with pytest.raises(DataError, match=rf"no such file; give the folder of a run, such as .*{FIRST}, an earlier run"):
        read(tmp_path)

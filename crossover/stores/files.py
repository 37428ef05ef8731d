"""An ObjectStore on a folder: a run on one machine without any server. Safe between processes."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from tempfile import mkstemp

from crossover.errors import Missing, Refused
from crossover.stores.documents import join_buffers, to_views
from crossover.stores.protocols import Buffer, ObjectStore, Traffic

_UNFINISHED = ".unfinished"  # beside the objects, so that renaming stays within one file system


class FileObjectStore(ObjectStore):
    """ObjectStore in a folder, one file per object, safe between processes: each file appears complete or not at all (temporary
    file, then rename or link). A key is a relative path; Refused is raised for any other, and for one below another object's key.

    Nothing is synced to the disk: after a power loss the last objects may be missing, after a crash of the program they
    are not.
    """

    def __init__(self, folder: Path, traffic: Traffic) -> None:
        """Open the store in `folder`, which is created if it is missing; requests are counted in `traffic`."""
        self._folder = folder.resolve()
        self._traffic = traffic
        (self._folder / _UNFINISHED).mkdir(parents=True, exist_ok=True)

    def with_traffic(self, traffic: Traffic) -> "FileObjectStore":
        """Return a client of the same folder whose requests are counted in `traffic`."""
        return FileObjectStore(self._folder, traffic)

    def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        """Store `data` under `key`, replacing an older object. Raises Refused if the key is no plain relative path, or if one key would be
        a folder for another.
        """
        with self._open_temporary(key, data) as (temporary, path):
            _move_into_place(temporary, path, os.replace)

    def put_new(self, key: str, data: Buffer | Sequence[Buffer]) -> bool:
        """Store `data` under `key` unless the key exists. Returns whether this call stored it. Raises Refused if the key is no plain
        relative path, or if one key would be a folder for another.
        """
        with self._open_temporary(key, data) as (temporary, path):
            try:
                _move_into_place(temporary, path, os.link)
            except FileExistsError:
                return False
            return True

    def create(self, key: str, data: Buffer | Sequence[Buffer]) -> bytes:
        """Store `data` under `key` unless the key exists. Returns the object that is stored now."""
        return join_buffers(data) if self.put_new(key, data) else self.get(key)

    def get(self, key: str) -> bytes:
        """Return the bytes of the object under `key`. Raises Missing if there is none, Refused if the key is no plain relative path."""
        try:
            data = self._path(key).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            data = None
        self._traffic.count("get", bytes_in=len(data or b""))
        if data is None:
            raise Missing(key)
        return data

    def exists(self, key: str) -> bool:
        """Return whether there is an object under `key`. Raises Refused if it is no plain relative path."""
        self._traffic.count("exists")
        return self._path(key).is_file()

    def delete(self, *keys: str) -> None:
        """Delete the objects under `keys`, and folders that become empty; missing keys are fine. Raises Refused at the first key that is no
        plain relative path.
        """
        self._traffic.count("delete")
        for key in keys:
            path = self._path(key)
            with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                path.unlink()
            _remove_empty_folders(path.parent, up_to=self._folder)

    def list(self, prefix: str) -> list[str]:
        """Return all keys that begin with `prefix`, sorted. Raises Refused if its folder is no plain relative path."""
        self._traffic.count("list")
        folder = prefix.rpartition("/")[0]
        start = self._path(folder) if folder else self._folder
        return sorted(key for key in self._walk_keys(start) if key.startswith(prefix))

    def _walk_keys(self, start: Path) -> Iterator[str]:
        """Yield the keys of all objects in the folder `start` and below; temporary files of unfinished writes are left out."""
        for folder, folders, names in os.walk(start):
            if Path(folder) == self._folder and _UNFINISHED in folders:
                folders.remove(_UNFINISHED)
            relative = Path(folder).relative_to(self._folder)
            yield from ((relative / name).as_posix() for name in names)

    def _path(self, key: str) -> Path:
        """Return the path of the file of `key`. Raises Refused if the key is not a plain relative path."""
        parts = PurePosixPath(key).parts
        if not parts or "/".join(parts) != key or ".." in parts or parts[0] in ("/", _UNFINISHED) or "\0" in key:
            raise Refused(
                f"key {key!r}: expected a relative path such as runs/1/model, without '..', empty parts or a leading '/'"
            )
        return self._folder.joinpath(*parts)

    @contextmanager
    def _open_temporary(self, key: str, data: Buffer | Sequence[Buffer]) -> Iterator[tuple[Path, Path]]:
        """Write `data` to a temporary file and, within the `with` block, yield (that file, the final path of `key`), for the caller
        to move it. At the end the temporary file is removed if it is still there. Raises Refused if the key is not a plain relative
        path, or if one key would be a folder for another.
        """
        path = self._path(key)
        parts = to_views(data)
        self._traffic.count("put", bytes_out=sum(part.nbytes for part in parts))
        descriptor, name = mkstemp(dir=self._folder / _UNFINISHED)
        temporary = Path(name)
        try:
            with open(descriptor, "wb") as file:
                for part in parts:
                    file.write(part)
            yield temporary, path
        except (IsADirectoryError, NotADirectoryError) as error:
            raise Refused(
                f"key {key!r}: a folder of files cannot hold an object and objects below it: {error.strerror}"
            ) from None
        finally:
            temporary.unlink(missing_ok=True)


def _move_into_place(temporary: Path, path: Path, move: Callable[[Path, Path], None]) -> None:
    """Create the folder of `path` and call `move(temporary, path)`, which is os.replace or os.link; both again while a concurrent
    delete removes that folder.

    Raises FileExistsError if `move` is os.link and `path` is a file already; IsADirectoryError if there are objects below the key,
    NotADirectoryError if an object is in the place of a folder that the key needs, and FileNotFoundError if `temporary` is gone.
    """
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return move(temporary, path)
        except FileExistsError:
            if path.is_file():  # what a link finds; its caller knows what to do
                raise
            if path.is_dir():
                raise IsADirectoryError(21, "there are objects below the key") from None
            if any(folder.is_file() for folder in path.parents):
                raise NotADirectoryError(20, "there is an object in the place of a folder that the key needs") from None
            # Else the folder was there for mkdir, and gone when it looked whether it is one.
        except FileNotFoundError:
            if not temporary.exists():
                raise


def _remove_empty_folders(folder: Path, *, up_to: Path) -> None:
    """Delete `folder` if it is empty, then its parents, up to but not including `up_to`."""
    while folder != up_to:
        try:
            folder.rmdir()
        except OSError:  # not empty, or gone already
            return
        folder = folder.parent

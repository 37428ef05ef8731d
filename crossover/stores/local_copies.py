"""An object store whose objects are read once: copies stay in this process's memory, then in a temporary folder."""

import hashlib
import os
import shutil
import tempfile
import weakref
from pathlib import Path

from crossover import runtime
from crossover.stores.protocols import ReadableObjects

FREE_SHARE = 0.5  # of the memory, and of the disk, that are free when the first object is kept


class LocalCopies:
    """Read-only cache in front of an object store, for objects that never change, such as staged training data. Objects are kept in memory,
    or in a temporary folder if memory has no room; the folder is deleted with the cache. An object for which neither has room is read from
    the store each time. Nothing is ever dropped from the cache.
    """

    def __init__(
        self, store: ReadableObjects, *, memory_bytes: int | None = None, disk_bytes: int | None = None
    ) -> None:
        """Put a cache in front of `store`. `memory_bytes`, `disk_bytes`: largest number of bytes to keep in memory and on disk; None: half
        of what is free.
        """
        self._store = store
        self._memory_left = _find_free_memory() if memory_bytes is None else memory_bytes
        self._disk_left = disk_bytes
        self._memory: dict[str, bytes] = {}
        self._files: dict[str, Path] = {}
        self._folder: Path | None = None
        self._lock = runtime.lock()

    def get(self, key: str) -> bytes:
        """Return the bytes of the object under `key`, which is read from the store only the first time if the cache has room.
        Raises Missing if the store has no such object.
        """
        if (found := self._memory.get(key)) is not None:
            return found
        if (path := self._files.get(key)) is not None:
            return path.read_bytes()
        body = self._store.get(key)
        with self._lock:
            self._store_copy(key, body)
        return body

    def _store_copy(self, key: str, body: bytes) -> None:
        """Keep the object `body` in memory, or in a file if memory has no room; do nothing if neither has. The caller holds the lock. A
        failed write to the disk ends the use of the disk. `key`: under which the copy is found again.
        """
        if len(body) <= self._memory_left:
            self._memory_left -= len(body)
            self._memory[key] = body
            return
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="crossover-data-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            if self._disk_left is None:
                self._disk_left = int(FREE_SHARE * shutil.disk_usage(self._folder).free)
        if self._disk_left is not None and len(body) <= self._disk_left:
            path = self._folder / hashlib.sha256(key.encode()).hexdigest()
            try:
                path.write_bytes(body)
            except OSError:  # somebody else filled the disk: this object is read again
                path.unlink(missing_ok=True)
                self._disk_left = 0
                return
            self._disk_left -= len(body)
            self._files[key] = path


def _find_free_memory() -> int:
    """Return half (FREE_SHARE) of this machine's free memory, in bytes; 0 if the platform does not report it."""
    try:
        return int(FREE_SHARE * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError):
        return 0

"""Objects as rows of an SQLite file: all that a channel needs. Safe between processes, as SQLite's locks are."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from crossover.errors import Missing
from crossover.stores.documents import join_buffers
from crossover.stores.protocols import Buffer, Traffic

PATIENCE_S = 60.0  # for a lock


class SqliteObjectStore:
    """An ObjectStore in the file `path`."""

    def __init__(self, path: str, traffic: Traffic) -> None:
        self._path, self._traffic = path, traffic
        with self._open() as file:
            file.execute("CREATE TABLE IF NOT EXISTS objects (key TEXT PRIMARY KEY, data BLOB NOT NULL)")

    def with_traffic(self, traffic: Traffic) -> "SqliteObjectStore":
        return SqliteObjectStore(self._path, traffic)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection, whose transaction is committed at the end of the block."""
        with closing(sqlite3.connect(self._path, timeout=PATIENCE_S)) as file, file:
            yield file

    def _write(self, how: str, key: str, data: Buffer | Sequence[Buffer]) -> bool:
        """Insert the object, resolving a conflict by `how` (SQLite's word), and return True if a row was written."""
        body = join_buffers(data)
        self._traffic.count("put", bytes_out=len(body))
        with self._open() as file:
            return file.execute(f"INSERT OR {how} INTO objects VALUES (?, ?)", (key, body)).rowcount == 1

    def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        self._write("REPLACE", key, data)

    def put_new(self, key: str, data: Buffer | Sequence[Buffer]) -> bool:
        return self._write("IGNORE", key, data)

    def create(self, key: str, data: Buffer | Sequence[Buffer]) -> bytes:
        return join_buffers(data) if self.put_new(key, data) else self.get(key)

    def get(self, key: str) -> bytes:
        """Return the object's bytes. Raises Missing if there is none."""
        with self._open() as file:
            found = file.execute("SELECT data FROM objects WHERE key = ?", (key,)).fetchone()
        self._traffic.count("get", bytes_in=len(found[0]) if found else 0)
        if not found:
            raise Missing(key)
        return bytes(found[0])

    def exists(self, key: str) -> bool:
        self._traffic.count("exists")
        with self._open() as file:
            return file.execute("SELECT 1 FROM objects WHERE key = ?", (key,)).fetchone() is not None

    def delete(self, *keys: str) -> None:
        self._traffic.count("delete")
        with self._open() as file:
            file.executemany("DELETE FROM objects WHERE key = ?", [(key,) for key in keys])

    def list(self, prefix: str) -> list[str]:
        """Return the keys that begin with the prefix, sorted."""
        self._traffic.count("list")
        with self._open() as file:
            rows = file.execute("SELECT key FROM objects WHERE substr(key, 1, ?) = ?", (len(prefix), prefix)).fetchall()
        return sorted(key for (key,) in rows)

    def delete_prefix(self, prefix: str) -> int:
        keys = self.list(prefix)
        self.delete(*keys)
        return len(keys)

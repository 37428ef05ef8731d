"""Vectors as rows of an SQLite file: all that a vector store needs. Safe between processes, as SQLite's locks are."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from crossover.errors import Missing
from crossover.stores.documents import finish_read
from crossover.stores.encoding import Vector, VectorKind, build_header, decode
from crossover.stores.protocols import Traffic

PATIENCE_S = 60.0  # for a lock


class SqliteTensorStore:
    """A TensorStore in the file of an sqlite:// URL. Its keys live as long as the file."""

    def __init__(self, url: str, *, traffic: Traffic, **unused: object) -> None:
        self._url, self._path, self._traffic = url, url.removeprefix("sqlite://"), traffic
        with self._open() as file:
            file.execute("CREATE TABLE IF NOT EXISTS vectors (key TEXT PRIMARY KEY, data BLOB NOT NULL)")

    def with_traffic(self, traffic: Traffic) -> "SqliteTensorStore":
        return SqliteTensorStore(self._url, traffic=traffic)

    def close(self) -> None:
        """Do nothing: each call opens and closes a connection of its own."""

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection, whose transaction is committed at the end of the block."""
        with closing(sqlite3.connect(self._path, timeout=PATIENCE_S)) as file, file:
            yield file

    def _write(self, how: str, vectors: Sequence[tuple[str, Vector]]) -> bool:
        """Insert the vectors in one transaction, so that a reader who finds the first finds all; return False and write no other if the
        first was not written.
        """
        self._traffic.count("put", bytes_out=sum(vector.data.nbytes for _, vector in vectors))
        rows = [(key, build_header(vector) + vector.data.tobytes()) for key, vector in vectors]
        with self._open() as file:
            first = file.execute(f"INSERT OR {how} INTO vectors VALUES (?, ?)", rows[0]).rowcount == 1
            if first:
                file.executemany(f"INSERT OR {how} INTO vectors VALUES (?, ?)", rows[1:])
            return first

    def put(self, key: str, vector: Vector) -> None:
        self._write("REPLACE", [(key, vector)])

    def create(self, key: str, vector: Vector) -> bool:
        return self._write("IGNORE", [(key, vector)])

    def create_together(self, vectors: Sequence[tuple[str, Vector]]) -> bool:
        return self._write("IGNORE", vectors)

    def get(self, key: str, *, kind: VectorKind | None = None, out: memoryview | None = None) -> Vector:
        """Return the vector, copied into `out` if given. Raises Missing if there is none."""
        with self._open() as file:
            found = file.execute("SELECT data FROM vectors WHERE key = ?", (key,)).fetchone()
        if not found:
            self._traffic.count("get")
            raise Missing(key)
        vector = decode(found[0], key=key, kind=kind)
        self._traffic.count("get", bytes_in=vector.data.nbytes)
        return finish_read(vector, key=key, kind=kind, out=out)

    def exists(self, key: str) -> bool:
        self._traffic.count("exists")
        with self._open() as file:
            return file.execute("SELECT 1 FROM vectors WHERE key = ?", (key,)).fetchone() is not None

    def delete(self, *keys: str) -> None:
        self._traffic.count("delete")
        with self._open() as file:
            file.executemany("DELETE FROM vectors WHERE key = ?", [(key,) for key in keys])

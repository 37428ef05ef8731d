"""Objects of S3: many readers and writers at once, which some habits of moto do not survive.

An ETag is computed by the first answer that needs it, by reading through the object's buffer from its start, while another request may be
reading the same buffer: that one then gets an empty or cut body. And an object that is replaced or deleted has its buffer closed at once,
under the requests that are still being answered from it. Between a condition and the put that it was for, another request can come; between
a list's look at the keys and at the objects, a deletion.
"""

import threading
from collections.abc import Iterator
from typing import Any

from crossover.local.moto_patches.replacing import Replacements


class _Unheld(list[Any]):
    """In the place of moto's list of all objects that ever were, which keeps those without a bucket from ending."""

    def append(self, key: Any) -> None:
        """Not held."""


def install(changes: Replacements) -> None:
    _buffers(changes)
    conditions(changes)
    _lists(changes)


def conditions(changes: Replacements) -> None:
    """Puts with a condition happen one after another: of several that create an object, one does."""
    from moto.s3.responses import S3Response

    one_at_a_time = threading.Lock()

    @changes.wraps(S3Response, "put_object")
    def put(old: Any, self: S3Response) -> Any:
        if not (self.headers.get("If-Match") or self.headers.get("If-None-Match")):
            return old(self)
        with one_at_a_time:
            return old(self)


def _lists(changes: Replacements) -> None:
    """A list is of the objects there were at its beginning."""
    from moto.s3.utils import _VersionedKeyStore

    def values(store: Any) -> Iterator[Any]:
        return (versions[-1] for versions in list(dict.values(store)) if versions)

    def items(store: Any) -> Iterator[tuple[str, Any]]:
        return ((key, versions[-1]) for key, versions in list(dict.items(store)) if versions)

    for name, iterate in {"values": values, "itervalues": values, "items": items, "iteritems": items}.items():
        changes.replace(_VersionedKeyStore, name, iterate)


def _buffers(changes: Replacements) -> None:
    """One reader of an object's buffer at a time; it is closed when nobody holds the object any more."""
    from moto.s3.models import FakeKey

    def etag(key: FakeKey) -> str:
        with key.lock:
            found: str = computed.fget(key)
            return found

    computed = changes.replace(FakeKey, "etag", property(etag))

    def dispose(key: FakeKey, garbage: bool = False) -> None:
        key.disposed = True
        if garbage:
            disposed(key, garbage=True)

    disposed = changes.replace(FakeKey, "dispose", dispose)
    changes.replace(FakeKey, "instances_tracked", _Unheld())

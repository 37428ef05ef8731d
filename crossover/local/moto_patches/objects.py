"""S3 objects: patches that make moto safe for many concurrent readers and writers.

moto computes an ETag at the first answer that needs it, by reading through the object's buffer from its start, while another request may
read the same buffer: that request then gets an empty or truncated body. The buffer of a replaced or deleted object is closed at once, while
requests still read from it. Another request can come between the check of a condition and its put, and a deletion between a listing's read
of the keys and of the objects.
"""

import threading
from collections.abc import Iterator
from typing import Any

from crossover.local.moto_patches.replacing import Replacements


class _AlwaysEmptyList(list[Any]):
    """A list that stays empty. It replaces moto's list of all objects that ever existed, which keeps deleted ones in memory."""

    def append(self, key: Any) -> None:
        """Do nothing: `key` is not kept."""


def install(changes: Replacements) -> None:
    """Install the patches of S3 objects through `changes`: safe buffers, conditional puts one at a time, and listings of a copy."""
    _guard_buffers(changes)
    serialize_conditional_puts(changes)
    _copy_listings(changes)


def serialize_conditional_puts(changes: Replacements) -> None:
    """Let conditional puts (If-Match, If-None-Match) run one after another, so that of several that create the same object only one
    succeeds. `changes`: records the patch and undoes it.
    """
    from moto.s3.responses import S3Response

    one_at_a_time = threading.Lock()

    @changes.wraps(S3Response, "put_object")
    def put(old: Any, self: S3Response) -> Any:
        """Put an object by moto's method `old` and return its answer; a put with a condition first waits for all other conditional puts."""
        if not (self.headers.get("If-Match") or self.headers.get("If-None-Match")):
            return old(self)
        with one_at_a_time:
            return old(self)


def _copy_listings(changes: Replacements) -> None:
    """Let a listing iterate over a copy of the objects that existed when it began, so that changes meanwhile do no harm. `changes`: records
    the patch and undoes it.
    """
    from moto.s3.utils import _VersionedKeyStore

    def values(store: Any) -> Iterator[Any]:
        """Return an iterator over the newest version of each object in `store`, taken from a copy made at the call, so that later changes
        do not matter.
        """
        return (versions[-1] for versions in list(dict.values(store)) if versions)

    def items(store: Any) -> Iterator[tuple[str, Any]]:
        """Return an iterator over (key, newest version) of each object in `store`, taken from a copy made at the call, so that later
        changes do not matter.
        """
        return ((key, versions[-1]) for key, versions in list(dict.items(store)) if versions)

    for name, iterate in {"values": values, "itervalues": values, "items": items, "iteritems": items}.items():
        changes.replace(_VersionedKeyStore, name, iterate)


def _guard_buffers(changes: Replacements) -> None:
    """Let only one thread at a time compute an object's ETag, and close the buffer of a deleted object only when nothing uses it any
    more. `changes`: records the patch and undoes it.
    """
    from moto.s3.models import FakeKey

    def compute_etag(key: FakeKey) -> str:
        """Return the object's ETag, computed under the object's lock."""
        with key.lock:
            found: str = computed.fget(key)
            return found

    computed = changes.replace(FakeKey, "etag", property(compute_etag))

    def dispose(key: FakeKey, garbage: bool = False) -> None:
        """Mark an object as disposed, but close its buffer only if `garbage`: when Python frees the object, because nothing refers to
        it.
        """
        key.disposed = True
        if garbage:
            disposed(key, garbage=True)

    disposed = changes.replace(FakeKey, "dispose", dispose)
    changes.replace(FakeKey, "instances_tracked", _AlwaysEmptyList())

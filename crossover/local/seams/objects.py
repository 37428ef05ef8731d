"""Objects of S3: many readers and writers at once, which two habits of moto do not survive.

An ETag is computed by the first answer that needs it, by reading through the object's buffer from its start, while
another request may be reading the same buffer: that one then gets an empty or cut body. And an object that is replaced
or deleted has its buffer closed at once, under the requests that are still being answered from it.
"""

from typing import Any

from crossover.local.seams.replacing import Replacements


class _Unheld(list[Any]):
    """In the place of moto's list of all objects that ever were, which keeps those without a bucket from ending."""

    def append(self, key: Any) -> None:
        """Not held."""


def install(changes: Replacements) -> None:
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

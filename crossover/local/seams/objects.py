"""Objects of S3: many readers and a writer at once, which moto's lazily computed ETag does not survive.

It is computed by the first answer that needs it, by reading through the object's buffer from its start, while another
request may be reading the same buffer: that one then gets an empty or cut body.
"""

from crossover.local.seams.replacing import Replacements


def install(changes: Replacements) -> None:
    """One reader of an object's buffer at a time."""
    from moto.s3.models import FakeKey

    def etag(key: FakeKey) -> str:
        with key.lock:
            found: str = computed.fget(key)
            return found

    computed = changes.replace(FakeKey, "etag", property(etag))

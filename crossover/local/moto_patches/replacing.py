"""How a seam changes moto: one attribute at a time, checked to be there, put back at the end.

moto is pinned in requirements.txt, and `tests/local/moto_patches/` has a contract test per seam. When a new moto moves something, it is
said here by name instead of failing somewhere in the middle of a run.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from crossover.errors import RunFailed

_ABSENT = object()
Replaced = TypeVar("Replaced", bound=Callable[..., Any])


class Replacements(contextlib.ExitStack):
    """What the seams of one cloud replaced; closing it puts moto back as it was, last change first."""

    def replace(self, owner: Any, name: str, new: Any) -> Any:
        """Set `owner.name`; the former value, which a wrapper calls. Raises RunFailed when moto has no such attribute (any more)."""
        old = getattr(owner, name, _ABSENT)
        if old is _ABSENT:
            raise RunFailed(
                f"moto: {_name(owner)} has no {name!r}, which crossover.local replaces; requirements.txt pins the moto it was "
                f"written for: install that, or revise the seam"
            )
        self._set(owner, name, new, vars(owner).get(name, _ABSENT))
        return old

    def wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Replace the method `owner.name` by `wrapper(old, *arguments)`; a classmethod or staticmethod stays one."""
        raw = vars(owner).get(name)
        old = self.replace(owner, name, None)
        if isinstance(raw, classmethod):
            inner = raw.__func__
            new: Any = classmethod(functools.wraps(inner)(functools.partial(_call_class_method, wrapper, inner)))
        else:

            @functools.wraps(old)
            def new(*arguments: Any, **named: Any) -> Any:
                return wrapper(old, *arguments, **named)

            new = staticmethod(new) if isinstance(raw, staticmethod) else new
        setattr(owner, name, new)

    def add(self, owner: Any, name: str, new: Any) -> None:
        """Set an attribute that moto lacks. Raises RunFailed when it has one by now: then the seam is not needed any more."""
        if name in vars(owner):
            raise RunFailed(
                f"moto: {_name(owner)} has a {name!r} of its own by now: drop the seam of crossover.local that adds it"
            )
        self._set(owner, name, new, _ABSENT)

    def replaces(self, owner: Any, name: str) -> Callable[[Replaced], Replaced]:
        """`replace` as the decorator of what is put in the place."""
        return functools.partial(_told, self.replace, owner, name)

    def wraps(self, owner: Any, name: str) -> Callable[[Replaced], Replaced]:
        """`wrap` as the decorator of the wrapper."""
        return functools.partial(_told, self.wrap, owner, name)

    def adds(self, owner: Any, name: str) -> Callable[[Replaced], Replaced]:
        """`add` as the decorator of what is added."""
        return functools.partial(_told, self.add, owner, name)

    def set_item(self, owner: Any, key: Any, new: Any) -> None:
        """Set `owner[key]`."""
        old = owner.get(key, _ABSENT)
        owner[key] = new
        self.callback(lambda: owner.pop(key, None) if old is _ABSENT else owner.update({key: old}))

    def _set(self, owner: Any, name: str, new: Any, old: Any) -> None:
        setattr(owner, name, new)
        self.callback(lambda: delattr(owner, name) if old is _ABSENT else setattr(owner, name, old))


def _told(change: Callable[[Any, str, Any], object], owner: Any, name: str, new: Replaced) -> Replaced:
    change(owner, name, new)
    return new


def _call_class_method(
    wrapper: Callable[..., Any], inner: Callable[..., Any], cls: Any, *rest: Any, **named: Any
) -> Any:
    return wrapper(functools.partial(inner, cls), cls, *rest, **named)


def _name(owner: Any) -> str:
    return getattr(owner, "__qualname__", None) or getattr(owner, "__name__", None) or repr(owner)

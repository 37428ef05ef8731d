"""How patches change moto: one attribute at a time, which must exist, and which is restored at the end.

moto is pinned in requirements.txt, and `tests/local/moto_patches/` has a contract test for each patch. If a new moto moves an attribute, an
error here names it, instead of a failure in the middle of a run.
"""

import contextlib
import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from crossover.errors import RunFailed

_ABSENT = object()
Replaced = TypeVar("Replaced", bound=Callable[..., Any])


class Replacements(contextlib.ExitStack):
    """The changes that patches made to moto for one cloud, a context manager. Its methods make a change at once; closing this stack undoes
    them, the last change first.
    """

    def replace(self, owner: Any, name: str, new: Any) -> Any:
        """Set `owner.name` to `new` until this stack is closed, and return the former value. Raises RunFailed if moto has no such
        attribute.
        """
        old = getattr(owner, name, _ABSENT)
        if old is _ABSENT:
            raise RunFailed(
                f"moto: {_name_owner(owner)} has no {name!r}, which crossover.local replaces; requirements.txt pins the moto it was "
                f"written for: install that, or revise the seam"
            )
        self._set(owner, name, new, vars(owner).get(name, _ABSENT))
        return old

    def wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Replace the method `owner.name`, until this stack is closed, by one that calls `wrapper(old method, *arguments)`, where the
        arguments begin with `self`; for a classmethod, `wrapper(old method, cls, *arguments)`. A classmethod or staticmethod stays one.
        Raises RunFailed if moto has no such method.
        """
        raw = vars(owner).get(name)
        old = self.replace(owner, name, None)
        if isinstance(raw, classmethod):
            inner = raw.__func__
            new: Any = classmethod(functools.wraps(inner)(functools.partial(_call_class_method, wrapper, inner)))
        else:

            @functools.wraps(old)
            def new(*arguments: Any, **named: Any) -> Any:
                """Return `wrapper(old method, *arguments, **named)`. For a method the arguments begin with `self`."""
                return wrapper(old, *arguments, **named)

            new = staticmethod(new) if isinstance(raw, staticmethod) else new
        setattr(owner, name, new)

    def add(self, owner: Any, name: str, new: Any) -> None:
        """Set `owner.name` to `new` until this stack is closed. `owner` (a class or module of moto) must not have that attribute.

        Raises RunFailed if it has one: then the patch is no longer needed.
        """
        if name in vars(owner):
            raise RunFailed(
                f"moto: {_name_owner(owner)} has a {name!r} of its own by now: drop the seam of crossover.local that adds it"
            )
        self._set(owner, name, new, _ABSENT)

    def replaces(self, owner: Any, name: str) -> Callable[[Replaced], Replaced]:
        """Return a decorator that replaces `owner.name`, which must exist (RunFailed if not), by the decorated function until this stack is
        closed.
        """
        return functools.partial(_apply_change, self.replace, owner, name)

    def wraps(self, owner: Any, name: str) -> Callable[[Replaced], Replaced]:
        """Return a decorator that replaces the method `owner.name` by a call of the decorated function, which gets the old method as its
        first argument, until this stack is closed. Raises RunFailed if moto has no such method.
        """
        return functools.partial(_apply_change, self.wrap, owner, name)

    def adds(self, owner: Any, name: str) -> Callable[[Replaced], Replaced]:
        """Return a decorator that adds the decorated function to `owner` as the attribute `name`, which moto lacks, until this stack is
        closed. Raises RunFailed if moto has it by now.
        """
        return functools.partial(_apply_change, self.add, owner, name)

    def set_item(self, owner: Any, key: Any, new: Any) -> None:
        """Set `owner[key]` to `new` until this stack is closed; then restore the former value, or delete the key if there was none."""
        old = owner.get(key, _ABSENT)
        owner[key] = new
        self.callback(lambda: owner.pop(key, None) if old is _ABSENT else owner.update({key: old}))

    def _set(self, owner: Any, name: str, new: Any, old: Any) -> None:
        """Set `owner.name` to `new`, and register that it is set back to `old` when this stack is closed, also in modules that have
        imported `new` meanwhile.
        """
        loaded = set(sys.modules)
        setattr(owner, name, new)

        def put_back() -> None:
            """Set the attribute back to its old value, also in modules that have imported the replacement since; delete it if there was no
            old value.
            """
            if old is _ABSENT:
                delattr(owner, name)
                return
            setattr(owner, name, old)
            if isinstance(owner, ModuleType):
                for each in _find_importers(name, new, since=loaded):
                    setattr(each, name, old)

        self.callback(put_back)


def _find_importers(name: str, new: Any, *, since: set[str]) -> list[ModuleType]:
    """Return the modules that have imported the replacement `new` under `name`, among those loaded after the modules in `since`.

    moto loads the modules of a service at its first request; they would keep what they imported from a changed module.
    """
    later = [module for key, module in list(sys.modules.items()) if key not in since]
    return [module for module in later if vars(module).get(name, _ABSENT) is new]


def _apply_change(change: Callable[[Any, str, Any], object], owner: Any, name: str, new: Replaced) -> Replaced:
    """Call `change(owner, name, new)` and return the decorated function `new` unchanged."""
    change(owner, name, new)
    return new


def _call_class_method(
    wrapper: Callable[..., Any], inner: Callable[..., Any], cls: Any, *rest: Any, **named: Any
) -> Any:
    """Call `wrapper(old, cls, ...)` for a wrapped classmethod; `old` is `inner`, the original function, bound to `cls`."""
    return wrapper(functools.partial(inner, cls), cls, *rest, **named)


def _name_owner(owner: Any) -> str:
    """Return the name of `owner`, a class or module, for an error message."""
    return getattr(owner, "__qualname__", None) or getattr(owner, "__name__", None) or repr(owner)

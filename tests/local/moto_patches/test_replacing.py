"""The pin of moto: a seam whose place has moved says so by name, and a closed cloud leaves moto as it was."""

import importlib
import sys
import types
from pathlib import Path

import pytest

from crossover.errors import RunFailed
from crossover.local.moto_patches.replacing import Replacements


class Service:
    """A class with one attribute and one method of each kind, to be replaced."""

    limit = 1

    def double(self, number: int) -> int:
        """Return twice the number."""
        return 2 * number

    @classmethod
    def named(cls, name: str) -> str:
        """Return the class's name and `name`."""
        return f"{cls.__name__} {name}"

    @staticmethod
    def plain(number: int) -> int:
        """Return the number."""
        return number


def test_changes_are_taken_back() -> None:
    """Replace, wrap and add attributes of each kind: they act within the block, and the class is as before afterwards."""
    before = dict(vars(Service))
    with Replacements() as changes:
        changes.replace(Service, "limit", 2)
        changes.wrap(Service, "double", lambda old, self, number: old(self, number) + 1)
        changes.wrap(Service, "named", lambda old, cls, name: old(name).upper())
        changes.wrap(Service, "plain", lambda old, number: old(number) - 1)
        changes.add(Service, "extra", lambda self: "extra")
        assert (Service.limit, Service().double(4), Service.named("x"), Service.plain(3)) == (2, 9, "SERVICE X", 2)
        assert Service().extra() == "extra"  # type: ignore[attr-defined]
    assert dict(vars(Service)) == before


def test_items_are_taken_back() -> None:
    """Change and add items of a dictionary: it is as before after the block."""
    config = {"a": 1}
    with Replacements() as changes:
        changes.set_item(config, "a", 2)
        changes.set_item(config, "b", 3)
        assert config == {"a": 2, "b": 3}
    assert config == {"a": 1}


def test_modules_loaded_meanwhile_get_the_former_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Import a changed value into a module that is loaded within the block: the module has the former value afterwards."""
    (tmp_path / "changed_meanwhile.py").write_text("limit = 1\n")
    (tmp_path / "loaded_meanwhile.py").write_text("from changed_meanwhile import limit\n")
    monkeypatch.syspath_prepend(tmp_path)
    with Replacements() as changes:
        changes.replace(importlib.import_module("changed_meanwhile"), "limit", 1000)
        later = importlib.import_module("loaded_meanwhile")
        assert later.limit == 1000
    assert later.limit == 1
    del sys.modules["changed_meanwhile"], sys.modules["loaded_meanwhile"]


def test_what_is_gone_is_named() -> None:
    """Replace and wrap attributes that do not exist: RunFailed names the owner and the attribute."""
    module = types.ModuleType("moto.some.models")
    with (
        Replacements() as changes,
        pytest.raises(RunFailed, match=r"moto: moto.some.models has no 'gone'.*requirements.txt"),
    ):
        changes.replace(module, "gone", 1)
    with Replacements() as changes, pytest.raises(RunFailed, match="Service has no 'gone'"):
        changes.wrap(Service, "gone", lambda old: None)


def test_what_moto_has_by_now_is_named() -> None:
    """Add an attribute that exists: RunFailed names the owner and the attribute."""
    with Replacements() as changes, pytest.raises(RunFailed, match="Service has a 'double' of its own by now"):
        changes.add(Service, "double", None)

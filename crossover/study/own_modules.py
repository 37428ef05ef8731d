"""A check of the user's own modules that running a bundle again would import, against the bundle's digests, before Python imports them.

A bundle contains no code. Modules that it names are searched beside it and in the current folder, where somebody may have put other files.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from crossover import bundling, user_code
from crossover.errors import ConfigError, OwnCodeError
from crossover.study.bundle import Bundle


def check(bundle: Bundle, folders: Sequence[Path]) -> list[str]:
    """Return a line for each own file that the trials import: which one, from where, with which digest. Nothing is imported. Raises
    ConfigError for each file that is missing, has another digest than in the bundle, or has no digest there. `folders`: where modules are
    searched.
    """
    user_code.set_folders(*folders)
    lines, faults = list[str](), list[str]()
    for field, name in sorted(set(_list_named_code(bundle))):
        module = name.partition(":")[0]
        try:
            files = bundling.find_files(name, field=field)
        except OwnCodeError as error:
            faults.append(str(error))
            continue
        if not files:
            faults.append(
                f"{field}: {name!r}: module {module} was not found beside the bundle or in the current folder"
            )
        for path, file in files.items():
            digest, then = hashlib.sha256(file.read_bytes()).hexdigest(), bundle.own_code.get(path.as_posix())
            lines.append(f"{field}: {name} imports {file}, SHA-256 {digest}")
            if then is None:
                faults.append(
                    f"{file}: the bundle has no digest of this file, so it may differ from the file that was run"
                )
            elif then != digest:
                faults.append(
                    f"{file}: SHA-256 {digest[:16]}, the bundle's is {then[:16]}; restore the file that was run"
                )
    if faults:
        raise ConfigError(
            "\n".join(["--run: no user code was imported:", *(f"  {fault}" for fault in dict.fromkeys(faults))])
        )
    return list(dict.fromkeys(lines))


def _list_named_code(bundle: Bundle) -> Iterator[tuple[str, str]]:
    """Yield field and `package.module:name` of all own code that any trial may name, run or not."""
    study = bundle.study
    yield from _find_code_names("", study.base)
    for field, values in study.grid.items():
        yield from _find_code_names(field, list(values))
    if study.search:
        yield from _find_code_names("", study.search.space)


def _find_code_names(field: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield field and name of all own code in `value`, which may be nested. `field`: the dotted field of `value`."""
    match value:
        case Mapping():
            for name, each in value.items():
                yield from _find_code_names(f"{field}.{name}".strip("."), each)
        case list():
            for each in value:
                yield from _find_code_names(field, each)
        case str() if user_code.is_name(value):
            yield field, value
        case str() if field.rpartition(".")[2] in ("architecture", "baseline") and "." in value:
            yield field, f"{value.replace('-', '_')}:ARCHITECTURE"

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
    """Compare the user's own code files that the bundle's trials would import with the digests in the bundle, without importing them.
    Return one line for each name and file that it imports: field and name, path, SHA-256; empty if no user code is named. Raises
    ConfigError that lists every file that is missing, differs, or has no digest in the bundle. `folders`: where user code is searched, from
    now on in this whole process; modules that were loaded from other folders are unloaded.
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
    """Yield (dotted field, `package.module:name`) for each piece of user code that the bundle's study names, in its base, its grid or its
    search space.
    """
    study = bundle.study
    yield from _find_code_names("", study.base)
    for field, values in study.grid.items():
        yield from _find_code_names(field, list(values))
    if study.search:
        yield from _find_code_names("", study.search.space)


def _find_code_names(field: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield (dotted field, `package.module:name`) for each name of user code in `value`, which may be nested. A dotted name in a field
    `architecture` or `baseline` counts as `module:ARCHITECTURE`. `field`: dotted field of `value`.
    """
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

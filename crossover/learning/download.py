"""Files of a data set: found in a folder, or fetched once, and only ever used when their checksum is the published one."""

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from crossover.errors import DataError

_TIMEOUT_S = 30.0
_BLOCK_BYTES = 1 << 20


def folder(directory: str | None) -> Path:
    """Where the data sets lie: `data.directory`, else a folder of the user's cache."""
    return Path(directory).expanduser() if directory else Path.home() / ".cache" / "crossover" / "data"


def found(name: str, folders: Sequence[Path]) -> Path | None:
    """The first of `folders` that has `name`."""
    return next((place / name for place in folders if (place / name).exists()), None)


def check(data: bytes | memoryview, md5: str, *, name: str) -> None:
    """Raises DataError unless `data` has the published MD5 (a transmission checksum here, not a defence against forgery)."""
    actual = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if actual != md5:
        raise DataError(
            f"{name}: MD5 {actual} where the published file has {md5}; the file is damaged or another one: delete it and fetch it again"
        )


def fetch(name: str, *, urls: Sequence[str], md5: str, into: Path) -> Path:
    """Download `name` into the folder `into`. Raises DataError, saying what to do by hand, where no source can be reached."""
    target, reasons = into / name, []
    for url in urls:
        partial = into / f".{name}.{os.getpid()}.part"
        try:
            into.mkdir(parents=True, exist_ok=True)
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response, partial.open("wb") as file:
                while block := response.read(_BLOCK_BYTES):
                    file.write(block)
            check(partial.read_bytes(), md5, name=f"{name} from {url}")
            partial.rename(target)
            return target
        except (OSError, urllib.error.URLError, DataError) as error:
            reasons.append(str(error) if isinstance(error, DataError) else f"{url}: {error}")
        finally:
            partial.unlink(missing_ok=True)
    raise DataError(
        f"{name}: neither in {into} nor to be fetched ({'; '.join(reasons)}). Put the official file into {into},"
        " or name the folder that has it in data.directory (--data DIR)"
    )

"""The code of deployed functions, unpacked once per content."""

import compileall
import hashlib
import io
import os
import threading
import zipfile
from pathlib import Path


class Code:
    """Folders by the zip's content."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def unpacked(self, archive: bytes) -> Path:
        """The folder with the zip's content, compiled: Lambda's own start is not slowed by compiling either."""
        target = self._folder / hashlib.sha256(archive).hexdigest()[:16]
        with self._lock:
            if not target.exists():
                half = target.with_suffix(".part")
                zipfile.ZipFile(io.BytesIO(archive)).extractall(half)
                compileall.compile_dir(half, quiet=2, stripdir=half, prependdir=target)
                os.rename(half, target)
        return target

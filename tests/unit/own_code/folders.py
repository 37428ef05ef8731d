"""Two folders with modules in them: the experiment's file's, and the current one."""

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Folders:
    """The two folders in which user code is looked up: the experiment's, and the current one above it."""

    root: Path

    def experiment(self, **modules: str) -> Path:
        """Write modules into the experiment's folder, and return it."""
        return write(self.root / "experiment", modules)

    def current(self, **modules: str) -> Path:
        """Write modules into the current folder, and return it."""
        return write(self.root, modules)


def write(folder: Path, modules: dict[str, str]) -> Path:
    """Write modules by name into `folder`, packages as `package/module`, and return the folder."""
    for name, text in modules.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder

"""Two folders with modules in them: the experiment's file's, and the current one."""

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Folders:
    root: Path

    def experiment(self, **modules: str) -> Path:
        return write(self.root / "experiment", modules)

    def current(self, **modules: str) -> Path:
        return write(self.root, modules)


def write(folder: Path, modules: dict[str, str]) -> Path:
    """Modules by name, packages as `package/module`."""
    for name, text in modules.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder

"""Dependencies and extras of the wheel, read from requirements.txt, which is the one place for versions; everything else is in
pyproject.toml. A wheel also brings the folder of examples.
"""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
GROUP = re.compile(r"# \[(\w+)\]")
# Curves of a run in these tools: `crossover run ... --log tensorboard`. Versions are open: `make setup` does not install them.
TRACKING = {"tensorboard": ["tensorboard>=2.20"], "mlflow": ["mlflow-skinny>=3.4", "sqlalchemy", "alembic"]}


def groups() -> dict[str, list[str]]:
    """Return the requirements by the group that they stand under."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in (HERE / "requirements.txt").read_text(encoding="utf-8").splitlines():
        if heading := GROUP.match(line):
            found[heading[1]] = current = []
        elif requirement := line.partition("#")[0].strip():
            current.append(requirement)
    return found


class WithExamples(build_py):
    """Copies `examples/` into the wheel, below `crossover/`."""

    def run(self) -> None:
        """Build the packages, then add the examples, unless the checkout itself is installed."""
        super().run()
        if not self.editable_mode:
            out = Path(self.build_lib) / "crossover" / "examples"
            shutil.copytree(HERE / "examples", out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


requirements = groups()
core = requirements.pop("core")
requirements["local"] += requirements["aws"]  # a run on this machine deploys the same templates
setup(install_requires=core, extras_require={**requirements, **TRACKING}, cmdclass={"build_py": WithExamples})

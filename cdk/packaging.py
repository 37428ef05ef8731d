"""The package of a function: a zip with layers, or a container image for a PyTorch that does not fit into a layer.

Neither is built here. Layers lie in `build/` or are placeholders; an image is a folder with a Dockerfile, which the CDK command line
builds when the stack is deployed. So synthesis needs neither Docker nor network either way.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_lambda as lambda_

from cdk import bundling
from cdk.layers import RUNTIME, Layers
from crossover import user_code
from crossover.user_code import Dependencies
from crossover.workflow import AT_START, Step
from layer import lock
from layer.contents import pin_version

ROOT = Path(__file__).parent.parent
DOCKERFILE = Path(__file__).parent / "image" / "Dockerfile"
TARGETS = {False: "dataplane", True: "torch"}  # of the Dockerfile, by whether the step computes
PLATFORM = ecr_assets.Platform.LINUX_ARM64


@dataclass(frozen=True, kw_only=True)
class Package:
    """The arguments of a Lambda function that determine its code: a zip with handler, runtime and layers, or a container image."""

    code: lambda_.Code
    handler: str
    runtime: lambda_.Runtime
    layers: Sequence[lambda_.ILayerVersion] | None


@dataclass
class Packages:
    """Builder of the code packages of steps. The files of a package are copied below `folder`, once for all steps of a module with the
    same dependencies; the folder must exist until the CDK has made its assets.

    `layers`: the layers that zips use; `image`: whether functions are container images; `own`: files of the user's code, which go into
    packages with torch; `own_steps`: whether the architecture itself is the user's, so that they go into all packages.
    """

    layers: Layers
    folder: Path
    image: bool
    own: Dependencies = field(default_factory=Dependencies)  # what the experiment's own code consists of
    own_steps: bool = False  # the architecture is part of it
    _sources: bundling.Sources = field(default_factory=lambda: bundling.Sources(ROOT))
    _zips: dict[Path, lambda_.Code] = field(default_factory=dict)

    def for_step(self, step: Step, *, torch: bool) -> Package:
        """Copy the files that `step` needs, unless an earlier call has copied them, and return the package for its function. `torch`:
        whether the function has torch. Raises Unreachable if the step needs a third-party package that the function lacks.
        """
        available = user_code.COMPUTING if torch else user_code.RUNTIME | user_code.DATAPLANE
        out = self.folder / TARGETS[torch] / step.module.replace(".", "-")
        handler = f"{step.module}.{step.name}"
        if not out.exists():
            code = out / "code" if self.image else out
            own = self.own if torch or self.own_steps else Dependencies()  # a model is built by steps that compute
            closure = self._sources.collect_files(step.module, available=available, own=own.first_party)
            bundling.copy_files(closure, root=ROOT, out=code, own=own.files)
            if closure.computing:
                at_start = "".join(f"import {name}\n" for name in closure.computing)
                (code / AT_START.replace(".", "/")).with_suffix(".py").write_text(at_start, encoding="utf-8")
            if self.image:
                stage_image(out)
        if self.image:
            image = lambda_.Code.from_asset_image(
                str(out), cmd=[handler], target=TARGETS[torch], platform=PLATFORM, asset_name=TARGETS[torch]
            )
            return Package(
                code=image, handler=lambda_.Handler.FROM_IMAGE, runtime=lambda_.Runtime.FROM_IMAGE, layers=None
            )
        if out not in self._zips:
            self._zips[out] = lambda_.Code.from_asset(str(out))
        return Package(
            code=self._zips[out], handler=handler, runtime=RUNTIME, layers=self.layers.for_function(torch=torch)
        )


def stage_image(out: Path) -> None:
    """Copy the Dockerfile to the folder `out`, and write beside it the lists of packages that pip installs: the versions of
    requirements.txt, with hashes for those of the data plane.
    """
    shutil.copyfile(DOCKERFILE, out / "Dockerfile")
    dataplane = sorted(lock.add_hashes(pin_version(name.replace("_", "-"))) for name in user_code.DATAPLANE)
    (out / "dataplane.txt").write_text("\n".join(dataplane) + "\n", encoding="utf-8")
    (out / "torch.txt").write_text(pin_version("torch") + "\n", encoding="utf-8")

"""The two Lambda layers: `dataplane` on every function, `torch` only on steps that compute.

`make layer` builds them into `build/`. Synthesis works without them: it uses a placeholder, and a CloudFormation Rule refuses to deploy
it.
"""

from pathlib import Path

from aws_cdk import RemovalPolicy
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from cdk.names import resource_name
from cdk.unbuilt import PLACEHOLDER, refuse_deployment

RUNTIME = lambda_.Runtime.PYTHON_3_13
ARCHITECTURE = lambda_.Architecture.ARM_64


class Layers(Construct):
    """The two Lambda layers of an experiment's functions, made of `folder`/layer-dataplane.zip and `folder`/layer-torch.zip; if a zip is
    missing, a placeholder that cannot be deployed. It holds no layers if functions are container images.
    """

    def __init__(self, scope: Construct, id: str, *, packaging: str, folder: Path) -> None:
        """Build both layers if `packaging` is "layer"; otherwise none."""
        super().__init__(scope, id)
        self._folder = folder
        self._versions: list[lambda_.ILayerVersion] = []
        if packaging == "layer":
            dataplane = self._layer("dataplane", "redis, hiredis, pika, safetensors, annotated-types")
            self._versions = [dataplane, self._layer("torch", "PyTorch for ARM, pruned")]

    def for_function(self, *, torch: bool) -> list[lambda_.ILayerVersion]:
        """Return the layers that a function uses: both, the data plane's first, if it needs `torch`, else the data plane's alone. Empty if
        functions are container images. The list must not be changed: other functions get the same one.
        """
        return self._versions if torch else self._versions[:1]

    def _layer(self, name: str, description: str) -> lambda_.LayerVersion:
        """Build the layer `name` from its zip, or from a placeholder that CloudFormation refuses to deploy. `name`: short name;
        `description`: text that AWS shows for the layer.
        """
        built = self._folder / f"layer-{name}.zip"
        if not built.exists():
            refuse_deployment(self, f"{name.capitalize()}Layer", what=f"The {name} layer", target="layer")
        return lambda_.LayerVersion(
            self,
            name.capitalize(),
            layer_version_name=resource_name(self, f"layer-{name}"),
            description=description,
            code=lambda_.Code.from_asset(str((built if built.exists() else PLACEHOLDER).resolve())),
            compatible_architectures=[ARCHITECTURE],
            compatible_runtimes=[RUNTIME],
            removal_policy=RemovalPolicy.DESTROY,
        )

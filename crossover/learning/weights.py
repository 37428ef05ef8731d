"""Weights in files that a model begins from, and adapters on frozen layers."""

import hashlib
import importlib.util
import inspect
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from crossover import runtime, user_code
from crossover.errors import ConfigError, Corrupt, Missing, Refused, Unavailable
from crossover.experiment import Adapters, Training, Weights
from crossover.learning import batches
from crossover.learning.samples import PADDING
from crossover.stores import connecting
from crossover.stores.protocols import Traffic

# --- weights ----------------------------------------------------------------------------------------------------------

FIELD = "training.weights"
_S3 = "s3://"
_SHOWN = 5  # names in a message
_HALF = (torch.float16, torch.bfloat16)
Base = dict[str, Tensor]


def load_base_once(weights: Weights, fetch: Callable[[], bytes]) -> None:
    """Load the base weights (those that training starts from) into this process, once per file. `fetch`: returns the safetensors file's
    bytes. Raises Corrupt if their SHA-256 is not `weights.sha256`. An error of `fetch` passes through, and the next call tries again.
    """
    held = runtime.get_or_make("bases", dict[str | None, Base])
    with runtime.get_or_make("bases are read", runtime.lock):  # by one thread; the others find it
        if weights.sha256 in held:
            return
        body = fetch()
        if (found := hashlib.sha256(body).hexdigest()) != weights.sha256:
            raise Corrupt(f"{FIELD}: the staged file's SHA-256 is {found}; {weights.sha256} is expected")
        held[weights.sha256] = batches.decode_tensors(body)[0]


def map_file(weights: Weights) -> mmap.mmap:
    """Return the weights' file, memory-mapped (copy-on-write). It is searched on S3, in an installed package, or in the experiment's and
    the current folder. It stays open while something refers to it, unless the caller closes it. Raises ConfigError if it is missing or
    empty.
    """
    with _open_file(str(weights.file)) as file:
        if not os.fstat(file.fileno()).st_size:
            raise ConfigError(f"{FIELD}.file: {weights.file} is empty; a safetensors file is expected")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def get_file_size(weights: Weights) -> int:
    """Return the size of the weights' file in bytes; 0 if no file is set. A file on S3 is downloaded for that. Raises ConfigError if the
    file cannot be found or read, or is empty.
    """
    if weights.file is None:
        return 0
    with map_file(weights) as body:
        return len(body)


def load_base(training: Training, module: nn.Module) -> None:
    """Replace those of the module's tensors that the file of `training.weights` has, which must be set. Parameters keep the file's memory
    and precision, except that vectors in half precision become float32, as torch's norm layers need; buffers are copies. Trained
    parameters that the file lacks stay as they are.

    Raises ConfigError if names, shapes or the run's precision do not fit, if the file lacks a frozen parameter, or if it cannot be used
    (see `_get_base`). Nothing is replaced then.
    """
    weights = training.weights
    base = _get_base(weights)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    places: dict[str, Tensor] = {**dict(module.named_buffers(remove_duplicate=False)), **parameters}
    if strange := [name for name in base if name not in places]:
        raise ConfigError(
            f"{FIELD}: the model has no place for {_join_names(strange)} of {weights.file}; it has {_join_names(places)}"
        )
    for name, value in base.items():
        place = places[name]
        if place.shape != value.shape or place.is_floating_point() != value.is_floating_point():
            raise ConfigError(
                f"{FIELD}: {name} is {tuple(value.shape)} {value.dtype} in {weights.file}, {tuple(place.shape)} {place.dtype} in the model"
            )
    given = {id(places[name]) for name in base}  # a parameter that is used twice may have either name
    if bare := [name for name, each in parameters.items() if not each.requires_grad and id(each) not in given]:
        raise ConfigError(
            f"{FIELD}: {weights.file} lacks {_join_names(bare)}, which would stay as drawn at random: neither it nor training has them; "
            "expected a base with them, or training.trainable to name them"
        )
    halves = [name for name, value in base.items() if value.dtype in _HALF]
    if halves and training.precision == "fp32":
        raise ConfigError(
            f"training.precision: fp32 cannot compute with {_join_names(halves)} of {weights.file}, in half precision; expected bf16, "
            "or a base in float32"
        )
    for name, value in base.items():
        if value.dtype in _HALF and value.ndim < 2:
            value = value.float()
        value = value.to(places[name].device)  # the same memory where that is the processor's
        places[name].data = value if name in parameters else value.clone()


def _get_base(weights: Weights) -> Base:
    """Return the tensors of the weights' file, by name; read and check the file if this process has not done so. The mapping is shared by
    all callers and must not be changed. Raises ConfigError if the file is missing, has another SHA-256 than `weights.sha256`, is no whole
    safetensors file, or holds NaN or infinity.
    """
    held = runtime.get_or_make("bases", dict[str | None, Base])
    if weights.sha256 not in held:
        held[weights.sha256] = _read(weights)
    return held[weights.sha256]


def _read(weights: Weights) -> Base:
    """Read the weights' file on this machine, check SHA-256 and content, and return its tensors by name, views of the mapped file. Raises
    ConfigError if the file is missing, has another SHA-256, is no whole safetensors file, or holds NaN or infinity.
    """
    body = map_file(weights)
    if (found := hashlib.sha256(body).hexdigest()) != weights.sha256:
        raise ConfigError(f"{FIELD}.sha256: {weights.sha256 or 'is missing'}; that of {weights.file} is {found}")
    try:
        base = batches.decode_tensors(body)[0]
    except Corrupt as error:
        raise ConfigError(f"{FIELD}.file: {weights.file} is no whole safetensors file: {error}") from error
    for name, value in base.items():
        if value.is_floating_point() and not all(
            bool(part.isfinite().all()) for part in torch.split(value.reshape(-1), 2**20)
        ):
            raise ConfigError(f"{FIELD}.file: {name} of {weights.file} holds NaN or infinity; expected finite numbers")
    return base


def _open_file(file: str) -> IO[bytes]:
    """Return the weights' file, opened for reading in binary. A file on S3 is downloaded once per process, and the returned file shares its
    position with others of the same name: map it instead of reading. Raises ConfigError if there is no such file or it cannot be read from
    S3.
    """
    if not file.startswith(_S3):
        return _find_path(file).open("rb")
    held = runtime.get_or_make("bases of S3", dict[str, int])
    if file not in held:
        held[file] = _download(file)
    return open(held[file], "rb", closefd=False)


def _download(file: str) -> int:
    """Download an object of S3 into an unnamed temporary file and return the file descriptor, which stays open until the process
    ends. `file`: s3://bucket/key. Raises ConfigError if that names no object or cannot be read.
    """
    bucket, _, key = file.removeprefix(_S3).partition("/")
    if not (bucket and key):
        raise ConfigError(f"{FIELD}.file: {file} names no object; expected {_S3}bucket/key")
    try:
        data = connecting.open_object_store(f"{_S3}{bucket}", Traffic()).get(key)
    except (Missing, Refused, Unavailable) as error:
        raise ConfigError(
            f"{FIELD}.file: {file} cannot be read: {error or 'there is no such object'}; expected an object that the AWS credentials of "
            "this machine may get"
        ) from error
    with tempfile.TemporaryFile() as body:
        body.write(data)
        body.flush()
        return os.dup(body.fileno())


def _find_path(file: str) -> Path:
    """Return the path of a weights' file: `package:path` in an installed package, or a path in the experiment's or the current
    folder. Raises ConfigError if there is no such file.
    """
    package, colon, inside = file.partition(":")
    if colon:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        folders = [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
        file, where = inside, f"the package {package}"
    else:
        folders, where = list(user_code.list_folders()), "the experiment's folder and the current one"
    for folder in folders:
        if (path := folder / file).is_file():
            return path
    raise ConfigError(
        f"{FIELD}.file: there is no {file} in {where}; expected a safetensors file there, {_S3}bucket/key, or "
        "package:path/in/it of an installed package"
    )


def _join_names(names: Mapping[str, object] | list[str]) -> str:
    """Return the first five names as text, and how many more there are; "nothing" if there are none."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(list(names)[:_SHOWN]) or 'nothing'}{more}"


# --- adapters ---------------------------------------------------------------------------------------------------------
# Which parameters of a module are trained: adapters beside its Linear layers, those that the YAML names, or what the factory left.
#
# Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv 2106.09685, 2021): W x becomes W x + (alpha / rank) B A x, A
# (rank, in) drawn as a Linear layer's weights are, B (out, rank) zeros. Names are peft's: `<layer>.lora_A.weight`,
# `<layer>.lora_B.weight`.

_SHOWN_TARGETS = 20  # names in a message
DOWN, UP = "lora_A", "lora_B"


def prepare_module(training: Training, module: nn.Module) -> None:
    """Prepare the module for fine-tuning, in place: freeze all parameters but those in `training.trainable`, load the base weights,
    and add adapters with weights from torch's random generator.

    If `forward` requires an argument `mask`, it gets one. If neither adapters nor `training.trainable` are set, nothing is frozen.
    Raises ConfigError if a pattern matches nothing, a rank exceeds a layer's width, or the base weights do not fit.
    """
    asked = inspect.signature(module.forward).parameters.get("mask")
    if asked is not None and asked.default is asked.empty:
        module.register_forward_pre_hook(_add_mask)
    wanted, named = training.adapters, training.trainable
    if wanted.targets or named is not None:
        parameters = dict(module.named_parameters(remove_duplicate=False))
        learnt = match_names(named or (), parameters, field="training.trainable", of="parameters")
        kept = {id(parameters[name]) for name in learnt}  # one that is used twice has two names
        for each in parameters.values():
            each.requires_grad_(id(each) in kept)
    if training.weights.file:
        load_base(training, module)
    linear = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    targets = match_names(wanted.targets, linear, field="training.adapters.targets", of="Linear layers")
    for name in targets:
        _add_adapter(name, linear[name], wanted)


def match_names(patterns: Iterable[str], names: Iterable[str], *, field: str, of: str) -> list[str]:
    """Return those of `names` that match at least one of the glob patterns (case matters), in the order of `names`; [] if there are no
    patterns. `patterns`: iterated several times, so no iterator; `of`: word for the named things, such as "parameters". Raises ConfigError,
    naming `field`, if a pattern matches nothing.
    """
    names = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            more = f" and {len(names) - _SHOWN_TARGETS} more" if len(names) > _SHOWN_TARGETS else ""
            shown = f"{', '.join(names[:_SHOWN_TARGETS]) or 'none'}{more}"
            raise ConfigError(f"{field}: {pattern!r} matches none of the model's {of}, which are {shown}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def list_adapted_layers(module: nn.Module) -> dict[str, nn.Linear]:
    """Return the Linear layers that have an adapter, by name."""
    return {name: each for name, each in module.named_modules() if isinstance(each, nn.Linear) and hasattr(each, DOWN)}


def merge_adapters(module: nn.Module, wanted: Adapters) -> dict[str, Tensor]:
    """Return the module's state_dict without adapters, but with their products added to the weights of their layers. `wanted`: adapter
    settings (rank and alpha). The merged weights are new tensors, all others the module's own.
    """
    state: Mapping[str, Tensor] = module.state_dict()
    layers = list_adapted_layers(module)
    parts = {f"{name}.{part}.weight".lstrip(".") for name in layers for part in (DOWN, UP)}
    found = {name: value for name, value in state.items() if name not in parts}
    for name, layer in layers.items():
        up, down = (getattr(layer, part).weight.detach() for part in (UP, DOWN))
        more = up @ down * (wanted.alpha / wanted.rank)
        found[f"{name}.weight".lstrip(".")] = (layer.weight.detach() + more).to(layer.weight.dtype)
    return found


def _add_adapter(name: str, layer: nn.Linear, wanted: Adapters) -> None:
    """Add a low-rank adapter to `layer`, in place. `name`: the layer's name, for errors. Raises ConfigError if its rank exceeds the
    layer's width, or if the layer has parts of an adapter's name already.
    """
    width = min(layer.in_features, layer.out_features)
    if wanted.rank > width:
        raise ConfigError(
            f"training.adapters.rank: {wanted.rank} is above the width of {name}, which has {layer.in_features} inputs and "
            f"{layer.out_features} outputs; at most {width} is expected, or targets without it"
        )
    if hasattr(layer, DOWN) or hasattr(layer, UP):
        raise ConfigError(f"training.adapters.targets: {name} has a {DOWN} or {UP} of its own; leave it out")
    down, up = (
        nn.Linear(layer.in_features, wanted.rank, bias=False),
        nn.Linear(wanted.rank, layer.out_features, bias=False),
    )
    nn.init.zeros_(up.weight)
    layer.add_module(DOWN, down)
    layer.add_module(UP, up)
    # A hook leaves the layer what it is, by its own names; torch's fused transformer, which would pass the adapter by, steps aside for one.
    layer.register_forward_hook(partial(_add_adapter_output, wanted.alpha / wanted.rank), with_kwargs=True)


def _add_mask(module: Any, given: tuple[Any, ...]) -> Any:
    """Return (token tensor with padding replaced by 0, mask that is True for tokens): a forward pre-hook for modules whose
    `forward` takes `mask`. `given`: the positional arguments, tokens first.
    """
    mask = given[0] != PADDING
    return given[0].masked_fill(~mask, 0), mask


def _add_adapter_output(
    scale: float, layer: Any, given: tuple[Tensor, ...], named: Mapping[str, Tensor], output: Tensor
) -> Tensor:
    """Return `output` plus `scale` times the output of the layer's adapter: a forward hook. `given`, `named`: the layer's
    positional and keyword arguments.
    """
    inputs = given[0] if given else named["input"]
    more: Tensor = layer.lora_B(layer.lora_A(inputs.to(torch.float32))) * scale
    return output + more.to(output.dtype)

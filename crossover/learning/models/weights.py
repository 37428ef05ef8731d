"""The base that a model of the user's own begins from: one safetensors file, named in the YAML with its SHA-256, read once in a process.

Where a run is started, the file is mapped into memory and looked at whole; functions and programs take it from the object store, by its
digest. What is frozen has its bits where they were read, in the file's own precision, for all learners of the process.
"""

import hashlib
import importlib.util
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import torch
from torch import Tensor, nn

from crossover import own_code, runtime
from crossover.dataplane import connecting
from crossover.dataplane.traffic import Traffic
from crossover.errors import ConfigError, Corrupt, Missing, Refused, Unavailable
from crossover.experiment import Training, Weights
from crossover.learning import tensor_file

FIELD = "training.weights"
_S3 = "s3://"
_SHOWN = 5  # names in a message
_HALF = (torch.float16, torch.bfloat16)
Base = dict[str, Tensor]


def hold(weights: Weights, fetch: Callable[[], bytes]) -> None:
    """Have the process know the base, which `fetch` gives where it does not yet. Raises Corrupt where that is another one."""
    held = runtime.kept("bases", dict[str | None, Base])
    with runtime.kept("bases are read", runtime.lock):  # by one thread; the others find it
        if weights.sha256 in held:
            return
        body = fetch()
        if (found := hashlib.sha256(body).hexdigest()) != weights.sha256:
            raise Corrupt(f"{FIELD}: the staged file's SHA-256 is {found}; {weights.sha256} is expected")
        held[weights.sha256] = tensor_file.decode(body)[0]


def mapped(weights: Weights) -> mmap.mmap:
    """The file, where S3, the YAML's folder, the current one or an installed package has it. Raises ConfigError."""
    with _opened(str(weights.file)) as file:
        if not os.fstat(file.fileno()).st_size:
            raise ConfigError(f"{FIELD}.file: {weights.file} is empty; a safetensors file is expected")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def size(weights: Weights) -> int:
    """Bytes of the file; 0 without one. Raises ConfigError where it is not here."""
    if weights.file is None:
        return 0
    with mapped(weights) as body:
        return len(body)


def load(training: Training, module: nn.Module) -> None:
    """The base's tensors become the module's: matrices in the base's own memory and precision, vectors, which torch's norms want so, in
    float32 at least. Raises ConfigError where they do not fit, or leave out a parameter that is frozen.
    """
    weights = training.weights
    base = _held(weights)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    places: dict[str, Tensor] = {**dict(module.named_buffers(remove_duplicate=False)), **parameters}
    if strange := [name for name in base if name not in places]:
        raise ConfigError(
            f"{FIELD}: the model has no place for {_names(strange)} of {weights.file}; it has {_names(places)}"
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
            f"{FIELD}: {weights.file} lacks {_names(bare)}, which would stay as drawn at random: neither it nor training has them; "
            "expected a base with them, or training.trainable to name them"
        )
    halves = [name for name, value in base.items() if value.dtype in _HALF]
    if halves and training.precision == "fp32":
        raise ConfigError(
            f"training.precision: fp32 cannot compute with {_names(halves)} of {weights.file}, in half precision; expected bf16, or a base "
            "in float32"
        )
    for name, value in base.items():
        if value.dtype in _HALF and value.ndim < 2:
            value = value.float()
        value = value.to(places[name].device)  # the same memory where that is the processor's
        places[name].data = value if name in parameters else value.clone()


def _held(weights: Weights) -> Base:
    held = runtime.kept("bases", dict[str | None, Base])
    if weights.sha256 not in held:
        held[weights.sha256] = _read(weights)
    return held[weights.sha256]


def _read(weights: Weights) -> Base:
    """Of the file here, looked at whole. Raises ConfigError."""
    body = mapped(weights)
    if (found := hashlib.sha256(body).hexdigest()) != weights.sha256:
        raise ConfigError(f"{FIELD}.sha256: {weights.sha256 or 'is missing'}; that of {weights.file} is {found}")
    try:
        base = tensor_file.decode(body)[0]
    except Corrupt as error:
        raise ConfigError(f"{FIELD}.file: {weights.file} is no whole safetensors file: {error}") from error
    for name, value in base.items():
        if value.is_floating_point() and not all(
            bool(part.isfinite().all()) for part in torch.split(value.reshape(-1), 2**20)
        ):
            raise ConfigError(f"{FIELD}.file: {name} of {weights.file} holds NaN or infinity; expected finite numbers")
    return base


def _opened(file: str) -> IO[bytes]:
    if not file.startswith(_S3):
        return _path(file).open("rb")
    held = runtime.kept("bases of S3", dict[str, int])
    if file not in held:
        held[file] = _downloaded(file)
    return open(held[file], "rb", closefd=False)


def _downloaded(file: str) -> int:
    """The descriptor of a file with the object, which ends with the process. Raises ConfigError."""
    bucket, _, key = file.removeprefix(_S3).partition("/")
    if not (bucket and key):
        raise ConfigError(f"{FIELD}.file: {file} names no object; expected {_S3}bucket/key")
    try:
        data = connecting.object_store(f"{_S3}{bucket}", Traffic()).get(key)
    except (Missing, Refused, Unavailable) as error:
        raise ConfigError(
            f"{FIELD}.file: {file} cannot be read: {error or 'there is no such object'}; expected an object that the AWS credentials of "
            "this machine may get"
        ) from error
    with tempfile.TemporaryFile() as body:
        body.write(data)
        body.flush()
        return os.dup(body.fileno())


def _path(file: str) -> Path:
    package, colon, inside = file.partition(":")
    if colon:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        folders = [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
        file, where = inside, f"the package {package}"
    else:
        folders, where = list(own_code.folders()), "the experiment's folder and the current one"
    for folder in folders:
        if (path := folder / file).is_file():
            return path
    raise ConfigError(
        f"{FIELD}.file: there is no {file} in {where}; expected a safetensors file there, {_S3}bucket/key, or "
        "package:path/in/it of an installed package"
    )


def _names(names: Mapping[str, object] | list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(list(names)[:_SHOWN]) or 'nothing'}{more}"

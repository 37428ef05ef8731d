"""The speed of a user's model: as it was measured on this machine, and as a file beside the model keeps it, so that every command projects
the model's runs alike.
"""

import json
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

from crossover import user_code
from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.learning.sizes import digest_of_model
from crossover.reports import display
from crossover.reports.folder import write_atomically
from crossover.simulation.calibration import Calibration
from crossover.simulation.workload import Workload

KNOWN = "mobilenet"  # with which a model's speed is compared
MOST_SHARED = 0.99
FORMAT = 1
SUFFIX = ".speed.json"


@dataclass(frozen=True)
class Probe:
    """The result of measuring the user's model on this machine. `ratio`: time of one sample's gradient divided by MobileNet's on a CIFAR-10
    image, measured in turns; `spread`: standard deviation over the turns, as a share of the ratio; `pairs`: number of turns; `batch_size`,
    `seconds`, `peak_mb`: size of the measured minibatch, its processor seconds with one thread, and the process's peak memory;
    `batch_ratio`: time of a minibatch that does not depend on its size, in samples of MobileNet; `two_threads`: factor by which two threads
    are faster, None if the machine was too busy to tell; `sample_bytes`: memory for each further sample; `largest`: share of a gradient's
    squared norm in the largest hundredth of its elements; `of_samples`: size of the experiment's minibatch if fewer samples were measured,
    else 0; `start_s`: processor seconds of this command from its start until the data was read.
    """

    ratio: float
    spread: float
    pairs: int
    batch_size: int
    seconds: float  # of one of the user's own minibatches, here, one thread
    peak_mb: float
    batch_ratio: float = 0.0  # of what a minibatch takes whatever its size to a sample of MobileNet's
    two_threads: float | None = (
        None  # how many times as quick a minibatch is with two; None where others had this machine's cores
    )
    sample_bytes: float = 0.0  # by which the peak grows with each sample of a minibatch
    largest: float = 0.0  # share of a gradient's squared norm in the largest hundredth of its elements
    of_samples: int = 0  # samples of the experiment's minibatch, if fewer were measured; else 0
    start_s: float = 0.0  # of Python, its imports and reading the data
    kept: str = ""  # the file that keeps an earlier measurement, and its date

    @property
    def words(self) -> str:
        """Sentence with the measured figures, which says that only ratios are used for AWS."""
        told = f", with two threads {self.two_threads:.3g} times as fast" if self.two_threads else None
        threads = (
            told
            or " (with two threads: not measured, as other programs used the machine; MobileNet's speed-up is assumed)"
        )
        fewer = f"; minibatches of {self.of_samples} are extrapolated from a batch of {self.batch_size}"
        earlier = f" ({self.kept})" if self.kept else ""
        return (
            f"[measured-local] the gradient of a minibatch of {self.batch_size} takes {display.seconds(self.seconds)} in one thread "
            f"here{threads}{earlier}; peak memory {self.peak_mb:,.0f} MB, {self.sample_bytes / 1e6:.3g} MB per sample. Compared with "
            f"MobileNet, which is measured alternately, a sample takes {self.ratio:.2g} times as long (median of {self.pairs} "
            f"measurements, standard deviation {self.spread:.0%}), and a minibatch in addition as long as {self.batch_ratio:.2g} of "
            f"MobileNet's samples; only these ratios are used for AWS. The largest 1 % of a gradient's elements hold {self.largest:.0%} of "
            "its squared "
            f"norm{fewer if self.of_samples else ''}"
        )

    def apply(self, calibration: Calibration, model: str) -> Calibration:
        """Return `calibration`, speeds of AWS, with the speed of the user's model named `model` as it was measured."""
        sample_s, batch_s = (each * calibration.sample_s[KNOWN] for each in (self.ratio, self.batch_ratio))
        return calibration.with_facts(
            self.words,
            sample_s={**calibration.sample_s, model: sample_s},
            function_batch_s=batch_s,
            instance_batch_s=batch_s,
            compared=model,
            **self._parallel_shares(calibration),
            name=f"{calibration.name}, probed" + (f" ({self.kept})" if self.kept else ""),
        )

    def _parallel_shares(self, calibration: Calibration) -> dict[str, float]:
        """Return the calibration's fields `parallel_share`, `parallel_least` and `parallel_most`: the share of a training step that further
        threads speed up, with its lower and upper limit, from the measurement with two threads. {} if that was not possible.
        """
        if self.two_threads is None:
            return {}
        share = min(MOST_SHARED, max(0.0, 2 * (1 - 1 / max(1.0, self.two_threads))))
        usual = calibration.parallel_share
        least, most = share + calibration.parallel_least - usual, share + calibration.parallel_most - usual
        return {
            "parallel_share": share,
            "parallel_least": max(0.0, least),
            "parallel_most": min(MOST_SHARED, most),
        }


# --- beside the model -------------------------------------------------------------------------------------------------


def keep_speed(measured: Probe, experiment: Experiment, workload: Workload) -> Path:
    """Write the measured speed of the user's model to a file beside the model's, and return its path. An earlier file is replaced.
    `workload`: sizes of the model, by which it is known again. Raises OSError if the file cannot be written.
    """
    path = locate_file(experiment)
    row = {
        "format": FORMAT,
        "model": experiment.training.model,
        "digest": _digest(workload),
        "precision": experiment.training.precision,
        "memory_format": experiment.training.memory_format,
        "measured_on": f"{datetime.now(UTC):%Y-%m-%d}",
        **{name: value for name, value in asdict(measured).items() if name != "kept"},
    }
    write_atomically(path, (json.dumps(row, indent=1) + "\n").encode())
    return path


def find_speed(experiment: Experiment, workload: Workload) -> Probe | None:
    """Return the speed of the experiment's model that an earlier command measured and kept beside the model's file. None for a model that
    comes with the project, if there is no such file, or if it is of another model, by the sizes in `workload`, or of another precision or
    memory format. Raises ConfigError if the file is damaged.
    """
    if ":" not in experiment.training.model or not (path := locate_file(experiment)).is_file():
        return None
    try:
        row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if row.pop("format") != FORMAT:
            raise ValueError("its format is unknown")
        day = row.pop("measured_on")
        measured_as = tuple(row.pop(name) for name in ("model", "digest", "precision", "memory_format"))
        numbers = {each.name: row[each.name] for each in fields(Probe) if each.name != "kept"}
        for name, value in numbers.items():
            if value is None and name == "two_threads":
                continue
            least = 1e-12 if name in ("ratio", "batch_size", "seconds") else 0.0
            if type(value) not in (int, float) or not least <= value < inf:
                raise ValueError(f"{name}: {value!r}")
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as problem:
        raise ConfigError(
            f"{path}: is no measured speed of a model ({problem}); expected the file as `crossover advise` wrote it; delete it to measure "
            "again"
        ) from problem
    training = experiment.training
    if measured_as != (training.model, _digest(workload), training.precision, training.memory_format):
        return None
    return Probe(**numbers, kept=f"{path.name}, {day}")


def adopt_kept_speed(calibration: Calibration, experiment: Experiment, workload: Workload) -> Calibration:
    """Return `calibration` with the speed of the user's model that was kept beside its file; unchanged if there is none, or if the
    calibration has measured seconds of the model. `workload`: sizes of the experiment's model. Raises ConfigError as `find_speed` does.
    """
    if workload.model in calibration.sample_s or (kept := find_speed(experiment, workload)) is None:
        return calibration
    return kept.apply(calibration, workload.model)


def locate_file(experiment: Experiment) -> Path:
    """Return the path of the file that keeps the speed of the experiment's own model, beside the model's file. The model is loaded if it
    has not been, with the errors of `user_code.load`.
    """
    name = experiment.training.model
    user_code.load(name, field="training.model")
    module, _, factory = name.partition(":")
    return user_code.find_file(name).with_name(f"{module.rpartition('.')[2]}-{factory}{SUFFIX}")


def _digest(workload: Workload) -> str:
    """Return the digest of the model's counts, by which its kept speed is known again."""
    return digest_of_model(workload.parameters, workload.buffers, workload.macs)

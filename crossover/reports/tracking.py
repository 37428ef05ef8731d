"""Export of a run's curves to TensorBoard or MLflow, written by their own libraries, which are optional: pip install
'crossover[tensorboard]' or 'crossover[mlflow]'. Both get every epoch's losses, metric (`val_accuracy`, or by its own name),
learning rate and dollars at its time, and the run's description; both say which figures are projected.
"""

import importlib.util
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Literal

from crossover.errors import MissingTool
from crossover.experiment import flatten_fields
from crossover.reports.display import metric_of
from crossover.reports.folder import RunFolder

Logger = Literal["tensorboard", "mlflow"]
FIGURES = (
    "train_loss",
    "val_loss",
    "val_metric",
    "learning_rate",
    "wall_s",
    "elapsed_s",
    "paper_method_usd",
    "full_usd",
)
MLFLOW_NAME = 250  # characters that MLflow takes for a parameter's value and more
PROJECTED = ("paper_method_usd", "full_usd")


def check_installed(to: Logger) -> None:
    """Raise MissingTool if the Python library of the tracking tool `to` is not installed."""
    if importlib.util.find_spec(to) is None:
        raise MissingTool(
            f"--log {to}: its library is not installed; pip install 'crossover[{to}]', or in a checkout "
            f"{os.path.join('.venv', 'bin', 'pip')} install {to}"
        )


def write_curves(run: RunFolder, to: Logger, *, where: str) -> str:
    """Write the curves of a run for the tracking tool `to`, and return the command line that shows them. `where`: a folder (TensorBoard),
    or a tracking URI or folder (MLflow). Raises MissingTool if the tool's library is not installed. A second call adds the curves again: a
    new run in MLflow, another event file in the same folder for TensorBoard.
    """
    return _tensorboard(run, Path(where)) if to == "tensorboard" else _mlflow(run, where)


def iter_points(run: RunFolder) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Yield (epoch, unix seconds of its end, {name: value}) for every epoch of a run. Names are those of FIGURES; `val_metric` becomes
    `val_` and the metric's name, and dollars that are projected get the ending `_projected`. Values that are missing, such as a loss that
    diverged, are left out.
    """
    began = datetime.fromisoformat(run.result["started_at"]).timestamp()
    projected = run.result["cost"]["label"] == "projected"
    metric = metric_of(run.result).words.replace(" ", "_")
    for epoch in run.result["epochs"]:
        known = {name: float(epoch[name]) for name in FIGURES if epoch.get(name) is not None}
        named = {f"{name}_projected" if projected and name in PROJECTED else name: v for name, v in known.items()}
        if "val_metric" in named:
            named[f"val_{metric}"] = named.pop("val_metric")
        yield int(epoch["epoch"]), began + float(epoch["elapsed_s"]), named


def _tensorboard(run: RunFolder, folder: Path) -> str:
    """Write the curves of a run as TensorBoard's event files into a subfolder of `folder` with the run's name, and return the command line
    that shows them.
    """
    check_installed("tensorboard")
    from tensorboard.summary import Writer

    target = folder / run.name
    writer = Writer(str(target))
    try:
        for epoch, at, figures in iter_points(run):
            for name, value in figures.items():
                writer.add_scalar(name, value, epoch, wall_time=at)
    finally:
        writer.close()
    return f"tensorboard --logdir {folder}"


def _mlflow(run: RunFolder, where: str) -> str:
    """Write the curves, settings and versions of a run to MLflow as a new run of the experiment that is called like the project, and return
    the command line that shows them. `where`: a tracking URI, or a folder, in which a database is created.
    """
    check_installed("mlflow")
    import mlflow

    uri = where
    if "://" not in where and where != "databricks":
        Path(where).mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{Path(where).resolve() / 'mlflow.db'}"
    client = mlflow.MlflowClient(tracking_uri=uri)
    facts = run.result["experiment"]
    experiment = client.get_experiment_by_name(facts["project"])
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(facts["project"])
    said = {name: run.result[name] for name in ("label", "outcome", "architecture")}
    versions = {f"version.{name}": str(version) for name, version in run.result["versions"].items()}
    tags = {**said, "cost": run.result["cost"]["label"], **versions}
    made = client.create_run(experiment_id, tags=tags, run_name=run.name)
    for name, value in flatten_fields(facts):
        client.log_param(made.info.run_id, name, str(value)[:MLFLOW_NAME])
    for epoch, at, figures in iter_points(run):
        for name, value in figures.items():
            client.log_metric(made.info.run_id, name, value, timestamp=int(1_000 * at), step=epoch)
    client.set_terminated(made.info.run_id, "FINISHED" if run.result["outcome"] == "finished" else "FAILED")
    return f"mlflow ui --backend-store-uri {uri}"

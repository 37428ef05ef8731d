"""Projection: a run's seconds, dollars and bytes before it is run, on AWS and at any scale, by discrete events.

    simulate(experiment, calibration=AWS, *, workload=None, keep_records=False) -> Simulated

`Simulated` has `label` ("projected", always), `seconds`, `usd`, `paper_method_usd`, `lines` (costs.billing.Line), `traffic` (as in
result.json), `steps` (by name: invocations, mean_s, stages), `epoch_s`, `epochs_end_s`, `invocations`, `transitions`, `problems` (why AWS
would not run it so), and, with keep_records, `records` as `metering.py` writes them: `reports.result.build(label="projected", ...)` takes
them.

`Calibration`: how fast everything is. `AWS` is measured by others, documented or assumed, as config/calibration/ says;
`measured.calibrated(folders)` takes computing and stragglers from runs' records; `papers_deployments.calibration(paper)` fits the papers'
deployments to their rows that config/held-out.yaml does not hold out. `Workload`: sizes; `Workload.of(experiment)`, `.sized(parameters)`,
`.uniform(minibatches=, batch_size=)`.
"""

from crossover.simulation.calibration import AWS, PURE_COMPUTE, Calibration
from crossover.simulation.services import Service
from crossover.simulation.simulate import Simulated, simulate
from crossover.simulation.workload import Workload

__all__ = ["AWS", "PURE_COMPUTE", "Calibration", "Service", "Simulated", "Workload", "simulate"]

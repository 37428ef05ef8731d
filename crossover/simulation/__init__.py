"""Projection of a run's seconds, dollars and bytes before it is run, on AWS and at any scale, by discrete events.

    simulate(experiment, calibration=AWS, *, workload=None, keep_records=False) -> Simulated

`Simulated` has `label` ("projected", always), `seconds`, `usd`, `paper_method_usd`, `lines` (reports.bill.Line), `traffic` (as in
result.json), `steps` (by name: invocations, mean_s, stages), `epoch_s`, `epochs_end_s`, `invocations`, `transitions`, `problems` (why AWS
would not run it), and, with keep_records, `records` as a step writes them: `reports.folder.build(label="projected", ...)` takes them.

`Calibration` holds how fast everything is. `AWS` is measured by others, documented or assumed, as config/calibration/ says;
`measured.calibrate_from_runs(folders)` takes computing from records; `papers.calibration_of(paper, architecture)` fits the papers'
deployments to the rows that config/held-out.yaml does not hold out. `Workload` holds sizes: `Workload.from_experiment(experiment)`,
`.with_parameters(parameters)`, `.with_equal_minibatches(minibatches=, batch_size=)`.
"""

from crossover.simulation.calibration import AWS, PURE_COMPUTE, Calibration, Service
from crossover.simulation.simulate import Simulated, simulate
from crossover.simulation.workload import Workload

__all__ = ["AWS", "PURE_COMPUTE", "Calibration", "Service", "Simulated", "Workload", "simulate"]

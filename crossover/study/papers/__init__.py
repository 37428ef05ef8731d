"""Every table and figure of the papers, with our figures beside the printed ones.

    measurement.py   what is run, at the published size or cut down by --scale, as a command that anybody can repeat
    figures.py       what a finished run says: seconds of a function, of a stage, dollars, bytes
    cells.py         one published figure with ours beside it, its ratio and its label
    runs_2025.py, runs_2023.py   which runs two papers' tables and figures want
    epochs_2025.py, convergence_2025.py, communication_2025.py   those of "Cost-Performance Analysis"
    stages_2023.py, gradients_2023.py   those of the peer-to-peer paper
    aggregation_2026.py   those of the paper on aggregation, which trains nothing
    parts.py         all tables and figures by name
    runner.py        runs what is missing, on the cloud on this machine, and keeps what is finished
    page.py          index.html, index.md, cells.csv

A figure is `measured-local` (seconds and bytes of this machine), `projected` (follows from measured ones by a formula that stands beside
it, or from the simulator), or "not run", with the reason and the command that runs it.
"""

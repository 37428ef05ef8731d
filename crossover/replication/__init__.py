"""Every table and figure of both papers, with our figures beside the printed ones.

    measurement.py   what is run, at the published size or cut down by --scale, as a command that anybody can repeat
    figures.py       what a finished run says: seconds of a function, of a stage, dollars, bytes
    cells.py         one published figure with ours beside it, its ratio and its label
    comparison_2025.py, peers_2023.py   the tables and figures of the two papers
    parts.py         all of them by name
    runner.py        runs what is missing, on the cloud on this machine, and keeps what is finished
    page.py          index.html, index.md, cells.csv

A figure is `measured-local` (seconds and bytes of this machine), `projected` (follows from measured ones by a formula
that stands beside it, or from the simulator), or "not run", with the reason and the command that runs it.
"""

"""Dollars: from a run's records, and from what stood around it, to the lines of a bill, by AWS's rules and by the papers' formulas.

Functions and programs judge a budget with it, the simulation prices what it projects, reports show it. It reads records and draws nothing.

    records          `invocations` says what one record means, `stopped` what it would say had the run been stopped earlier
    -> quantities    `cost.Quantities` of a record, added up by `cost.BilledRun`
    -> lines         `cost.bill` by `billing`, with `prices` and the `infrastructure` that the architecture's tree asks for
    -> Cost          `cost.BilledRun.until` a moment; beside the lines what the papers' formulas give (`paper_method`)
    -> pages         `reports.result` writes it down, `reports.page` and `reports.tables` lay it out
"""

"""Many experiments from one file, under one budget: run, kept, compared with intervals. `papers/` holds those that the papers ran."""

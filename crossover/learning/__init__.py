"""One model on one machine: data sets, staging, models, the learner, and the reference that distributed runs must equal.

torch lives here and in `algorithms/`. Nothing here knows of workers that talk to one another, of AWS or of steps.
"""

"""`crossover advise`: of all ways to train an experiment's model, which one, by when, for how much. Every figure is projected."""

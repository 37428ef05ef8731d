"""Search for `crossover advise`: which of all ways to train an experiment's model to choose, by deadline and budget. Every figure
is projected.
"""

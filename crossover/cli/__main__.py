"""`python -m crossover.cli`: the command where it is not installed."""

from crossover.cli.main import main

main()

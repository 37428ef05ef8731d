"""The command `crossover`: one module per group of sub-commands, from arguments to what the terminal shows.

Each imports what it needs when it is called, so that `crossover --help` waits for no torch. What a command does is elsewhere: runs in
`running/`, questions to AWS in `running/account.py`, pages in `reports/`. Nothing imports from here.
"""

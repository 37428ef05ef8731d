"""Programs for developers alone: they make tables and pictures of the documentation, and the files that a new PyTorch layer needs."""

import argparse


def refuse_arguments(description: str | None) -> None:
    """Print the help, with the `description` of the program, for `--help`, and exit with status 2 for any other argument of the command
    line. For a program that takes none.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()

"""Try on a real account what is unproven, without pytest around it: `python -m tests.aws`."""

import sys

from tests.aws.driver import main

if __name__ == "__main__":
    main(sys.argv[1:])

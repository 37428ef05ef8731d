"""What the command line asks AWS itself: is the account ready, what stands there, what does it cost, is anything left.

Nothing here trains or deploys: `cli/` asks, and `running/` runs. Whose a resource is, is judged in `account/ownership.py` alone.
"""

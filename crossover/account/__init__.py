"""What the command line asks AWS itself: is the account ready, what stands there, what does it cost, is anything left."""

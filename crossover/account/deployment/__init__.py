"""Around a deployment: is the account ready, are the names free, what would change, and why did it fail."""

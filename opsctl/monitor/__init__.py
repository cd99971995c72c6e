"""One pass over all trains: reconcile, run the watchdogs, report the status."""

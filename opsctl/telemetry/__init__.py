"""Read what a running train writes: logs, and the progress that logs show."""

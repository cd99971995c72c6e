"""Read growing logs: on disk (growing_file.py), over HTTP (remote_log.py), line by line (log_lines.py)."""

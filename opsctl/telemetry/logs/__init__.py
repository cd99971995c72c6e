"""The one reader of growing files: on disk (files.py), over HTTP (http.py), and what their lines say (lines.py)."""

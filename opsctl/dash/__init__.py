"""`opsctl dash`: the trains of a site on one web page, live or as static files."""

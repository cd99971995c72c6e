"""Actions on one train, which the commands and the Python API share. They return data and print nothing."""

"""A distributed test over nodes, and the search for the one that makes it fail."""

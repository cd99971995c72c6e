"""The state of a train and of a site on the shared file system."""

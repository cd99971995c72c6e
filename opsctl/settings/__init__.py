"""The tables of site.toml and TRAIN.toml: field types, loader, cross-field checks."""

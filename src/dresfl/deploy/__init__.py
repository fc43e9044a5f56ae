"""A coordinator's and a client's run over a network, from their own TOML files."""

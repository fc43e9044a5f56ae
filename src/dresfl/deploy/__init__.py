"""Real parties over a network: a coordinator's and a site's run from their own TOML files, and a trial of both."""

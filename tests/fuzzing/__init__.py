"""Every decoder against bytes that nobody would send. `make fuzz` searches, `make test` tries what was found."""

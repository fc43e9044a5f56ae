"""Every decoder against bytes that nobody would send: `make fuzz` searches, and what it found is tried in every test."""

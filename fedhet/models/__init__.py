"""Models: each is split into ``features`` (private) and a last layer ``head``."""

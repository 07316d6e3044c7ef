"""Checkpoints, resuming, time travel, and export of a run as a script."""

"""Errors, seeding, interrupts, memory, callbacks, and the history of a run with its log file."""

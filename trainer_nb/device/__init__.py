"""Devices and processes: collectives, sharding, model patches, and Accelerate."""

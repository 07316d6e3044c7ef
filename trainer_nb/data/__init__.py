"""From data sets to batches: collators, sampling, sources, streams, and the resumable loader."""

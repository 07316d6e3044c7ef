"""The learning-rate finder, the batch-size finder, and hyperparameter search."""

"""The verbs of the learner on several processes."""

"""The training loop: run state, snapshot, rollback, step, tasks, loop, settings, evaluation."""

"""Look inside a run: the debug step, layers, tensor statistics, and interpretation."""

from contextlib import contextmanager
class P:
    tick=None
    def __enter__(self): return self
    def __exit__(self,*e): pass
def make_progress(*a): return P()

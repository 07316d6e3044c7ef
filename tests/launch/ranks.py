"What tests of this folder share: printed_by_ranks, result_of_two_ranks."
import contextlib, io, json, runpy, sys

from conftest import ROOT
from trainer_nb.launch.worker_pool import WorkerPool


def printed_by_ranks(program, *arguments, n=2):
    "What rank 0 of a program of tests/programs prints, on n processes with the variables of a launcher; they are forks of this one."
    def run(worker):
        sys.argv = [program, *arguments]
        with contextlib.redirect_stdout(io.StringIO()) as said: runpy.run_path(str(ROOT/"tests"/"programs"/program), run_name="__main__")
        return said.getvalue()
    pool = WorkerPool(n, lambda worker: worker, start="fork", threads=1)
    try:
        call = pool.call(run)
        assert call.wait(180), call
    finally: pool.kill()
    for outcome in call.outcomes.values():
        if not hasattr(outcome, "result"): raise outcome.error
    return call.outcomes[0].result


def result_of_two_ranks(program):
    "What a program of tests/programs prints as RESULT, on two processes."
    return json.loads(next(line for line in printed_by_ranks(program).splitlines() if line.startswith("RESULT ")).removeprefix("RESULT "))

"""Calls in fresh processes that need not import torch again: each is a fork of one that has."""
import json, os, select, subprocess, sys

NOTEBOOK_IMPORTS = "import accelerate, numpy, torch; from execnb.shell import CaptureShell; from nbdev.test import nbdev_test; import ipykernel.kernelapp"
SERVER = """
import json, os, sys, traceback
exec(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    call, cwd, log = json.loads(line)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setsid()
            os.chdir(cwd)
            for fd, path, flags in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY | os.O_CREAT)): os.dup2(os.open(path, flags), fd)
            os.dup2(1, 2)
            exec(call, {"__name__": "__main__", "nbdev_test": globals().get("nbdev_test")})
            code = 0
        except SystemExit as end: code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException: traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Forks:
    "A process that is ready to be forked; used in a `with`."
    def __init__(self, imports=NOTEBOOK_IMPORTS, cwd=None): self.imports, self.cwd = imports, cwd   # what it has imported, in which folder
    def __enter__(self):
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSTARTUP", "IN_TEST")}
        self.server = subprocess.Popen([sys.executable, "-c", SERVER, self.imports], cwd=self.cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._answer(240) == "ready"
        return self

    def __exit__(self, *error):
        self.server.stdin.close()
        self.server.wait(60)

    def call(self, code, cwd, log, timeout):
        "Run code in a fork, in the folder `cwd`; raise with what it printed to the file `log` if it fails. `timeout` is in seconds."
        __tracebackhide__ = True
        self.server.stdin.write(json.dumps([code, str(cwd), str(log)]) + "\n")
        self.server.stdin.flush()
        answer = self._answer(timeout)
        if answer != "0": raise AssertionError(f"{code} ended with {answer}\n{log.read_text(encoding='utf-8')[-6000:]}")

    def _answer(self, timeout):
        "The next line, or why there is none; after a timeout nothing more can be asked."
        if select.select([self.server.stdout], [], [], timeout)[0]: return self.server.stdout.readline().strip() or "no answer: the process is gone"
        self.end_call()
        self.server.kill()
        return f"a timeout after {timeout} s"

    def end_call(self): subprocess.run(["pkill", "-KILL", "-P", str(self.server.pid)])

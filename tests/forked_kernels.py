"""Notebooks executed in a real kernel, as a reader executes them; the kernel is a fork of a process that has imported torch."""
from threading import Thread

from jupyter_client import AsyncKernelManager
from jupyter_client.connect import write_connection_file
from nbclient import NotebookClient

# JPY_PARENT_PID is how worker processes see that they belong to a notebook; jupyter_client sets it for its kernels.
KERNEL = """
import os
os.environ["JPY_PARENT_PID"] = str(os.getppid())
from ipykernel.kernelapp import IPKernelApp
app = IPKernelApp.instance()
app.initialize(["-f", {connection!r}, "--HistoryManager.enabled=False", "--IPKernelApp.log_level=40"])
app.start()
"""


class ForkedKernel(AsyncKernelManager):
    "What nbclient asks a kernel's manager for; `process` is the thread that waits for the fork."
    def __init__(self, process, **kwargs):
        super().__init__(**kwargs)
        self.process = process

    @property
    def has_kernel(self): return True

    async def is_alive(self): return self.process.is_alive()


def leave_out(notebook, flags=("slow", "gpu")):
    "Mark the cells that nbdev leaves out, so that nbclient does too; return the ids of the others."
    run = []
    for cell in notebook.cells:
        if cell.cell_type != "code": continue
        directives = [o.lstrip("# ").removeprefix("|").strip() for o in cell.source.splitlines() if o.replace(" ", "").startswith("#|")]
        if "eval: false" in directives or any(o.split()[0] in flags for o in directives if o): cell.metadata["tags"] = ["skip-execution"]
        else: run.append(cell.id)
    return run


def execute(notebook, forks, cwd, folder, timeout):
    """Execute a notebook in a fork, in the folder `cwd`, without its slow cells; return the outputs by the id of the cell.

    Raises nbclient's error for the first cell that fails. `folder` gets the kernel's log and its connection file."""
    connection, printed = folder/"kernel.json", folder/"kernel.txt"
    # sockets in the folder: another process may take a port before the kernel does
    write_connection_file(str(connection), ip=str(folder/"ipc"), transport="ipc")
    process = Thread(target=forks.call, args=(KERNEL.format(connection=str(connection)), cwd, printed, timeout), daemon=True)
    manager = ForkedKernel(process)
    manager.load_connection_file(str(connection))
    executed = leave_out(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code": cell.outputs = []
    client = NotebookClient(notebook, km=manager, timeout=timeout, store_widget_state=False)
    process.start()
    try: client.execute()
    finally:
        if client.kc is not None:
            client.kc.shutdown()
            process.join(30)
            # or the next one would wait for it
            if process.is_alive(): forks.end_call()
            client.kc.stop_channels()
    return {cell.id: cell.outputs for cell in notebook.cells if cell.id in executed}

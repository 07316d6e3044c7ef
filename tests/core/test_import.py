"Importing the package leaves the garbage collector as it was."
import subprocess
import sys

import pytest


@pytest.mark.parametrize("before", ["enable", "disable"])
def test_the_collector_after_the_import(before):
    code = f"import gc; gc.{before}(); import trainer_nb; print(gc.isenabled())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == str(before == "enable")

def test_the_collector_after_an_import_that_fails():
    code = ("import gc, sys; sys.modules['torch'] = None\n"
            "try: import trainer_nb\n"
            "except ImportError: print(gc.isenabled())")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "True"

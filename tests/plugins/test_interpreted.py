"""The kernels' arithmetic, where there is no GPU: Triton's interpreter.

It takes the place of the compiler for a whole process, by a variable that is read when Triton is imported. So the
tests of `interpreted.py` run in a process of their own, and this one keeps its compiler.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_kernels_in_the_interpreter():
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/plugins/interpreted.py"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout

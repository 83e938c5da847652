"""A sample of faults/driver.py: a fault in a file call loses no complete checkpoint, and each protection is needed."""

import json
import os
import shutil
import subprocess
import sys

import pytest

DRIVER = os.path.join(os.path.dirname(__file__), "faults", "driver.py")

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not shutil.which(os.environ.get("CC", "cc")), reason="needs a C compiler"
)


def drive(*arguments):
    env = {k: v for k, v in os.environ.items() if not k.startswith("PITCREW_")}
    return subprocess.run([sys.executable, DRIVER, *map(str, arguments)], env=env, capture_output=True, text=True)


def test_no_fault_in_a_file_call_loses_a_complete_checkpoint():
    out = drive("--cases", 150, "--seed", 7)
    assert out.returncode == 0, out.stdout + out.stderr
    told = json.loads(out.stdout.splitlines()[-1])
    assert told["failed"] == 0 and told["cases"] >= 140 and told["hit"] > 120


@pytest.mark.parametrize(
    ("protection", "said"),
    [
        ("retry", "one error that passed made resume raise"),
        ("fence", "after the later one had claimed the directory"),
        ("read-only", "a reader changed"),
    ],
)
def test_without_a_protection_checkpoints_are_lost(protection, said):
    out = drive("--worlds", 1, "--cases", 25, "--seed", 7, "--break", protection, "--only", protection, "--worst", 25)
    assert out.returncode == 1 and said in out.stdout, out.stdout + out.stderr

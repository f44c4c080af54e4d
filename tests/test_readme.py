"""The README does what it says: its Python runs, its commands are CI's and setup.cfg's."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
SHELL = [code.strip() for language, code in BLOCKS if language == "sh"]


def _run(path):
    # In its own folder: one block saves a checkpoint. What a user runs warns of nothing.
    return subprocess.run(
        [sys.executable, "-W", "error", path],
        cwd=path.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_python_block_runs(code, tmp_path):
    pytest.importorskip("triton", reason="one block compiles a kernel")
    path = tmp_path / "block.py"
    path.write_text(code, encoding="utf-8")
    done = _run(path)
    assert done.returncode == 0, done.stderr


def test_training_loop_is_short_and_learns(tmp_path):
    loop = next(code for code in PYTHON if "DataLoader" in code)
    start, end = loop.index("tb.manual_seed"), loop.index("model.eval")
    assert len([line for line in loop[start:end].splitlines() if line]) <= 15
    path = tmp_path / "loop.py"
    path.write_text(loop, encoding="utf-8")
    done = _run(path)
    assert float(done.stdout.split()[-1]) > 0.8


def test_two_commands_of_one_line_that_name_real_extras():
    assert len(SHELL) == 2 and all("\n" not in command for command in SHELL)
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = set(config["options.extras_require"])
    assert set(re.findall(r"\.\[(\w+)\]", README)) <= extras
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert SHELL[1].endswith("-m pytest -n auto") and "-m pytest -n auto" in ci

"""The microbenchmarks run, untimed, wherever the tests do."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted(path.name for path in (ROOT / "benchmarks" / "micro").glob("test_*.py"))


def test_every_microbenchmark_passes_without_timing() -> None:
    words = ("-m", "pytest", "benchmarks/micro", "--benchmark-disable", "-q", "-rA", "-p", "no:cacheprovider")
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert FILES == ["test_compose.py", "test_kernels.py", "test_laws.py", "test_rows.py"]
    for name in FILES:
        told = [line.split()[0] for line in done.stdout.splitlines() if f"micro/{name}" in line]
        assert "PASSED" in told or "SKIPPED" in told, name

import subprocess
import sys
from pathlib import Path

import pytest

from mtrun.lanes import catalogue, order
from mtrun.lanes.contract import Exactness, Stage

LANES = catalogue.load()


def test_every_lane_file_is_listed_once_and_every_listed_lane_has_a_file():
    import mtrun.lanes as package

    machinery = {"__init__", "catalogue", "contract", "order"}
    files = {path.stem for folder in package.__path__ for path in Path(folder).glob("*.py")} - machinery
    assert files == set(catalogue.LANE_NAMES)
    assert len(catalogue.LANE_NAMES) == len(LANES)


def test_the_edges_of_the_catalogue_can_be_ordered():
    assert sorted(order.topological(LANES)) == sorted(LANES)


@pytest.mark.parametrize("name", catalogue.LANE_NAMES)
def test_a_lane_describes_itself(name):
    lane = LANES[name]
    assert lane.summary
    assert isinstance(lane.exactness, Exactness)
    assert isinstance(lane.stage, Stage)
    assert isinstance(lane.auto, bool)


@pytest.mark.parametrize("name", catalogue.LANE_NAMES)
def test_a_lossy_lane_is_never_armed_by_itself(name):
    assert LANES[name].exactness is not Exactness.LOSSY or LANES[name].auto is False


def test_loading_the_catalogue_imports_neither_mlx_nor_numpy():
    script = (
        "import sys; from mtrun.lanes import catalogue; catalogue.load(); "
        "print([name for name in ('mlx', 'mlx.core', 'mlx_lm', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_lane_module_fails_loudly():
    with pytest.raises(ImportError, match=r"lists no_such_lane.*mtrun\.lanes\.no_such_lane"):
        catalogue.load(["no_such_lane"])


def test_a_module_without_a_lane_fails_loudly():
    with pytest.raises(ImportError, match="exports no LANE"):
        catalogue.load(["order"])


def test_a_lane_under_another_name_fails_loudly(monkeypatch):
    import mtrun.lanes.cpu_blas as module

    monkeypatch.setattr(module, "LANE", LANES["kv_q8"])
    with pytest.raises(ImportError, match="calls its lane kv_q8"):
        catalogue.load(["cpu_blas"])

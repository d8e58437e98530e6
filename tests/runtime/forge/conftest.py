"""What forge tests start from, made once."""

import pytest

from support.tiny_forge import Bench, make_bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return make_bench(tmp_path_factory.mktemp("forge"))

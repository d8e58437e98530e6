"""Parts of two small packs, dense and quantised, for the tests of native lanes."""

from dataclasses import replace

import pytest

from support.native_parts import pack_parts


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return pack_parts(tmp_path_factory.mktemp("dense"), vocab=384, hidden=64, draft_vocab=256, scale=1.5, tied=False)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized")
    return pack_parts(folder, vocab=384, hidden=64, draft_vocab=256, scale=1.5, quantized=True)


@pytest.fixture
def parts(quantized):
    return replace(quantized)


@pytest.fixture(params=["dense", "quantized"])
def either(request):
    return replace(request.getfixturevalue(request.param))

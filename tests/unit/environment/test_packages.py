import ctypes

import pytest

from onnx_ci.environment.packages import newest_cuda


class Driver:
    """NVIDIA's library, whose function writes its answer where it is told to."""

    def __init__(self, version, code=0):
        self.version, self.code = version, code

    def cuDriverGetVersion(self, answer):  # noqa: N802
        answer._obj.value = self.version
        return self.code


@pytest.mark.parametrize(
    ("driver", "newest"), [(Driver(13000), "13.0"), (Driver(12080), "12.8"), (Driver(13000, code=3), None)]
)
def test_the_driver_tells_the_newest_cuda_that_it_supports(monkeypatch, driver, newest):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert newest_cuda() == newest


@pytest.mark.parametrize("error", [OSError("no such library"), AttributeError("no such function")])
def test_without_a_driver_there_is_none(monkeypatch, error):
    def missing(name):
        raise error

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert newest_cuda() is None

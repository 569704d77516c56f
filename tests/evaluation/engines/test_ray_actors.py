"""Workers of Ray: what the cluster cannot give is refused, and a cluster that was running is left running."""

from collections.abc import Iterator
from functools import partial

import pytest

from heta_lens._util import python
from heta_lens.evaluation.workers import Pool, RayActors, WorkerSetup
from heta_lens.model.loading import load_model

ray = pytest.importorskip("ray")
SETUP = WorkerSetup(partial(load_model, "demo"), {}, 1)


@pytest.fixture
def cluster() -> Iterator[None]:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.mark.slow
def test_ray_ends_with_a_refusal_by_which_it_was_started() -> None:
    with pytest.raises(ValueError, match="has room for 0 workers"):
        RayActors(SETUP, 1, 1.0, None)
    assert not ray.is_initialized()


@pytest.mark.thorough
@pytest.mark.usefixtures("cluster")
def test_what_a_running_cluster_has_not_enough_of_is_refused_and_the_cluster_stays() -> None:
    with pytest.raises(ValueError, match=r"the Ray cluster has room for 2 workers with 1 CPU each, and 3 are asked"):
        RayActors(SETUP, 3, 0.0, None)
    with pytest.raises(ValueError, match=r"has room for 0 workers with 1 CPU and 0.5 GPU each, and 2 are asked for"):
        RayActors(SETUP, 2, 0.5, None)
    pool = Pool(RayActors(SETUP, 1, 0.0, None), 1, 0)
    pool.start()
    assert pool.identity.fingerprint
    pool.stop()
    assert ray.is_initialized()


def test_a_cluster_that_cannot_be_joined_is_named_with_what_may_help(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(address: str, **_: object) -> None:
        raise ConnectionError(f"Failed to connect to Ray cluster at {address}")

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(ConnectionError, match=r"at head:6379: is it running\? If it wants a token, set RAY_AUTH"):
        RayActors(SETUP, 1, 0.0, "head:6379")
    monkeypatch.setenv("RAY_ADDRESS", "other:1")
    with pytest.raises(ConnectionError, match="cluster at other:1: is it running"):
        RayActors(SETUP, 1, 0.0, None)


def test_without_ray_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"--engine ray needs ray, .*pip install 'heta-lens\[ray\]'"):
        RayActors(SETUP, 1, 0.0, None)

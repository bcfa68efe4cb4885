"""The next job is the one that a search through all jobs would find, without such a search."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from onnx_ci.engine.waiting import WaitingJobs

GPUS = (None, "cuda:0", "cuda:1")


@dataclass(eq=False)
class Job:
    """A job that counts how often it is looked at."""

    id: str
    key: tuple[object, ...]
    gpu: str | None = None
    looks: int = field(default=0, init=False)

    @property
    def worker(self):
        self.looks += 1
        return self.key


def job(number, recipe="net", gpu=None):
    return Job(id=f"{recipe}-{number}", key=(recipe, gpu), gpu=gpu)


def ids(jobs):
    return [each.id for each in jobs]


def test_jobs_are_in_order_by_host():
    waiting = WaitingJobs()
    jobs = [job(0, "a"), job(1, "b"), job(2, "a"), job(3, "b")]
    for each in jobs:
        waiting.add(each)
    assert len(waiting) == 4
    assert waiting.get("a-2") is jobs[2]
    assert ids(waiting.of_worker(("a", None))) == ["a-0", "a-2"]
    assert waiting.count(("a", None)) == 2
    assert waiting.count(("never", None)) == 0
    assert waiting.first_of([("b", None), ("a", None)]) is jobs[0]
    waiting.remove("a-0")
    waiting.remove("a-0")
    assert waiting.first_of([("b", None), ("a", None)]) is jobs[1]
    assert (waiting.get("a-0"), waiting.of_worker(("c", None)), waiting.first_of([])) == (None, [], None)
    waiting.add(jobs[1])  # again: behind the others
    assert ids(waiting.of_worker(("b", None))) == ["b-3", "b-1"]


def test_a_worker_is_missing_until_it_is_started_and_again_once_it_has_ended():
    waiting = WaitingJobs()
    first, second, third = job(0, "a"), job(1, "a"), job(2, "b")
    for each in (first, second, third):
        waiting.add(each)
    assert waiting.first_without_worker() is first
    waiting.worker_started(("a", None))
    assert waiting.first_without_worker() is third
    waiting.remove(first.id)
    waiting.worker_ended(("a", None))
    assert waiting.first_without_worker() is second
    waiting.remove(second.id)
    waiting.worker_started(("b", None))
    assert waiting.first_without_worker() is None


def test_what_needs_a_busy_gpu_is_passed_over():
    waiting = WaitingJobs()
    jobs = [job(0, gpu="cuda:0"), job(1, gpu="cuda:1"), job(2)]
    for each in jobs:
        waiting.add(each)
    assert waiting.first_without_worker(busy_gpus={"cuda:0"}) is jobs[1]
    assert waiting.first_without_worker(busy_gpus={"cuda:0", "cuda:1"}) is jobs[2]
    waiting.worker_started(jobs[2].worker)
    assert waiting.first_without_worker(busy_gpus={"cuda:0", "cuda:1"}) is None


@given(
    actions=st.lists(st.sampled_from(["add", "add", "remove", "start", "end"]), max_size=60),
    rng=st.randoms(use_true_random=False),
    busy=st.sets(st.sampled_from(GPUS[1:])),
)
def test_the_next_job_is_what_a_search_through_all_jobs_finds(actions, rng, busy):
    waiting = WaitingJobs()
    jobs: list[Job] = []
    started: set[tuple[object, ...]] = set()
    for number, action in enumerate(actions):
        if action == "add":
            jobs.append(job(number, rng.choice("abcd"), rng.choice(GPUS)))
            waiting.add(jobs[-1])
        elif action == "remove" and jobs:
            waiting.remove(jobs.pop(rng.randrange(len(jobs))).id)
        elif action == "start" and jobs:
            started.add(key := rng.choice(jobs).key)
            waiting.worker_started(key)
        elif action == "end" and started:
            started.remove(key := rng.choice(sorted(started, key=repr)))
            waiting.worker_ended(key)
        missing = [each for each in jobs if each.key not in started and each.gpu not in busy]
        assert waiting.first_without_worker(busy_gpus=busy) is next(iter(missing), None)
        assert waiting.first_of(started) is next((each for each in jobs if each.key in started), None)

"""The engine of a request, and the next one when that engine fails."""

from __future__ import annotations

import pytest

from services.policy.engines.pool import SPILL_OVER, Pool
from services.policy.engines.sglang import SGLangEngine
from tests.fake_engine import FakeEngine
from tests.unit.policy.conftest import GO, MakeService, start
from triforge.errors import InputError, PolicyError


def pool_of(*urls: str) -> Pool:
    pool = Pool([SGLangEngine(url) for url in urls])
    for member in pool.members:
        pool.admit(member)
    return pool


def test_without_affinity_the_idlest_engine_is_chosen() -> None:
    pool = pool_of("http://a", "http://b")
    pool.members[0].in_flight = 1
    assert pool.choose("") is pool.members[1]


def test_an_engine_with_a_long_queue_is_passed_over() -> None:
    pool = pool_of("http://a", "http://b")
    loved = pool.choose("task")
    assert loved is not None
    loved.in_flight = SPILL_OVER + 1
    assert pool.choose("task") is not loved


def test_a_batch_without_affinity_is_spread_evenly() -> None:
    pool = pool_of("http://a", "http://b")
    shares = pool.split([""] * 10)
    assert sorted(len(positions) for _, positions in shares) == [5, 5]
    assert sorted(p for _, positions in shares for p in positions) == list(range(10))
    assert [member.in_flight for member in pool.members] == [0, 0]


async def test_a_bad_request_is_not_tried_on_another_engine(make_service: MakeService) -> None:
    service = await start(
        make_service, *(FakeEngine(fail_next=1, fail_status=400) for _ in range(2))
    )
    with pytest.raises(InputError, match="set to fail"):
        await service.gateway.generate([GO])
    assert sum(fake.paths().count("/generate") for fake in service.fakes) == 1


@pytest.mark.parametrize(
    "nonsense",
    [
        {},
        [],
        [{}],
        [{"text": "a", "output_ids": [1], "meta_info": None}],
        [{"text": "a", "output_ids": [1], "meta_info": {"finish_reason": {"type": "stop"}}}],
    ],
)
async def test_nonsense_is_a_policy_error(make_service: MakeService, nonsense: object) -> None:
    service = await start(make_service, FakeEngine(nonsense=nonsense))
    with pytest.raises(PolicyError, match="http://a"):
        await service.gateway.generate([GO])


@pytest.mark.parametrize(
    "change",
    [
        {"weight_versions": [{"version": "0", "start": 0, "end": 1}]},
        {"weight_versions": [{"version": "0", "start": 1, "end": 2}]},
        {"weight_version": "latest", "weight_versions": []},
        {"output_token_logprobs": [[-0.5, 5, None], [-0.5, 6, None]]},
        {"finish_reason": {"type": "bored"}},
    ],
)
async def test_contradicting_answer(make_service: MakeService, change: dict[str, object]) -> None:
    fake = FakeEngine()
    service = await start(make_service, fake)
    truth = await fake._say([5], {"stop_token_ids": [1]})
    assert truth["output_ids"] == [5, 1]
    fake.nonsense = [{**truth, "meta_info": {**truth["meta_info"], **change}}]
    with pytest.raises(PolicyError):
        await service.gateway.generate([GO])

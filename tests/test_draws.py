"""Randomness by name: each draw hangs on seed, kind, step and turn, and on nothing else."""

from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Literal

import pytest
import torch
from scipy import stats
from torch import Generator, Tensor

from bench.core.draw import Draw, Request, generator, serve
from bench.core.settings import BadSetting
from bench.core.stream import Stream
from bench.core.task import Batch, Context, Task
from tasks.quadratic import quadratic
from tests.steps import problem as at


def seed_of(*name: int | str) -> int:
    """The seed of a name, worked out here: 63 bits of its BLAKE2b digest."""
    digest = blake2b(repr(name).encode(), digest_size=8).hexdigest()
    return int(digest, 16) // 2


def telling() -> Task:
    """A task whose batches tell what they were drawn with: (side, seed of the generator, step,
    size)."""

    def told(side: str) -> Any:
        def draw(rng: Generator, step: int, size: int | None) -> Batch:
            return side, rng.initial_seed(), step, size

        return draw

    return replace(
        at.problem(),
        data=replace(at.problem().data, draw_upper=told("f"), draw_lower=told("g")),
    )


def test_the_seeds_of_names_stay_what_they_are() -> None:
    """Records hang on them: these numbers were taken down once."""
    assert seed_of(0, "init") == generator(0, "init").initial_seed() == 5184189234732532942
    assert generator(7, "lower", 12, 3).initial_seed() == 6819173549790753357
    assert str(generator(0).device) == "cpu"


def test_a_batch_is_named_by_seed_side_step_and_turn() -> None:
    d = Draw(telling(), 5, 9)
    assert d.f(4) == ("f", seed_of(5, "upper", 9, 0), 9, 4)
    assert d.g() == ("g", seed_of(5, "lower", 9, 0), 9, None)
    assert d.g(2) == ("g", seed_of(5, "lower", 9, 1), 9, 2)
    assert d.f() == ("f", seed_of(5, "upper", 9, 1), 9, None)
    assert d.f(1) == ("f", seed_of(5, "upper", 9, 2), 9, 1)


def test_an_earlier_step_is_drawn_again_from_its_first_on() -> None:
    d = Draw(telling(), 5, 9)
    d.f(4), d.f(4), d.g(4)
    for steps in (0, 1, 3, 9):
        past = d.ago(steps)
        assert past.step == 9 - steps
        assert past.f(4) == ("f", seed_of(5, "upper", 9 - steps, 0), 9 - steps, 4)
        assert past.g(4) == ("g", seed_of(5, "lower", 9 - steps, 0), 9 - steps, 4)
    like = torch.zeros(3).double()
    assert torch.equal(d.ago(2).normal(like), Draw(telling(), 5, 7).normal(like))
    assert d.f(4)[1] == seed_of(5, "upper", 9, 2)  # what was drawn of the past shifts nothing


def test_what_was_asked_for_steps_ago() -> None:
    """A recorded question is answered for any step."""
    task = telling()
    assert serve(task, 5, 9, Request("lower", 2, 4, ago=3)) == (
        "g", seed_of(5, "lower", 6, 2), 6, 4,
    )  # fmt: skip
    assert serve(task, 5, 9, Request("upper", 0)) == ("f", seed_of(5, "upper", 9, 0), 9, None)
    like = ((2, 3), torch.float64, torch.device("cpu"))
    past = serve(task, 5, 9, Request("normal", 1, like=like, ago=9))
    rng = generator(5, "normal", 0, 1)
    assert torch.equal(past, torch.randn(2, 3, generator=rng, dtype=torch.float64))


LIKE = torch.zeros(2, 3, dtype=torch.float64)
NUMBERS: dict[str, Callable[[Draw], Any]] = {
    "normal": lambda d: d.normal(LIKE).tolist(),
    "uniform": lambda d: d.uniform(LIKE).tolist(),
    "integer": lambda d: d.integer(2**50),
    "some": lambda d: d.some(torch.arange(50), 50).tolist(),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_differ_between_turns_steps_and_seeds(kind: str) -> None:
    task, ask = telling(), NUMBERS[kind]

    def three(seed: int, step: int) -> list[Any]:
        d = Draw(task, seed, step)
        return [ask(d) for _ in range(3)]

    seen = [repr(found) for seed in (0, 1) for step in (0, 1, 2) for found in three(seed, step)]
    assert len(set(seen)) == 18
    assert three(1, 2) == three(1, 2)


@pytest.mark.parametrize("kind", ["normal", "uniform", "integer"])
def test_the_turns_of_a_kind_are_its_own(kind: str) -> None:
    """Other kinds and batches in between shift nothing."""
    ask, plain, mixed = NUMBERS[kind], Draw(telling(), 0, 4), Draw(telling(), 0, 4)
    expected = [ask(plain) for _ in range(2)]
    others = [NUMBERS[other] for other in ("normal", "uniform", "integer") if other != kind]
    found = []
    for _ in range(2):
        for other in (*others, lambda d: d.f(3), lambda d: d.g(), lambda d: d.blocks("upper", 2)):
            other(mixed)
        found.append(ask(mixed))
    assert found == expected


def test_numbers_are_those_of_their_names() -> None:
    d = Draw(telling(), 3, 4)
    d.normal(LIKE), d.uniform(LIKE), d.integer(9)
    normal, uniform, integer = (generator(3, kind, 4, 1) for kind in NUMBERS if kind != "some")
    double = torch.float64
    assert torch.equal(d.normal(LIKE), torch.randn(2, 3, generator=normal, dtype=double))
    assert torch.equal(d.uniform(LIKE), torch.rand(2, 3, generator=uniform, dtype=double))
    assert d.integer(2**40) == int(torch.randint(2**40, (1,), generator=integer))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_shaped_as_asked(dtype: torch.dtype) -> None:
    d = Draw(telling(), 0, 0)
    for like in (torch.zeros(4, 5, dtype=dtype), torch.zeros((), dtype=dtype)):
        for found in (d.normal(like), d.uniform(like)):
            assert (found.shape, found.dtype, found.device) == (like.shape, dtype, like.device)


def test_numbers_are_distributed_as_they_say() -> None:
    """Kolmogorov-Smirnov on fixed draws: p above .01 was so when this was written."""
    d, like = Draw(telling(), 0, 0), torch.zeros(20000)
    assert stats.kstest(d.normal(like).numpy(), "norm").pvalue > 0.01
    uniform = d.uniform(like)
    assert stats.kstest(uniform.numpy(), "uniform").pvalue > 0.01
    assert 0 <= float(uniform.min()) < float(uniform.max()) < 1
    found = [Draw(telling(), 0, k).integer(5) for k in range(2000)]
    assert {type(n) for n in found} == {int}
    counts = [found.count(n) for n in range(5)]
    assert sum(counts) == 2000
    assert stats.chisquare(counts).pvalue > 0.01


@pytest.mark.parametrize("size", [1, 4, 10, 15])
def test_some_are_without_replacement(size: int) -> None:
    numbers = torch.arange(100, 110).reshape(2, 5)
    found = Draw(telling(), 0, 3).some(numbers, size)
    assert found.shape == (min(size, 10),)
    assert len(set(found.tolist())) == min(size, 10)
    assert set(found.tolist()) <= set(range(100, 110))
    assert Draw(telling(), 0, 3).some(numbers.float(), size).tolist() == found.tolist()


def test_all_are_as_likely_to_be_among_some() -> None:
    counts = torch.zeros(10)
    for k in range(1000):
        counts[Draw(telling(), 0, k).some(torch.arange(10), 3)] += 1
    assert counts.sum() == 3000
    assert stats.chisquare(counts.numpy()).pvalue > 0.01


def test_batches_do_not_hang_on_the_type_of_numbers() -> None:
    """A run in float32 sees the rows that one in float64 sees."""
    tasks = [quadratic(Context(dtype=dtype)) for dtype in (torch.float32, torch.float64)]
    for k in range(3):
        single, double = (Draw(task, 0, k) for task in tasks)
        assert torch.equal(single.f(8), double.f(8))
        assert torch.equal(single.g(8), double.g(8))
        memory = torch.arange(30)
        assert torch.equal(single.some(memory, 5), double.some(memory, 5))


def test_a_part_of_another_method_is_handed_its_batches() -> None:
    d = Draw(telling(), 5, 9)
    first = d.normal(LIKE)
    part = d.with_batches("xi", "zeta")
    assert [part.f(4), part.f(), part.g(4), part.g()] == ["xi", "xi", "zeta", "zeta"]
    fresh = Draw(telling(), 5, 9)
    assert torch.equal(fresh.normal(LIKE), first)
    second, third = fresh.normal(LIKE), fresh.normal(LIKE)
    assert torch.equal(part.normal(LIKE), second)
    assert torch.equal(d.normal(LIKE), third)  # the turns are common to both
    assert d.f(4)[1] == seed_of(5, "upper", 9, 0)  # and what was handed has used none
    assert (part.task, part.seed, part.step) == (d.task, 5, 9)


def test_a_part_of_another_method_gets_past_its_batches_by_no_way() -> None:
    part = Draw(at.problem(), 5, 9).with_batches("xi", "zeta")
    for side in ("upper", "lower"):
        with pytest.raises(
            BadSetting, match=r"algorithm\.method: .* into blocks, .*; write a method"
        ):
            part.blocks(side, 1)  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match=r"algorithm\.method: .* past batches, .*; write a method"):
        part.ago(0)


def test_a_stream_is_at_hand_where_there_is_one() -> None:
    def nothing(*arguments: Any) -> Any:
        raise AssertionError

    with pytest.raises(TypeError, match="no stream"):
        _ = Draw(telling(), 0, 0).stream
    stream = Stream(2, 3, 4, 5, nothing, nothing)
    assert Draw(replace(telling(), stream=stream), 0, 0).stream is stream


# which side is cut, rows there are, blocks, and the rows of each
CUTS: list[tuple[int, int, list[int]]] = [
    (10, 1, [10]),
    (10, 3, [3, 3, 4]),
    (10, 4, [2, 3, 2, 3]),
    (10, 10, [1] * 10),
    (7, 2, [3, 4]),
]


@pytest.mark.parametrize("side", ["upper", "lower"])
@pytest.mark.parametrize(("n", "count", "sizes"), CUTS)
def test_blocks_are_all_rows_in_order_each_once(
    side: Literal["upper", "lower"], n: int, count: int, sizes: list[int]
) -> None:
    own, other = torch.arange(n) + 100, torch.arange(3)
    asked: list[Any] = []

    def sampler(rows: Tensor) -> Any:
        def draw(rng: Generator, step: int, size: int | None) -> Batch:
            asked.append((rng.initial_seed(), step, size))
            return rows

        return draw

    data = (own, other) if side == "upper" else (other, own)
    task = replace(
        at.problem(),
        data=replace(at.problem().data, draw_upper=sampler(data[0]), draw_lower=sampler(data[1])),
    )
    blocks = Draw(task, 5, 9).blocks(side, count)
    assert asked == [(seed_of(5, side, 9, "all"), 9, None)]
    assert len(blocks) == count
    assert [len(blocks[b]) for b in range(count)] == sizes
    assert torch.cat([blocks[b] for b in range(count)]).tolist() == own.tolist()
    assert [blocks.share(b) for b in range(count)] == [size / n for size in sizes]
    assert (blocks[0] is own) == (count == 1)


def test_blocks_that_cannot_be_cut_are_refused() -> None:
    task = at.problem()  # of 64 rows
    assert len(Draw(task, 0, 0).blocks("lower", 64)) == 64
    with pytest.raises(BadSetting, match=r"algorithm\.blocks=65: the lower .* at most 64$"):
        Draw(task, 0, 0).blocks("lower", 65)
    whole = replace(task, data=replace(task.data, rows=None))
    with pytest.raises(
        BadSetting,
        match=r"algorithm\.blocks=2 \(or .*upper_blocks.*\): the upper level .* cannot be cut",
    ):
        Draw(whole, 0, 0).blocks("upper", 2)
    assert torch.equal(Draw(whole, 0, 0).blocks("upper", 1)[0], torch.arange(64))

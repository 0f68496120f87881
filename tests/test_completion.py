"""Matrix completion: its recipe and its loss, written from NCGS (Qu, Li, Xu, 2018), section 6.1.1,
and reading one's own entries.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Context, Task
from tasks.completion import completion

SHAPE: dict[str, Any] = {"rows": 9, "columns": 7, "rank": 2, "observed": 0.5}
Entries = dict[tuple[int, int], float]


def recipe(
    name: int,
    rows: int = 9,
    columns: int = 7,
    rank: int = 2,
    observed: float = 0.5,
    noisy: float = 0.05,
    magnitude: float = 3.0,
    norm: float = 5.0,
) -> tuple[Tensor, Entries]:
    """(the truth, the entries seen): `rank` singular values of norm / rank each; an entry is seen
    with probability `observed`, then shifted by U[-magnitude, magnitude] with probability `noisy`.
    """
    rng = generator("completion", name)

    def normal(n: int) -> Tensor:
        return torch.randn(n, rank, generator=rng, dtype=torch.float64)

    u, v = np.linalg.qr(normal(rows).numpy())[0], np.linalg.qr(normal(columns).numpy())[0]
    truth = sum(norm / rank * np.outer(u[:, k], v[:, k]) for k in range(rank))
    seen = torch.rand(rows, columns, generator=rng)
    places = [(i, j) for i in range(rows) for j in range(columns) if seen[i, j] < observed]
    hits = torch.rand(len(places), generator=rng)
    shifts = torch.rand(len(places), generator=rng, dtype=torch.float64)
    entries = {}
    for k, (i, j) in enumerate(places):
        shift = -magnitude + 2 * magnitude * float(shifts[k]) if hits[k] < noisy else 0.0
        entries[i, j] = float(truth[i, j]) + shift
    return torch.from_numpy(truth), entries


def loss(x: Tensor, entries: Entries, sigma: float, batch: list[int] | None = None) -> float:
    """Equation (9); the batch's own sum times n / |batch|."""
    places = list(entries)
    chosen = places if batch is None else [places[k] for k in batch]
    terms = [1 - np.exp(-((float(x[p]) - entries[p]) ** 2) / sigma) for p in chosen]
    return sum(terms) * len(places) / len(chosen)


def point(task: Task) -> tuple[Tensor, Tensor]:
    x, y = task.init(generator())
    assert not x.any()
    return 0.4 * torch.randn(x.shape, generator=generator("x"), dtype=torch.float64), y


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the paper's": ({}, {}),
    "a radius": ({"radius": 3.0}, {"norm": 3.0}),
    "a norm": ({"radius": 2.0, "norm": 7.0}, {"norm": 7.0}),
    "much noise": ({"noisy": 0.7, "magnitude": 1.0}, {"noisy": 0.7, "magnitude": 1.0}),
    "rank 1 of all entries": ({"rank": 1, "observed": 1.0}, {"rank": 1, "observed": 1.0}),
    "tall": ({"rows": 12, "columns": 3}, {"rows": 12, "columns": 3}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sigma", [1.0, 0.6])
def test_the_loss_is_of_the_recipes_entries(case: str, sigma: float, context: Context) -> None:
    """The loss is that of all data and of batches with a repeated row; its derivative is
    compared with differences in every entry. A loss of order 10 in float64 gives differences to
    1e-5."""
    ours, own = CASES[case]
    task = completion(context, **(SHAPE | ours), sigma=sigma, instance=4)
    truth, entries = recipe(4, **own)
    x, y = point(task)
    everything = Draw(task, 0, 0).f(None)
    assert task.data.count(everything) == len(entries)
    for batch in (None, [0], [2, 0, 2, 1]):
        rows = everything if batch is None else torch.tensor(batch)
        value = loss(x, entries, sigma, batch)
        assert float(task.upper(x, y, rows)) == pytest.approx(value, rel=1e-10)
        f_x = Oracle(task).f_x(x, y, rows)
        for place in np.ndindex(*x.shape):
            up, down = x.clone(), x.clone()
            up[place] += 1e-5
            down[place] -= 1e-5
            slope = (loss(up, entries, sigma, batch) - loss(down, entries, sigma, batch)) / 2e-5
            assert float(f_x[place]) == pytest.approx(slope, abs=1e-7)
    error = float(task.evaluate(x, y, 0)["error"])
    assert error == pytest.approx(float((x - truth).square().mean().sqrt()), rel=1e-10)


def test_the_truth_has_equal_singular_values_that_sum_to_its_norm(context: Context) -> None:
    """The error of the start 0 is therefore norm / rank sqrt(rank / (rows columns))."""
    task = completion(context, **SHAPE | {"rank": 3}, radius=2.0, norm=6.0)
    error = float(task.evaluate(*task.init(generator()), 0)["error"])
    assert error == pytest.approx(6 / 3 * (3 / 63) ** 0.5, rel=1e-10)


def test_what_is_measured(context: Context) -> None:
    """The objective, |x - P(x - gamma F'(x))|^2 / gamma^2, max <F', x - s>, and the spectrum."""
    radius, gamma = 1.5, 0.3
    task = completion(context, **SHAPE, radius=radius, gamma=gamma, sigma=0.6, instance=1)
    x, y = point(task)
    found = {name: float(v) for name, v in task.evaluate(x, y, 0).items()}
    slope = Oracle(task).f_x(x, y, Draw(task, 0, 0).f(None)).numpy()
    u, values, v = np.linalg.svd(x.numpy() - gamma * slope, full_matrices=False)
    low, high = 0.0, values.max()
    for _ in range(100):  # the shift at which the values sum to the radius
        middle = (low + high) / 2
        low, high = (middle, high) if (values - middle).clip(0).sum() > radius else (low, middle)
    projected = u @ np.diag((values - low).clip(0)) @ v
    spectrum = np.linalg.svd(x.numpy())[1]
    expected = {
        "objective": loss(x, recipe(1, norm=radius)[1], 0.6),
        "mapping_sq": ((x.numpy() - projected) ** 2).sum() / gamma**2,
        "fw_gap": (slope * x.numpy()).sum() + radius * np.linalg.svd(slope)[1][0],
        "nuclear_norm": spectrum.sum(),
        "rank": 7.0,
        "error": found["error"],
    }
    assert found == pytest.approx(expected, rel=1e-8)
    assert task.metric == "mapping_sq"


def test_rank_counts_singular_values_above_a_millionth_of_the_largest(context: Context) -> None:
    task = completion(context, **SHAPE)
    x, y = task.init(generator())
    assert float(task.evaluate(x, y, 0)["rank"]) == 0
    x.diagonal()[:4] = torch.tensor([2.0, 1.0, 3e-6, 1e-6])
    assert float(task.evaluate(x, y, 0)["rank"]) == 3


def test_the_instance_names_the_data(context: Context) -> None:
    """None: the seed does; a batch's rows are drawn with replacement."""
    from dataclasses import replace

    values = []
    for seed, instance in ((3, None), (0, 3), (1, 3), (0, 4)):
        task = completion(replace(context, seed=seed), **SHAPE, instance=instance)
        x, y = point(task)
        values.append(float(task.upper(x, y, Draw(task, 0, 0).f(None))))
    assert values[0] == values[1] == values[2] != values[3]
    drawn = Draw(task, 0, 0).f(500)
    n = task.data.count(Draw(task, 0, 0).f(None))
    assert set(drawn.tolist()) == set(range(n))


def test_nothing_observed_is_refused(context: Context) -> None:
    with pytest.raises(BadSetting, match=r"task\.observed=0\.0: nothing is observed"):
        completion(context, **SHAPE | {"observed": 0.0})


@pytest.mark.parametrize("shape", [(7, 9), (9, 7), (7, 7)])
def test_a_rank_that_no_such_matrix_has_is_refused(
    shape: tuple[int, int], context: Context, tmp_path: Path
) -> None:
    rows, columns = shape
    words = rf"task\.rank=8: there are {rows} rows and {columns} columns; write at most 7"
    with pytest.raises(BadSetting, match=words):
        completion(context, rows, columns, rank=8)
    completion(context, rows, columns, rank=7)
    (tmp_path / "entries.txt").write_text("0 0 1\n1 1 2\n")  # whose rank nobody says
    own = Context(data_root=tmp_path)
    completion(own, rows, columns, rank=8, file="entries.txt", held_out=0.0)


def test_a_file_of_which_all_is_held_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "entries.txt").write_text("0 0 1\n1 1 2\n")
    words = r"task\.held_out=1\.0: no entry of the file is left; write less"
    with pytest.raises(BadSetting, match=words):
        completion(Context(data_root=tmp_path), file="entries.txt", held_out=1.0)


BAD_FILES = {
    "two columns": ("1 2\n3 4\n", "three numbers"),
    "a word": ("1 2 x\n", "could not convert"),
    "half a row": ("0.5 1 2\n", "whole numbers"),
    "half a column": ("1 0.5 2\n", "whole numbers"),
    "a negative row": ("-1 1 2\n", "three numbers"),
    "a negative column": ("1 -1 2\n", "three numbers"),
    "the same entry twice": ("0 1 2\n0 1 3\n", "twice"),
    "no number": ("0 1 nan\n", "not finite"),
    "an infinite row": ("inf 1 2\n", "not finite"),
    "a huge row": ("3000000000 1 2\n", "too large"),
    "a huge column": ("1 3000000000 2\n", "too large"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_of_entries_is_refused(case: str, tmp_path: Path) -> None:
    content, words = BAD_FILES[case]
    (tmp_path / "entries.txt").write_text(content)
    with pytest.raises(BadSetting, match=rf"task\.file=entries\.txt.*{words}"):
        completion(Context(data_root=tmp_path), file="entries.txt")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"task\.file=entries\.csv.*No such file"):
        completion(Context(data_root=tmp_path), file="entries.csv")
    (tmp_path / "entries.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(BadSetting, match=r"task\.file=entries\.csv.*is not text"):
        completion(Context(data_root=tmp_path), file="entries.csv")
    (tmp_path / "entries.csv").write_text("# nothing\n")
    with (
        pytest.warns(UserWarning, match="no data"),
        pytest.raises(BadSetting, match=r"task\.file=entries\.csv.*three numbers"),
    ):
        completion(Context(data_root=tmp_path), file="entries.csv")


def test_a_matrix_beyond_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float64: ten rows of two columns are 160 bytes."""
    (tmp_path / "entries.txt").write_text("0 0 1\n9 1 2\n")
    context = Context(data_root=tmp_path, dtype=torch.float64)
    monkeypatch.setattr("tasks.completion.MATRIX", 160)
    completion(context, file="entries.txt", held_out=0.0)
    monkeypatch.setattr("tasks.completion.MATRIX", 159)
    with pytest.raises(BadSetting, match=r"entries\.txt: a matrix of 10 rows and 2 columns"):
        completion(context, file="entries.txt", held_out=0.0)


def test_a_value_may_be_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rows and columns have a largest number, and 2^31 is one that they may have."""
    monkeypatch.setattr("tasks.completion.MATRIX", math.inf)
    (tmp_path / "entries.txt").write_text(f"0 0 3e9\n0 {2**31} -7e20\n")
    completion(Context(data_root=tmp_path), file="entries.txt", held_out=0.0)


@pytest.mark.parametrize("separator", [",", " ", ", "])
@pytest.mark.parametrize("held_out", [0.0, 0.2])
def test_ones_own_entries_are_read_from_a_file(
    separator: str, held_out: float, tmp_path: Path
) -> None:
    """The first fifth of a permutation is for testing; the matrix is as large as the file's
    largest row and column, of the test entries too. float64 sums in another order: 1e-10."""
    lines = {(i, j): i - 2.5 * j for i in range(6) for j in range(5) if i != 2 * j}
    text = "\n".join(separator.join(map(str, (i, j, v))) for (i, j), v in lines.items())
    (tmp_path / "entries.txt").write_text(text)
    context = Context(data_root=tmp_path, dtype=torch.float64)
    own = {"radius": 30.0, "sigma": 2.0, "instance": 2}
    task = completion(context, file="entries.txt", held_out=held_out, **own)  # type: ignore[arg-type]
    places = list(lines)
    order = torch.randperm(len(places), generator=generator("completion", 2)).tolist()
    cut = round(held_out * len(places))
    train = {places[k]: lines[places[k]] for k in order[cut:]}
    test = [places[k] for k in order[:cut]]
    x, y = point(task)
    assert x.shape == (6, 5)
    everything = Draw(task, 0, 0).f(None)
    assert task.data.count(everything) == len(train) == (27 if held_out == 0 else 22)
    assert float(task.upper(x, y, everything)) == pytest.approx(loss(x, train, 2.0), rel=1e-10)
    errors = [(float(x[p]) - lines[p]) ** 2 for p in test]
    told = task.evaluate(x, y, 0)
    assert ("error" in told) == bool(errors)  # of nothing there is none
    if errors:
        expected = (sum(errors) / len(errors)) ** 0.5
        assert float(told["error"]) == pytest.approx(expected, rel=1e-10)
    assert list(task.report.sources) == ["entries.txt"]
    assert len(task.report.sources["entries.txt"]) == 64

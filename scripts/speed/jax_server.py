"""Bilevel steps in JAX, in an environment of its own: jax_peer.py starts this file and asks it.

The steps are written as JAX's users write them: losses are differentiated by jax.grad and jax.vjp,
and a whole chunk of steps is one jitted lax.scan, whose carry is the state.

FOLDER has the problem. {"ask": "version"} is answered with the version of JAX; {"ask": "ends",
"method": ...} by writing the state after the steps of FOLDER/METHOD.npz, which has the numbers of
the rows in each step's batches; {"ask": "time", "method": ..., "steps": n} with the seconds of so
many steps, whose batches JAX draws, and with those of compiling them. Work on all the data
(jax_full.py) is asked for by {"ask": "turn" or "value", "work": ...}, and is answered with seconds
or by writing what it computes to FOLDER/value.npy.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from scripts.speed.jax_full import DIRECTIONS, descents, gradients, toy
from scripts.speed.peers import answer_requests
from scripts.speed.workload import (
    BATCH,
    BLOCK,
    INNER_LR,
    LAM,
    OUTER_LR,
    RATIO,
    SYSTEM_LR,
    C,
    Q,
    T,
)

State = tuple[Array, ...]
Rows = tuple[Array, Array]  # numbers of rows: [batches of f, BATCH], [batches of g, BATCH]


class Problem:
    """Hyper-cleaning: softmax regression with a weight sigmoid(x_i) for each example."""

    def __init__(self, folder: Path):
        found = np.load(folder / "problem.npz")
        self.train, self.val = jnp.array(found["train"]), jnp.array(found["val"])
        self.train_labels = jnp.array(found["train_labels"])
        self.val_labels = jnp.array(found["val_labels"])
        self.start = jnp.array(found["x"]), jnp.array(found["y"])

    def upper(self, y: Array, i: Array | None = None) -> Array:
        """f on the rows i; None: on all of them, here and below."""
        z, labels = (t if i is None else t[i] for t in (self.val, self.val_labels))
        return cross_entropies(z @ y.T, labels).mean()

    def lower(self, x: Array, y: Array, i: Array | None = None) -> Array:
        """g on the rows i."""
        z, labels, w = (t if i is None else t[i] for t in (self.train, self.train_labels, x))
        return (jax.nn.sigmoid(w) * cross_entropies(z @ y.T, labels)).mean() + C * (y**2).sum()

    def g_y(self, x: Array, y: Array, i: Array | None = None) -> Array:
        """The gradient of g in y."""
        found: Array = jax.grad(self.lower, argnums=1)(x, y, i)
        return found

    def products(
        self, x: Array, y: Array, v: Array, i: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """g_y, g_xy v and g_yy v."""
        g_y, pull = jax.vjp(lambda x, y: self.g_y(x, y, i), x, y)
        mixed, curved = pull(v)
        return g_y, mixed, curved


def cross_entropies(z: Array, labels: Array) -> Array:
    """The cross-entropy of each row."""
    return jax.nn.logsumexp(z, 1) - jnp.take_along_axis(z, labels[:, None], 1)[:, 0]


def soba(p: Problem, s: State, k: Array, rows: Rows) -> State:
    """Dagreou et al. 2022, Algorithm 1."""
    x, y, v = s
    f_y = jax.grad(p.upper)(y, rows[0][0])
    g_y, mixed, curved = p.products(x, y, v, rows[1][0])
    return x + OUTER_LR * mixed, y - INNER_LR * g_y, v - SYSTEM_LR * (curved - f_y)


def amigo(p: Problem, s: State, k: Array, rows: Rows) -> State:
    """Arbel and Mairal 2022, Algorithm 1."""
    x, y, v = s
    f, g = rows
    y, _ = jax.lax.scan(lambda y, i: (y - INNER_LR * p.g_y(x, y, i), None), y, g[:T])
    f_y = jax.grad(p.upper)(y, f[0])

    def solve(v: Array, i: Array) -> tuple[Array, None]:
        return v - SYSTEM_LR * (hessian_product(p, x, y, v, i) - f_y), None

    v, _ = jax.lax.scan(solve, v, g[T : T + Q])
    mixed = p.products(x, y, v, g[T + Q])[1]
    return x + OUTER_LR * mixed, y, v


def stocbio(p: Problem, s: State, k: Array, rows: Rows) -> State:
    """Ji et al. 2021, Algorithms 2 and 3."""
    x, y = s
    f, g = rows
    y, _ = jax.lax.scan(lambda y, i: (y - INNER_LR * p.g_y(x, y, i), None), y, g[:T])
    f_y = jax.grad(p.upper)(y, f[0])

    def factor(r: Array, i: Array) -> tuple[Array, Array]:
        r = r - SYSTEM_LR * hessian_product(p, x, y, r, i)
        return r, r

    _, terms = jax.lax.scan(factor, f_y, g[T + 1 :])
    v = SYSTEM_LR * (f_y + terms.sum(0))
    return x + OUTER_LR * p.products(x, y, v, g[T])[1], y


def f2sa(p: Problem, s: State, k: Array, rows: Rows) -> State:
    """Kwon et al. 2023, Algorithm 1, with the step sizes of algorithms/bilevel/f2sa.py."""
    x, y, z = s
    f, g = rows
    lam = LAM * (k + 1.0) ** (1 / 3)
    alpha = INNER_LR / jnp.maximum(lam, 1.0)

    def inner(yz: tuple[Array, Array], i: Rows) -> tuple[tuple[Array, Array], None]:
        y, z = yz
        z = z - INNER_LR * p.g_y(x, z, i[1][0])
        y = y - alpha * (jax.grad(p.upper)(y, i[0]) + lam * p.g_y(x, y, i[1][1]))
        return (y, z), None

    pairs = g[: 2 * T].reshape(T, 2, BATCH)
    (y, z), _ = jax.lax.scan(inner, (y, z), (f[:T], pairs))
    g_x = jax.grad(p.lower)
    apart = g_x(x, y, g[2 * T]) - g_x(x, z, g[2 * T + 1])
    return x - RATIO * alpha * lam * apart, y, z


def saba(p: Problem, s: State, k: Array, rows: Rows) -> State:
    """Dagreou et al. 2022, Algorithm 1 with SAGA's estimates, by blocks of consecutive rows."""
    x, y, v, *memory = s
    i, j = rows[0][0, 0], rows[1][0, 0]
    f_y, f_y_all, f_mean = saga(upper_part(p, y, i), memory[0], memory[1], i)
    found = [
        saga(new, memory[at], memory[at + 1], j)
        for new, at in zip(lower_parts(p, x, y, v, j), (2, 4, 6))
    ]
    (g_y, _, _), (curved, _, _), (mixed, _, _) = found
    tables = [t for _, table, mean in found for t in (table, mean)]
    step_y, step_v = INNER_LR * g_y, INNER_LR * (curved - f_y)
    return x + OUTER_LR * mixed, y - step_y, v - step_v, f_y_all, f_mean, *tables


def saga(new: Array, table: Array, mean: Array, b: Array) -> tuple[Array, Array, Array]:
    """SAGA's estimate, the table with the new entry of block b, and its mean."""
    change = new - table[b]
    return change + mean, table.at[b].set(new), mean + change / len(table)


def block_rows(b: Array, many: int) -> Array:
    """The numbers of the rows of block b, of which there are `many` with so many rows."""
    return b * many + jnp.arange(many)


def upper_part(p: Problem, y: Array, i: Array) -> Array:
    """f_y on block i of f's rows; f does not depend on x."""
    found: Array = jax.grad(p.upper)(y, block_rows(i, len(p.val) // (len(p.val) // BLOCK)))
    return found


def lower_parts(p: Problem, x: Array, y: Array, v: Array, j: Array) -> tuple[Array, Array, Array]:
    """g_y, g_yy v and g_xy v on block j of g's rows."""
    g_y, mixed, curved = p.products(x, y, v, block_rows(j, len(p.train) // (len(p.train) // BLOCK)))
    return g_y, curved, mixed


def filled_tables(p: Problem) -> State:
    """v = 0, and SABA's tables, each with its mean, at the start."""
    x, y = p.start
    v = jnp.zeros_like(y)
    f = jax.lax.map(partial(upper_part, p, y), jnp.arange(len(p.val) // BLOCK))
    g = jax.lax.map(partial(lower_parts, p, x, y, v), jnp.arange(len(p.train) // BLOCK))
    return v, *(t for table in (f, *g) for t in (table, table.mean(0)))


def hessian_product(p: Problem, x: Array, y: Array, v: Array, i: Array) -> Array:
    """g_yy v."""
    found: Array = jax.jvp(lambda y: p.g_y(x, y, i), (y,), (v,))[1]
    return found


def zero(p: Problem) -> State:
    """v = 0."""
    return (jnp.zeros_like(p.start[1]),)


def nothing(p: Problem) -> State:
    """x and y are the whole state."""
    return ()


def start_of_z(p: Problem) -> State:
    """z, which starts as y."""
    return (p.start[1],)


# a step, how many batches of f and of g it takes, and which tensors besides x and y a state has
METHODS: dict[str, tuple[Callable[..., State], int, int, Callable[[Problem], State]]] = {
    "SOBA": (soba, 1, 1, zero),
    "AmIGO": (amigo, 1, T + Q + 1, zero),
    "stocBiO": (stocbio, 1, T + Q + 1, nothing),
    "F2SA": (f2sa, T + 1, 2 * T + 2, start_of_z),
    "SABA": (saba, 1, 1, filled_tables),
}


def draw_rows(p: Problem, method: str, key: Array) -> Rows:
    """The numbers of the rows of a step's batches, drawn with replacement; SABA's blocks."""
    _, many_f, many_g, _ = METHODS[method]
    first, second = jax.random.split(key)
    if method == "SABA":
        i = jax.random.randint(first, (1, 1), 0, len(p.val) // BLOCK)
        return i, jax.random.randint(second, (1, 1), 0, len(p.train) // BLOCK)
    f = jax.random.randint(first, (many_f, BATCH), 0, len(p.val))
    return f, jax.random.randint(second, (many_g, BATCH), 0, len(p.train))


def steps_of(p: Problem, method: str, steps: int) -> Any:
    """So many steps with batches of their own, as one function, which is compiled here."""
    step = METHODS[method][0]

    @jax.jit
    def take(state: State, key: Array) -> State:
        def one(s: State, k: Array) -> tuple[State, None]:
            return step(p, s, k, draw_rows(p, method, jax.random.fold_in(key, k))), None

        return jax.lax.scan(one, state, jnp.arange(steps))[0]

    return take


def answering(folder: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The function that answers requests about the folder's problem."""
    found: list[Problem] = []
    compiled: dict[tuple[str, int], Any] = {}
    whole: dict[str, Callable[[], Array]] = {}

    def make_work(request: dict[str, Any]) -> Callable[[], Array]:
        if request["work"] == "toy":
            return toy(request["settings"], request["steps"])
        if not found:
            found.append(Problem(folder))
        p = found[0]
        if request["work"] in DIRECTIONS:
            direction = jax.jit(partial(DIRECTIONS[request["work"]], p))
            return lambda: direction(*p.start)
        points, lanes = np.load(folder / "lanes.npz"), request["lanes"]
        steps = request.get("steps")
        together = jax.jit(partial(gradients, p) if steps is None else partial(descents, p, steps))
        return partial(together, jnp.array(points["x"][:lanes]), jnp.array(points["y"][:lanes]))

    def answer_whole(request: dict[str, Any]) -> dict[str, Any]:
        name = json.dumps({key: value for key, value in request.items() if key != "ask"})
        compiling = 0.0
        if name not in whole:
            begin = time.perf_counter()
            whole[name] = make_work(request)
            jax.block_until_ready(whole[name]())
            compiling = time.perf_counter() - begin
        begin = time.perf_counter()
        value = jax.block_until_ready(whole[name]())
        seconds = time.perf_counter() - begin
        if request["ask"] == "value":
            np.save(folder / "value.npy", np.asarray(value).ravel())
        return {"seconds": seconds, "compiling": compiling}

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["ask"] == "version":
            return {"version": jax.__version__}
        if "work" in request:
            return answer_whole(request)
        if not found:
            found.append(Problem(folder))
        p, method = found[0], request["method"]
        step, _, _, more = METHODS[method]
        state = (*p.start, *more(p))
        if request["ask"] == "ends":
            given = np.load(folder / f"{method}.npz")
            rows = jnp.array(given["f"]), jnp.array(given["g"])

            @jax.jit
            def take(state: State) -> State:
                def one(s: State, at: Any) -> tuple[State, None]:
                    return step(p, s, *at), None

                return jax.lax.scan(one, state, (jnp.arange(len(rows[0])), rows))[0]

            ends = take(state)
            return {"state": [np.asarray(t).ravel().tolist() for t in ends[:2]]}
        key, steps = jax.random.key(0), request["steps"]
        begin, compiling = time.perf_counter(), 0.0
        if (method, steps) not in compiled:
            compiled[method, steps] = steps_of(p, method, steps).lower(state, key).compile()
            compiling = time.perf_counter() - begin
        begin = time.perf_counter()
        jax.block_until_ready(compiled[method, steps](state, key))
        return {"seconds": time.perf_counter() - begin, "compiling": compiling}

    return answer


def use_cores(many: int) -> None:
    """Have this process use so many cores, from which JAX takes the number of its threads."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:many])


if __name__ == "__main__":
    answer_requests(answering(Path(sys.argv[1])), use_cores)

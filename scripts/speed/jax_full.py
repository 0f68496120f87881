"""Full-batch work in JAX, for jax_server.py: gradients, hypergradients, and a toy.

It is written as JAX's users write it: losses are differentiated by jax.grad, jax.jvp and jax.vjp,
loops are lax.scan, and what takes a turn is one jitted function.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from scripts.speed.workload import ETA, INNER_LR, K, T

if TYPE_CHECKING:
    from scripts.speed.jax_server import Problem

Direction = Callable[["Problem", Array, Array], Array]


def after_inner_steps(p: "Problem", x: Array, y: Array, steps: int = T) -> Array:
    """y after so many steps of gradient descent on g."""
    return jax.lax.scan(lambda y, _: (y - INNER_LR * p.g_y(x, y), None), y, length=steps)[0]


def aid_cg(p: "Problem", x: Array, y: Array) -> Array:
    """The hypergradient -g_xy v, where v is of K iterations of conjugate gradients."""
    y = after_inner_steps(p, x, y)
    curved = jax.linearize(lambda y: p.g_y(x, y), y)[1]
    v = jax.scipy.sparse.linalg.cg(curved, jax.grad(p.upper)(y), maxiter=K, tol=0.0)[0]
    return -p.products(x, y, v)[1]


def aid_neumann(p: "Problem", x: Array, y: Array) -> Array:
    """The same, where v is a Neumann series of K further terms."""
    y = after_inner_steps(p, x, y)
    curved = jax.linearize(lambda y: p.g_y(x, y), y)[1]
    f_y = jax.grad(p.upper)(y)

    def factor(r: Array, _: None) -> tuple[Array, Array]:
        r = r - INNER_LR * curved(r)
        return r, r

    terms = jax.lax.scan(factor, f_y, length=K)[1]
    return -p.products(x, y, INNER_LR * (f_y + terms.sum(0)))[1]


def itd(p: "Problem", x: Array, y: Array) -> Array:
    """The gradient of f through the inner steps."""
    found: Array = jax.grad(lambda x: p.upper(after_inner_steps(p, x, y)))(x)
    return found


def bome(p: "Problem", x: Array, y: Array) -> Array:
    """The directions in x and y of Ye et al. 2022, Algorithm 1, with phi = eta |grad q|^2."""
    y_T = after_inner_steps(p, x, y)
    g_x, g_y = jax.grad(p.lower, argnums=(0, 1))(x, y)
    q_x, q_y = g_x - jax.grad(p.lower)(x, y_T), g_y
    f_y = jax.grad(p.upper)(y)
    lam = jnp.maximum(ETA - (f_y * q_y).sum() / ((q_x**2).sum() + (q_y**2).sum()), 0)
    return jnp.concatenate([lam * q_x, (f_y + lam * q_y).ravel()])


DIRECTIONS: dict[str, Direction] = {
    "AID-CG": aid_cg,
    "AID-Neumann": aid_neumann,
    "ITD": itd,
    "BOME": bome,
}


def gradients(p: "Problem", xs: Array, ys: Array) -> Array:
    """The gradient of g in y at each of the lanes' points, [lanes, 10, 784]."""
    return jax.vmap(p.g_y)(xs, ys)


def descents(p: "Problem", steps: int, xs: Array, ys: Array) -> Array:
    """How far so many steps of gradient descent on g move y, from each of the lanes' points."""
    return jax.vmap(lambda x, y: after_inner_steps(p, x, y, steps))(xs, ys) - ys


def toy(settings: dict[str, Any], steps: int) -> Callable[[], Array]:
    """So many steps of BOME on the coreset toy of tasks/toy.py as a function that gives x and y.

    settings: the method's, and `points`, `goal`, `scale`, x and y of the toy.
    """
    points, goal = jnp.array(settings["points"]), jnp.array(settings["goal"])
    outer_lr, lower_lr, inner_lr = (settings[k] for k in ("outer_lr", "lower_lr", "inner_lr"))

    def upper(y: Array) -> Array:
        return settings["scale"] * ((y - goal) ** 2).sum()

    def lower(x: Array, y: Array) -> Array:
        return ((y - jax.nn.softmax(x) @ points) ** 2).sum()

    g_y = jax.grad(lower, argnums=1)

    def step(s: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        x, y = s
        inner = settings["T"]
        y_T = jax.lax.scan(lambda y, _: (y - inner_lr * g_y(x, y), None), y, length=inner)[0]
        g_x, q_y = jax.grad(lower, argnums=(0, 1))(x, y)
        q_x, f_y = g_x - jax.grad(lower)(x, y_T), jax.grad(upper)(y)
        qq = (q_x**2).sum() + (q_y**2).sum()
        lam = jnp.where(qq > 0, jnp.maximum(settings["eta"] - (f_y * q_y).sum() / qq, 0), 0)
        return (x - outer_lr * lam * q_x, y - lower_lr * (f_y + lam * q_y)), None

    start = jnp.array(settings["x"]), jnp.array(settings["y"])
    whole = jax.jit(lambda s: jnp.concatenate(jax.lax.scan(step, s, length=steps)[0]))
    return lambda: whole(start)

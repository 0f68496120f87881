"""`solve`: a method of the suite on losses of the caller's own."""

import warnings
from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Moment
from bench.core.draw import Draw, generator
from bench.core.limits import Limits
from bench.core.loop import Diverged, Standing, run
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Task
from bench.numerics.packing import of_running_statistics
from bench.runs.machine import clock
from bench.runs.screen import Screen
from bench.solving import methods
from bench.solving.problem import Losses, Measures, Problem, problem
from bench.solving.solution import Interrupted, Row, Solution

EXPLODED = 1000.0  # times the loss at the start, or 1: a run that ends so is warned of


def solve(
    upper: Losses,
    lower: Losses | None = None,
    x0: Any = None,
    y0: Any = None,
    method: str | Callable[..., Algorithm] = "bome",
    *,
    steps: int = 500,
    seed: int = 0,
    every: int = 10,
    upper_data: Any = None,
    lower_data: Any = None,
    x_in: Any = None,
    y_in: Any = None,
    evaluate: Measures | None = None,
    seconds: float | None = None,
    stop: Callable[[Mapping[str, float]], bool] | None = None,
    progress: bool | None = None,
    after: Solution | None = None,
    **settings: Any,
) -> Solution:
    """min over x of upper(x, y*(x)), where y*(x) = argmin over y of lower(x, y).

    upper, lower: the losses, each f(x, y), or f(x, y, batch) where there is data for it. Each
    returns one number. lower=None: a method for minimax problems (`gda`) takes it as -upper; one
    for a single level (`fw`, with y0=None) minimises upper(x) over x_in.

    x0, y0: where x and y start. A tensor, a dict, list or tuple of tensors, or an nn.Module, whose
    trainable parameters are meant: the loss then receives what is called as the module is
    (`y(images)`), and has `y.parameters()`. The losses and the solution have x and y in the form
    in which they are given here. What is given is not changed: the solution has a module of its
    own. The tensors of x0 have one floating dtype and one device, on which the method runs, and
    so have those of y0.

    method: a name in `bench.methods()`, or a function of yours that returns an Algorithm.
    settings: the method's own, such as outer_lr=0.1, T=20 or batch=32;
    `print(bench.methods()["bome"].help)` tells them. A rule of descent, such as `outer`, is written
    outer_rule="adam", or outer_rule={"rule": "momentum", "momentum": 0.5}; with
    outer_rule={"decay": 0.5} step k = 0, 1, 2, ... has outer_lr / (1 + k)^0.5.

    upper_data, lower_data: tensors whose rows are samples, or a tuple or dict of them; a Dataset;
    or a function draw(rng, size) or draw(rng, size, step), with rng a torch.Generator and size the
    method's `batch`, or None, which asks for all the data, as each row of the history does. Batches
    are drawn with replacement, and are the same for the same seed. With batch=None, the default of
    most methods, a batch is all the data there is. Tensors of data are brought to x0's device and
    keep their dtype; what a loss closes over is yours to move.

    x_in, y_in: sets such as `bench.box(0, 1)` or `bench.l2_ball(1)`, in which x and y stay; of
    trees, one set for all tensors together, or a tree of sets in the same form. Methods with second
    derivatives take y for unconstrained: where y_in holds y back in the end, `solve` warns.

    steps: of x. seed: names the batches. every: steps between rows of the history. evaluate(x, y):
    a dict of further numbers for each row, neither timed nor counted, with y=None where there is no
    y; a number whose name ends in loss must be finite. seconds: stop after so many. stop(row): is
    called with each row of the history, such as {"step": 10, "upper_loss": 0.3, ...}; the run ends
    at the first for which it returns True. With `after` it is asked of new rows, and once more of
    the last one if a `stop` had ended that run. progress: whether to show a bar; None: in a
    terminal, or a notebook that has ipywidgets.

    after: a solution of the same call with fewer steps. The run goes on from its end, and comes to
    the bits of a run that did not stop there. steps are those of both, and x0 and y0 say in which
    form x and y are.

    Raises BadSetting, in one line that says what to write instead, and Diverged, whose `history`
    has the rows so far. Ctrl-C raises Interrupted, a KeyboardInterrupt whose `solution` has the
    steps so far, and from which a run goes on by `after`.
    """
    settings = {key: without_numpy(value) for key, value in settings.items()}
    steps, every, seed, seconds = map(without_numpy, (steps, every, seed, seconds))
    check_call(steps, every, seed, seconds, stop, progress)
    name, algorithm, whole = methods.chosen(method, settings, steps)
    check_kind(name, algorithm, lower, y0)
    if x0 is None:
        raise BadSetting("x0: write where x starts")
    posed = problem(
        upper, lower, x0, y0, upper_data, lower_data, x_in, y_in, evaluate,
        minimax=algorithm.kind == "minimax", seed=seed,
    )  # fmt: skip
    check_set(name, algorithm, posed.task)
    if isinstance(method, str):  # its defaults know nothing of the caller's sets
        check_defaults(name, whole.keys() - settings.keys(), x_in)
    if settings.get("batch") is not None and upper_data is None and lower_data is None:
        raise BadSetting(f"batch={settings['batch']}: there are no data; leave it out")
    if after is not None:
        check_after(after, name, whole, seed, steps, posed)
    check_losses(algorithm, posed.task, seed)
    history: list[dict[str, float]] = [] if after is None else [*after.history]
    begun = None if after is None else after.end
    done = 0 if begun is None else begun.step
    stopped = False

    def is_over(row: Mapping[str, float]) -> bool:
        nonlocal stopped
        stopped = stop is not None and bool(stop(Row(row)))
        return stopped

    if after is not None and after.stopped and is_over(history[-1]):
        steps = done  # the run had come to where it ends
    screen = Screen(name, steps, done, posed.task.metric, shown=progress)

    def add_row(row: dict[str, Any]) -> None:
        history.append(Row(row))
        screen.show_row(row)

    taken = [] if begun is None else [begun]  # the last standing, once there is one

    def note(standing: Standing) -> None:
        taken[:] = [standing]
        screen.show_step(standing.step)

    def solution_at(standing: Standing) -> Solution:
        squared = standing.info.get("hypergrad_sq")
        return Solution(
            x=posed.x.keep(standing.state.x),
            y=None if posed.y is None else posed.y.keep(standing.state.y),
            history=[row for row in history if row["step"] <= standing.step],
            calls=dict(standing.calls),
            samples=dict(standing.samples),
            seconds=standing.seconds,
            hypergradient_norm=None if squared is None else float(squared) ** 0.5,
            method=name,
            settings=whole,
            seed=seed,
            stopped=stopped,
            end=standing,
        )

    with screen:
        try:
            end = run(
                posed.task, algorithm, seed=seed, steps=steps, every=every,
                limits=Limits(seconds=seconds),
                until=None if stop is None else is_over, start=begun, on_row=add_row, on_pause=note,
                now=clock(posed.x.start.device),
            )  # fmt: skip
        except BadSetting as error:  # a step finds it out, such as more blocks than rows
            raise BadSetting(str(error).replace("algorithm.", "")) from None
        except Diverged as error:
            told = Diverged(f"{error}{smaller_steps(whole)}")
            told.history = history
            raise told from None
        except KeyboardInterrupt:
            if not taken:
                raise
            raise Interrupted(solution_at(taken[0])) from None
    before, behind = (row.get("upper_loss", 0.0) for row in (history[0], history[-1]))
    if abs(behind) > EXPLODED * max(1.0, abs(before)):
        warnings.warn(
            f"upper_loss went from {before:.3g} to {behind:.3g}{smaller_steps(whole)}", stacklevel=2
        )
    if kinds := of_running_statistics([x0, y0]):
        warnings.warn(
            f"the running statistics of {', '.join(kinds)} stay as they were given: let the "
            "solution's module see the data once in train() before its eval()",
            stacklevel=2,
        )
    if y_in is not None and not algorithm.first_order and is_held(posed.task, end, seed):
        warnings.warn(
            "y ends where y_in holds it back: the hypergradient of this method is that of a y "
            "without y_in, so that x need not be a solution",
            stacklevel=2,
        )
    return solution_at(end)


def check_call(steps: Any, every: Any, seed: Any, seconds: Any, stop: Any, progress: Any) -> None:
    """Raise BadSetting unless `solve` can be called here, and with these values."""
    if torch.is_inference_mode_enabled():
        raise BadSetting("solve: torch.inference_mode has no derivatives; call it outside of that")
    for key, value, least in (("steps", steps, 1), ("every", every, 1), ("seed", seed, 0)):
        if type(value) is not int or value < least:
            raise BadSetting(f"{key}={value}: write an integer of at least {least}")
    if seconds is not None and not (type(seconds) in (int, float) and seconds > 0):
        raise BadSetting(f"seconds={seconds}: write a number above 0")
    if progress is not None and type(progress) is not bool:
        raise BadSetting(f"progress={progress}: write True, False or None")
    if stop is not None and not callable(stop):
        raise BadSetting(f"stop={stop}: write a function that is given a row of the history")


def check_defaults(method: str, left_out: Set[str], x_in: Any) -> None:
    """Raise BadSetting if the caller leaves out what describes the caller's own set of x."""
    if "diameter" in left_out:
        raise BadSetting(
            "diameter: write the largest distance between two points of x_in, such as 2.0 for "
            "bench.l2_ball(1.0)"
        )
    if x_in is not None and {"low", "high"} & left_out:
        raise BadSetting(
            f"low, high: write the box from which {method} proposes x, such as low=0, high=1 for "
            "bench.box(0, 1)"
        )


def smaller_steps(settings: Mapping[str, Any]) -> str:
    """What to try where a method's step sizes, if it has any, seem too large."""
    sizes = {key: value for key, value in settings.items() if key.endswith("_lr")}
    said = ", ".join(f"{key}={value}" for key, value in sizes.items())
    return f"; try smaller step sizes than {said}" if said else ""


def check_after(
    after: Solution, method: str, settings: Mapping[str, Any], seed: int, steps: int, posed: Problem
) -> None:
    """Raise BadSetting unless a run of so many steps can go on from the end of this solution."""
    if not isinstance(after, Solution):
        raise BadSetting(f"after: is a {type(after).__name__}; write what solve has returned")
    then, now = {"method": after.method, "seed": after.seed}, {"method": method, "seed": seed}
    then, now = then | dict(after.settings), now | dict(settings)
    for key in {**then, **now}:
        if then.get(key) != now.get(key):
            raise BadSetting(f"after: was made with {key}={then.get(key)}; write the same")
    if after.end.step >= steps:
        raise BadSetting(f"steps={steps}: after has {after.end.step}; write those of both")
    for key, packed in {"x": posed.x, "y": posed.y}.items():
        found = getattr(after.end.state, key)
        start = found if packed is None else packed.start
        if (found.shape, found.dtype) != (start.shape, start.dtype):
            raise BadSetting(f"after: its {key} has another shape or type than {key}0")


def check_losses(algorithm: Algorithm, task: Task, seed: int) -> None:
    """Raise BadSetting if x or y starts at what is not finite, or if a loss that the method
    differentiates does not depend on what it is differentiated in, as behind a .detach()."""
    x, y = task.init(generator(seed, "init"))
    for key, start in {"x0": x, "y0": y}.items():
        if not start.isfinite().all():
            raise BadSetting(f"{key}: is not finite everywhere")
    cost = algorithm.cost_at(Moment())
    draw = Draw(task, seed, 0)
    x, y = x.requires_grad_(), y.requires_grad_()
    with torch.enable_grad():
        asked = dict.fromkeys(("grad_f", "grad_g"), 1) if cost is None else cost.calls
        lower = task.lower(x, y, draw.g(None)) if task.lower and asked["grad_g"] else None
        upper = task.upper(x, y, draw.f(None)) if asked["grad_f"] else None
    for name, value in {"lower": lower, "upper": upper}.items():
        if value is not None and not value.isfinite():
            raise BadSetting(f"{name}: is {value.item()} at the start; are all data finite?")
    if lower is not None and not depends(lower, y):
        raise BadSetting("lower: does not depend on y; is there a .detach() in it?")
    if lower is not None and upper is not None and not (depends(lower, x) or depends(upper, x)):
        raise BadSetting("x0: neither loss depends on x; is there a .detach() in them?")
    if upper is not None and not (depends(upper, x) or depends(upper, y)):
        raise BadSetting("upper: depends on neither x nor y; is there a .detach() in it?")


def without_numpy(value: Any) -> Any:
    """A number of NumPy's as one of Python's; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def depends(value: Tensor, on: Tensor) -> bool:
    """Whether autograd finds a way from a value to a leaf."""
    if not value.requires_grad:
        return False
    (found,) = torch.autograd.grad(value, on, retain_graph=True, allow_unused=True)
    return found is not None


def is_held(task: Task, end: Standing, seed: int) -> bool:
    """Whether the set of y keeps the end's y from a step down g."""
    x, y = end.state.x, end.state.y
    with torch.no_grad():
        slope = Oracle(task).g_y(x, y, Draw(task, seed, 0).g(None))
        size = float(slope.norm())
        if task.lower_feasible.project is None or size == 0:
            return False
        stepped = y - 1e-3 * (1 + float(y.norm())) / size * slope
        moved = float((task.lower_feasible.project(stepped) - stepped).norm())
    return moved > 1e-6 * (1 + float(y.norm()))


def check_kind(method: str, algorithm: Algorithm, lower: Losses | None, y0: Any) -> None:
    """Raise BadSetting, naming the methods that suit, for a problem that a method is not for."""
    kind = "single-level" if y0 is None else "bilevel"
    if y0 is not None and lower is None:
        kind = "minimax"
    if y0 is None and lower is not None:
        raise BadSetting("y0: write where y starts, as there is a lower loss")
    if algorithm.kind == kind and not algorithm.on_stream:
        return
    wants = methods.problems_of(algorithm)
    others = ", ".join(methods.suiting(kind))  # type: ignore[arg-type]
    here = {
        "bilevel": "this one has a lower loss",
        "minimax": "this one has a y and no lower loss",
        "single-level": "this one has x alone",
    }[kind]
    raise BadSetting(f"method={method}: is for {wants}, and {here}; for that there is {others}")


def check_set(method: str, algorithm: Algorithm, task: Task) -> None:
    """Raise BadSetting if a method cannot stay in the set of x."""
    cost = algorithm.cost_at(Moment())
    by_lmo = cost is not None and cost.calls["lmo"] > 0
    if by_lmo and task.feasible.lmo is None:
        raise BadSetting(
            f"method={method}: write x_in=..., a set with a linear minimisation oracle, "
            "such as bench.l2_ball(1.0)"
        )
    if not by_lmo and task.feasible.project is None and task.feasible.lmo is not None:
        fitting = ", ".join(n for n in methods.suiting(algorithm.kind) if uses_lmo(n))
        others = f"; methods without: {fitting}" if fitting else ", as all for such a problem do"
        raise BadSetting(f"x_in: this set has no projection, which {method} needs{others}")


def uses_lmo(name: str) -> bool:
    """Whether a method reaches its set by linear minimisation."""
    cost = methods.methods()[name].cost
    return cost is not None and cost.calls["lmo"] > 0

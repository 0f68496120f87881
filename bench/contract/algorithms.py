"""What every method promises, whoever wrote it: each promise is a check of its own."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves

from bench.contract.broken import Broken, require
from bench.contract.problems import on_a_ball, quadratic, zero_sum
from bench.core.algorithm import KEYS, Algorithm, Cost, Moment, State
from bench.core.draw import Draw
from bench.core.loop import Standing, advance, first, run
from bench.core.oracle import Oracle
from bench.core.task import Task
from bench.solving import methods

STEPS = 12  # whose costs are looked at: restarts and growing loops are among them
PURE = "step(oracle, state, draw) may use nothing else, and may write into none of its arguments"
NAMED = "randomness may come from `draw` alone: draw.f, draw.g, draw.normal, draw.integer"


def check_algorithm(
    algorithm: str | Algorithm | Callable[..., Algorithm],
    task: Task | None = None,
    *,
    steps: int = 300,
    descends: bool = True,
    **settings: Any,
) -> None:
    """Hold a method against all that a method promises, in a few seconds; raises Broken.

    algorithm: a name in `bench.methods()`; a function, which is called with the settings; or what
    such a function returns. Step sizes of about 0.1 to 0.5 suit the problems here.

    task: where the method is tried; None: a small problem of its kind (bench.contract.quadratic,
    zero_sum or on_a_ball). steps: in which the metric of the task has to fall to 0.7 of what it
    was above its value at the optimum. descends=False: for a method that need not get there.
    """
    made = algorithm_of(algorithm, settings)
    tried = task or problem_for(made)
    check_form(made, tried)
    check_purity(made, tried)
    check_repeats(made, tried)
    check_going_on(made, tried)
    check_cost(made, tried)
    if descends:
        check_descent(made, tried, steps)


def algorithm_of(given: Any, settings: dict[str, Any]) -> Algorithm:
    """The method that `check_algorithm` is given; raises BadSetting."""
    if isinstance(given, Algorithm):
        return given
    return methods.chosen(given, settings, steps=300).algorithm


def problem_for(algorithm: Algorithm) -> Task:
    """A small problem of the kind that a method is for; raises TypeError where there is none."""
    problems = {"bilevel": quadratic, "minimax": zero_sum, "single-level": on_a_ball}
    if algorithm.on_stream or algorithm.kind not in problems:
        raise TypeError(f"for {methods.problems_of(algorithm)} there is no problem here: give task")
    return problems[algorithm.kind]()


def stepped(task: Task, algorithm: Algorithm, steps: int, seed: int = 0) -> Standing:
    """The standing after some steps from the start."""
    standing = first(task, algorithm, seed)
    with torch.no_grad():
        for _ in range(steps):
            standing = advance(task, algorithm, seed, standing)
    return standing


def same(a: State, b: State) -> bool:
    """Whether two states have the same tensors, bit by bit."""
    pairs = zip(tree_leaves(a), tree_leaves(b), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def check_form(algorithm: Algorithm, task: Task) -> None:
    """A state is tensors, and a step keeps their number, shapes and dtypes; no graph is carried
    from step to step. Raises Broken."""
    before, after = (stepped(task, algorithm, n).state for n in (0, 2))
    for key in "xy":
        require(hasattr(before, key), f"the state has no {key}", "what init(x0, y0) returns")
    look = "what init and step return: a NamedTuple of tensors, with numbers as 0-d tensors"
    whole = [tree_flatten(state)[1] for state in (before, after)]
    require(whole[0] == whole[1], "a step changes the form of the state", look)
    for a, b in zip(tree_leaves(before), tree_leaves(after), strict=True):
        tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        require(tensors, f"the state has a {type(b).__name__}", look)
        kinds = [(tuple(t.shape), t.dtype, t.device) for t in (a, b)]
        require(kinds[0] == kinds[1], f"a step makes {kinds[1]} of {kinds[0]}", look)
        require(
            not b.requires_grad, "the state carries a graph", "detach what is kept in the state"
        )


def check_purity(algorithm: Algorithm, task: Task) -> None:
    """A step leaves the state that it gets as it is, and gives the same for the same arguments.

    Raises Broken.
    """
    state = stepped(task, algorithm, 1).state
    copy = [leaf.clone() for leaf in tree_leaves(state)]
    with torch.no_grad():
        ends = [algorithm.step(Oracle(task), state, Draw(task, 0, 1))[0] for _ in range(2)]
    left = all(torch.equal(a, b) for a, b in zip(copy, tree_leaves(state), strict=True))
    require(left, "a step writes into the state that it is given", f"operations in place; {PURE}")
    require(same(*ends), "the same step gives two results", f"{NAMED}; {PURE}")


def check_repeats(algorithm: Algorithm, task: Task, *, noisy: bool = False) -> None:
    """The same seed gives the same run. noisy: another seed gives another run, as is so where
    batches are drawn. Raises Broken."""
    a, b, c = (stepped(task, algorithm, 5, seed).state for seed in (0, 0, 1))
    require(same(a, b), "the same seed gives two runs", NAMED)
    if noisy:
        require(not same(a, c), "another seed gives the same run", "whether draw.f(batch) is asked")


def check_going_on(algorithm: Algorithm, task: Task) -> None:
    """A run that goes on from its middle has the bits, counts and rows of one that was not stopped.

    Raises Broken.
    """
    budget: dict[str, Any] = {"seed": 1, "steps": 9, "every": 3}
    rows: list[dict[str, Any]] = []
    again: list[dict[str, Any]] = []
    kept: list[Standing] = []
    whole = run(task, algorithm, **budget, on_row=rows.append, on_pause=kept.append)
    middle = next(s for s in kept if s.step >= 4)._replace(info={})
    copied = [leaf.clone() for leaf in tree_leaves(middle.state)]
    parts = run(task, algorithm, **budget, start=middle, on_row=again.append)
    look = f"what a step remembers outside of its state; {PURE}"
    require(same(whole.state, parts.state), "a run that goes on has another end", look)
    require(whole.calls == parts.calls, "a run that goes on has other counts", look)
    require(same(copied, middle.state), "a run writes into the state that it goes on from", PURE)
    for row in rows + again:
        del row["seconds"], row["cpu_seconds"]
    require(rows[-len(again) :] == again, "a run that goes on has other rows", look)


def check_cost(algorithm: Algorithm, task: Task) -> None:
    """Every step calls the oracle as often as the method says. Raises Broken."""
    state = first(task, algorithm, 0).state
    for k in range(STEPS):
        oracle = Oracle(task, algorithm.first_order)
        with torch.no_grad():
            try:
                state, _ = algorithm.step(oracle, state, Draw(task, 0, k))
            except TypeError as error:
                if "promises first order" not in str(error):
                    raise
                raise Broken(
                    "the method takes second derivatives, and says first_order=True",
                    "Algorithm(..., first_order=...)",
                ) from None
        cost = algorithm.cost_at(Moment(k))
        if cost is None:
            raise Broken(
                "the method does not say what its steps cost", "Algorithm(..., cost=Cost())"
            )
        compare_calls(cost, oracle, k)


def compare_calls(cost: Cost, oracle: Oracle, step: int) -> None:
    """Raise Broken if a step's calls are not those of its cost."""
    sure = certain_part(cost).calls
    for key in KEYS:
        least, most, found = sure[key], cost.calls[key], oracle.calls[key]
        if key == "project" and most == 0:  # every method projects where there are constraints
            continue
        said = f"{least}" if least == most else f"{least} to {most}"
        require(
            least <= found <= most,
            f"step {step} calls {key} {found} times, and the method says {said}",
            "the Cost that is handed to Algorithm",
        )


def certain_part(cost: Cost) -> Cost:
    """The parts of a cost that are called in any case."""
    return sum((part for part in cost.parts if not part.at_most), Cost())


def check_descent(algorithm: Algorithm, task: Task, steps: int) -> None:
    """The task's metric falls to 0.7 of what it was above its value at the optimum, if the task
    has an optimum in its report. Raises Broken."""
    start, end = stepped(task, algorithm, 0), stepped(task, algorithm, steps)
    if not all(bool(leaf.isfinite().all()) for leaf in tree_leaves((end.state.x, end.state.y))):
        raise Broken(f"x or y is not finite after {steps} steps", "the step sizes, and signs")

    def metric(x: torch.Tensor, y: torch.Tensor) -> float:
        return float(task.evaluate(x, y, 0)[task.metric])

    known = task.report.optimum
    best = 0.0 if known is None else metric(known["x"], known["y"])
    before, after = (metric(s.state.x, s.state.y) - best for s in (start, end))
    require(
        after < 0.7 * before,
        f"in {steps} steps {task.metric} above the optimum's goes from {before:.4g} to {after:.4g}",
        "signs in the direction of x, the step sizes, and whether y follows x at all",
    )

"""Black-box baselines: random search (Bergstra and Bengio, JMLR 2012) and Optuna's tree-structured
Parzen estimator (Akiba et al., KDD 2019; Bergstra et al., NeurIPS 2011), which only see the value
of f at the end of a training run.

Each step proposes an upper variable in the box [low, high]^p, takes T steps of gradient descent
in y from where y started, and compares f. The state's x and y are the best so far.

Where `batch` is set, one batch of each level serves a whole step.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting, Count, Finite, Positive

MOST = (
    100  # coordinates of x: the sampler models each by itself, in Python, and takes long for more
)


class State(NamedTuple):
    x: Tensor
    y: Tensor
    f: Tensor  # the value of f at x and y, the best so far
    y_0: Tensor  # where every training run starts
    tried: Tensor  # [trials, p]: the last proposals; random search keeps none
    values: Tensor  # [trials]: what f was for them


def random_search(
    inner_lr: Positive,
    low: Finite = -1.0,
    high: Finite = 1.0,
    T: Count = 100,
    batch: Count | None = None,
) -> Algorithm:
    """Random search: every proposal is uniform in the box [low, high]^p.

    inner_lr, T: the size and the number of the inner steps. batch: the samples of a batch; None:
    all the data. Raises BadSetting for an empty box.

    Caveat: it is only as close as its best proposal.
    """
    _check_box(low, high)

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        x = o.project(low + (high - low) * draw.uniform(s.x))
        y, f = _train(o, x, s.y_0, inner_lr, T, draw, batch)
        return _keep_better(s, x, y, f), {"value": f}

    cost = Cost(grad_g=T, value_f=1, batch=batch)
    return Algorithm(lambda x, y: _start(x, y, 0), step, first_order=True, cost=cost)


def optuna_tpe(
    inner_lr: Positive,
    low: Finite = -1.0,
    high: Finite = 1.0,
    T: Count = 100,
    trials: Count = 200,
    batch: Count | None = None,
) -> Algorithm:
    """Optuna's TPE: it proposes from what it remembers of the last `trials` proposals.

    low, high: the box of the proposals. inner_lr, T: the size and the number of the inner steps.
    batch: the samples of a batch; None: all the data. Raises BadSetting for an empty box, without
    optuna, or for more than 100 coordinates.

    Caveat: it is only as close as its best proposal.
    """
    _check_box(low, high)
    try:
        import optuna
    except ImportError:
        raise BadSetting(
            "algorithm=optuna_tpe: optuna is not installed; write pip install bilevel-bench[optuna]"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def propose(s: State, draw: Draw) -> Tensor:
        """The answer of a new study that is told the past: all state is in the tensors of s.

        It is told infinity for a value that is not a number, which Optuna refuses: so the sampler
        keeps away from where training fails. A failed trial would teach it nothing.
        """
        names = [f"x{i}" for i in range(s.x.numel())]
        interval = optuna.distributions.FloatDistribution(low, high)
        box: dict[str, optuna.distributions.BaseDistribution] = dict.fromkeys(names, interval)
        sampler = optuna.samplers.TPESampler(seed=draw.integer(2**31))
        study = optuna.create_study(sampler=sampler)
        known = min(draw.step, trials)
        for point, value in zip(s.tried[:known].tolist(), s.values[:known].tolist()):
            told = math.inf if math.isnan(value) else value
            study.add_trial(
                optuna.trial.create_trial(
                    params=dict(zip(names, point)), distributions=box, value=told
                )
            )
        asked = study.ask(box).params
        return s.x.new_tensor([asked[name] for name in names]).reshape(s.x.shape)

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        proposal = propose(s, draw)
        x = o.project(proposal)
        y, f = _train(o, x, s.y_0, inner_lr, T, draw, batch)
        slot = torch.tensor([draw.step % trials], device=s.x.device)
        tried = s.tried.index_copy(0, slot, proposal.reshape(1, -1))
        values = s.values.index_copy(0, slot, f.reshape(1))
        return _keep_better(s, x, y, f)._replace(tried=tried, values=values), {"value": f}

    def init(x: Tensor, y: Tensor) -> State:
        if x.numel() > MOST:
            raise BadSetting(
                f"algorithm=optuna_tpe: x has {x.numel()} coordinates, at most {MOST} can be "
                "sampled; write algorithm=random_search or another task"
            )
        return _start(x, y, trials)

    cost = Cost(grad_g=T, value_f=1, batch=batch)
    return Algorithm(init, step, first_order=True, cost=cost)


def _check_box(low: float, high: float) -> None:
    if low >= high:
        raise BadSetting(f"algorithm.low={low}: write a number below algorithm.high={high}")


def _start(x: Tensor, y: Tensor, trials: int) -> State:
    worst = x.new_full((), torch.finfo(x.dtype).max)
    return State(x, y, worst, y, x.new_zeros(trials, x.numel()), x.new_zeros(trials))


def _train(
    o: Oracle, x: Tensor, y: Tensor, inner_lr: float, T: int, draw: Draw, batch: int | None
) -> tuple[Tensor, Tensor]:
    """(y, f) after T gradient steps from y on one batch."""
    zeta = draw.g(batch)
    y = o.start(y, zeta)
    for _ in range(T):
        y = o.project_y(y - inner_lr * o.g_y(x, y, zeta))
    return y, o.f(x, y, draw.f(batch)).detach()


def _keep_better(s: State, x: Tensor, y: Tensor, f: Tensor) -> State:
    """The state with the better of its best and (x, y, f); nan and infinity are never better."""
    wins = f < s.f
    return s._replace(
        x=torch.where(wins, x, s.x), y=torch.where(wins, y, s.y), f=torch.where(wins, f, s.f)
    )

"""CTN: contextual transformation networks (Pham, Liu, Sahoo, Hoi, ICLR 2021), Algorithm 1, as the
bilevel problem of BOME's experiment (equation (14)), with any method for such problems:

    min over x of L(y*(x), x; M^sm_{<t+1}),   y*(x) = argmin_y L(y, x; D_t u M^em_{<t}).

Paper -> here: phi (BOME's v) -> x, theta -> y, M^em -> episodic, M^sm -> semantic, D_t -> new. The
upper batch is the whole semantic memory. The lower batch is the stream's batch and `replay` samples
of the episodic memory, with the answers that the network gave when their task was over.

`method` does the steps: "itd" differentiates through the inner loop; "fo_itd" takes its end as
given, as the released code does in spite of its text (its model/ctn.py copies parameters in place,
which cuts the graph). In every step the first image of the batch goes to the semantic memory, and
the image that went there in the step before is learned in its place, as in the released code.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost, Moment
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting, Count, Positive
from bench.core.stream import Samples, Stream, join, ring


class State(NamedTuple):
    inner: Any  # the method's state
    episodic: Tensor  # [tasks, samples of each]: numbers of samples
    semantic: Tensor  # [tasks, samples of each]: numbers of the controller's samples
    teacher: Tensor  # [tasks, samples of each, classes]: answers on episodic at the task's end

    @property
    def x(self) -> Tensor:
        return self.inner.x

    @property
    def y(self) -> Tensor:
        return self.inner.y


def ctn(
    method: Algorithm,
    outer_steps: Count = 2,
    episodic: Count = 40,
    semantic: Count = 10,
    replay: Count = 40,
    temperature: Positive = 5.0,
    past: Literal["before", "all"] = "before",
) -> Algorithm:
    """CTN.

    method: a method for bilevel problems that goes on from its last y and draws batches.
    outer_steps: how many steps of it are taken on one batch; all have the number of this step.
    episodic, semantic: how many samples of each task either memory holds. replay: how many samples
    of the episodic memory join a batch. temperature: the softmax's, for the remembered answers. The
    released code divides the gradient of x by outer_steps before it clamps it; a method with an
    outer_lr divided by outer_steps, and a clamp multiplied by it, does the same.
    past: which tasks are replayed in task t: those "before" it, as in the papers and the released
    code, or "all" so far, as in that code's first form (commit 6da5911), where the samples of t
    have no answers yet. Raises BadSetting in `init` on a task without a controller, or with batches
    of one image, and in the first step for a method that cuts all the data into blocks or comes
    back to past batches.
    """

    def init(x: Tensor, y: Tensor, stream: Stream) -> State:
        if len(x) == 0:
            raise BadSetting("task.embedding=0: CTN learns a controller; write task.embedding=16")
        if stream.batch < 2:
            raise BadSetting("task.batch=1: CTN keeps an image of each for its controller; write 2")
        em, sm = (
            torch.zeros(stream.tasks, size, dtype=torch.int64, device=y.device)
            for size in (episodic, semantic)
        )
        return State(method.init(x, y), em, sm, y.new_zeros(*em.shape, stream.classes))

    def recall(draw: Draw, em: Tensor, teacher: Tensor, tasks: int) -> Samples:
        """`replay` samples of the first so many tasks, with their answers."""
        places = draw.some(torch.arange(tasks * episodic, device=em.device), replay)
        samples = draw.stream.recall(em.flatten()[places])
        return samples._replace(teacher=teacher.flatten(0, 1)[places])

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        new, stream = draw.g(), draw.stream
        t = stream.task(draw.step)
        k = draw.step - t * stream.steps
        inner, teacher = s.inner, s.teacher

        if k == 0 and t > 0:  # The last task is over, and what the network answers is remembered.
            z = o.logits(inner.x, inner.y, stream.recall(s.episodic[t - 1]))
            teacher = teacher.clone()
            teacher[t - 1] = torch.softmax(z / temperature, 1)

        held = new.numbers[:1]
        back = s.semantic[t, (k - 1) % semantic][None] if k > 0 else held[:0]
        learned = torch.cat([new.numbers[1:], back])
        sm = ring(s.semantic, t, held, k)
        em = ring(s.episodic, t, learned, k * (stream.batch - 1) + max(k - 1, 0))

        xi = stream.recall(sm[: t + 1].flatten())
        for _ in range(outer_steps):
            zeta = stream.recall(learned)
            if t > 0:
                zeta = join(zeta, recall(draw, em, teacher, t if past == "before" else t + 1))
            inner, info = method.step(o, inner, draw.with_batches(xi, zeta))
        return State(inner, em, sm, teacher), info

    def cost(at: Moment) -> Cost:
        """The method's steps, and in a task's first step the answers of the last one's network."""
        inner = method.cost_at(at)
        assert inner is not None
        learned = at.samples - (at.task_step == 0)
        tasks = at.task if past == "before" else at.task + 1
        old = min(replay, tasks * episodic) if at.task else 0
        steps = inner.on((at.task + 1) * semantic, learned + old) * outer_steps
        return steps + Cost(value_g=1, batch=episodic) if at.task and at.task_step == 0 else steps

    known = cost if method.cost is not None else None
    return Algorithm(init, step, method.first_order, on_stream=True, cost=known)

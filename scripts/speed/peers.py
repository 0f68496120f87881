"""Peers that cannot share this environment: one of their own, and a process there that answers.

The process is `python -m MODULE FOLDER`; its module calls `answer_requests`. This file needs torch
only, and in the process not even that, as the peer's environment has no bench.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Ask = Callable[[dict[str, Any]], dict[str, Any]]


class Unavailable(Exception):
    """One line: why a peer takes no part."""


def environment(name: str, requirement: str, why: str, with_torch: bool = True) -> Path:
    """The Python of an environment with this requirement and our torch; raises Unavailable.

    The environment is made once, in the user's cache; `why` says what keeps the peer out of ours.
    """
    import torch

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bilevel-bench"
    release = torch.__version__.split("+")[0]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache / f"{name.lower()}-py{version}-{release}"
    python = folder / "bin" / "python"
    complete = folder / "complete"  # says with which requirement
    if complete.is_file() and complete.read_text() == requirement:
        return python
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        raise Unavailable(f"{name} needs uv for an environment of its own")
    cache.mkdir(parents=True, exist_ok=True)
    ours = [f"torch=={release}"] if with_torch else []
    print(f"making {name}'s environment ({', '.join([why, *ours])}) in the user's cache ...")
    for command in (
        [uv, "venv", "--clear", "--python", sys.executable, str(folder)],
        [uv, "pip", "install", "--python", str(python), requirement, *ours],
    ):
        # cwd: away from this repository, whose constraints are not the peer's
        done = subprocess.run(command, cwd=cache, capture_output=True, text=True)
        if done.returncode:
            said = " ".join(done.stderr.split())
            raise Unavailable(f"{name} could not be installed: {said[:300]}")
    complete.write_text(requirement)
    return python


@contextmanager
def serving(name: str, python: Path, module: str, folder: Path) -> Iterator[Ask]:
    """A function that hands a request to the peer's process and returns its answer.

    Both are objects as JSON has them; tensors go through files in the folder. The function raises
    Unavailable, with the process's last words, when the process has ended. The peer has as many
    threads as our torch has at the moment of the request. At the end of the context the process is
    waited for.
    """
    import torch

    with (
        (folder / "stderr").open("w+") as stderr,
        subprocess.Popen(
            [python, "-m", module, str(folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):

        def hang_up() -> None:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()  # the process's loop ends with its input
            process.wait()

        def ask(request: dict[str, Any]) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                told = {**request, "threads": torch.get_num_threads()}
                print(json.dumps(told), file=process.stdin, flush=True)
                answer: dict[str, Any] = json.loads(process.stdout.readline())
            except (OSError, ValueError):
                hang_up()
                stderr.seek(0)
                said = stderr.read().strip().splitlines() or ["nothing said"]
                raise Unavailable(f"{name}'s process ended: {said[-1]}") from None
            return answer

        try:
            yield ask
        finally:
            hang_up()


def use_torch_threads(threads: int) -> None:
    """Have torch use so many threads."""
    import torch

    torch.set_num_threads(threads)


def answer_requests(answer: Ask, use_threads: Callable[[int], None] = use_torch_threads) -> None:
    """Answers each line on stdin with a line on stdout, until stdin ends.

    What is printed meanwhile goes to stderr: peers tell how far they are.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        request = json.loads(line)
        use_threads(request.pop("threads"))
        print(json.dumps(answer(request)), file=answers, flush=True)

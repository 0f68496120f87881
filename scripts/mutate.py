"""Measure what the tests notice: small mistakes are put into the code, one at a time.

    uv run --with coverage python scripts/mutate.py --sample 400
    uv run python scripts/mutate.py --files bench/runs/lock.py --tests tests/test_locks.py
    uv run python scripts/mutate.py --named ID "the reason why this survivor changes nothing"

Code with one mistake is a mutant. It is tried with the tests that reach its line, the most specific
first, up to 60 seconds of them. Which test reaches which line is found once, by running the suite
under coverage, and kept in --work; with --tests every mutant is tried with those tests instead.
Each result is written to --out at once, so that the same command goes on after a kill; --out is
also the report.

Neither mutmut nor cosmic-ray would do. mutmut puts a wrapper in front of each function, but this
project holds a yaml against the signature and module of its function. cosmic-ray starts a process
for each mutant, whose imports take longer than its tests. Here each mutant is a fork of a process
that has imported torch. The mistakes are those of a hand that writes formulas: a sign, a term, a
name in place of the one that belongs with it.
"""

import argparse
import ast
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FILES = [
    "algorithms",
    "tasks",
    *(f"bench/core/{name}.py" for name in ("deferred", "draw", "loop", "oracle")),
    *(f"bench/core/{name}.py" for name in ("stream", "together", "view", "work")),
    "bench/numerics",
    *(f"bench/compiled/{name}.py" for name in ("batched", "calls", "joined", "traced")),
    *(f"bench/solving/{name}.py" for name in ("call", "methods", "problem", "solution")),
    *(f"bench/runs/{name}.py" for name in ("checkpoint", "driver", "folder", "history", "lanes")),
    *(f"bench/runs/{name}.py" for name in ("lock", "opening", "recording", "shapes")),
    *(f"bench/sweeps/{name}.py" for name in ("jobs", "pruning", "search", "sweep", "tuning")),
    *(f"bench/reproduce/{name}.py" for name in ("bands", "chances", "choosing", "chosen_runs")),
    *(f"bench/reproduce/{name}.py" for name in ("circumstances", "claim_kinds", "claim_records")),
    *(f"bench/reproduce/{name}.py" for name in ("claim_rules", "claims", "claims_at")),
    *(f"bench/reproduce/{name}.py" for name in ("comparison", "disturbance", "durations", "edges")),
    *(f"bench/reproduce/{name}.py" for name in ("grouping", "outdated", "plan", "points")),
    *(f"bench/reproduce/{name}.py" for name in ("power", "recorded", "records", "rejudging")),
    *(f"bench/reproduce/{name}.py" for name in ("slopes", "spending", "standing", "statements")),
    *(f"bench/reproduce/{name}.py" for name in ("statistics", "targets", "timing", "todo")),
    "bench/reproduce/totals.py",
    "bench/reproduce/league",
]
LIMIT = 60.0  # seconds of tests for one mutant
# an operator, and the one that a slip of the hand writes in its place
SWAPPED: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
# comparisons that are turned round as well
TURNED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
# names of which one may be written in place of the other
TWINS = {
    a: b
    for one, other in [
        ("x", "y"),
        ("y", "z"),
        ("xi", "zeta"),
        ("f", "g"),
        ("f_x", "g_x"),
        ("f_y", "g_y"),
        ("mixed", "curved"),
        ("xy", "yy"),
        ("min", "max"),
        ("argmin", "argmax"),
        ("sum", "mean"),
        ("any", "all"),
        ("ceil", "floor"),
        ("sin", "cos"),
        ("upper", "lower"),
        ("train", "validation"),
        ("validation", "test"),
        ("zeros_like", "ones_like"),
        ("rows", "columns"),
        ("project", "project_y"),
        ("calls", "samples"),
        ("seconds", "cpu_seconds"),
        ("left", "right"),
        ("low", "high"),
        ("now", "before"),
    ]
    for a, b in ((one, other), (other, one))
}
# attributes that a value may have though its file does not name them: of states and draws
EVERYWHERE = {"x", "y", "f", "g"}
# methods whose call may be forgotten, so that a.square() becomes a
FORGOTTEN = {
    "abs", "square", "sqrt", "clamp", "exp", "log", "detach", "cumsum", "sigmoid", "relu",
    "sign", "float", "double", "sort", "reshape", "flatten", "view_as", "clone",
}  # fmt: skip


class Mutant(NamedTuple):
    """Code with one mistake; `name` says file, line, column and what is wrong there."""

    name: str
    file: str
    line: int
    within: tuple[int, int]  # first and last line of the definition that has the mistake
    source: str  # the whole file with the mistake


def parts_without_computation(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that compute nothing: annotations, decorators, messages, imports."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from node.decorator_list
        if node.returns:
            yield node.returns
    if isinstance(node, ast.ClassDef):
        yield from node.decorator_list
        yield from node.bases
    if isinstance(node, ast.arg) and node.annotation:
        yield node.annotation
    if isinstance(node, ast.AnnAssign):
        yield node.annotation
    if isinstance(node, ast.JoinedStr):  # messages
        yield from node.values
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
        yield from ast.iter_child_nodes(node)  # messages, and what only a type checker needs
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast":
        yield from ast.iter_child_nodes(node)


def computing_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that takes part in a computation, in order of the text."""
    out = set(map(id, parts_without_computation(tree)))
    for child in ast.iter_child_nodes(tree):
        if id(child) not in out:
            yield child
            yield from computing_nodes(child)


def mistakes(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """Each mistake that can be made at a node: what is wrong, and the node in its place.

    None in its place means that a statement is left out.
    """
    match node:
        case ast.BinOp(left, op, right):
            if type(op) in SWAPPED and not isinstance(left, ast.Constant | ast.JoinedStr):
                other = SWAPPED[type(op)]
                yield (
                    f"{operator_text(op)} -> {operator_text(other())}",
                    ast.BinOp(left, other(), right),
                )
            if isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div):
                yield f"drops {operator_text(op)} {ast.unparse(right)}", left
            if isinstance(op, ast.Sub):
                yield "turns a - b", ast.BinOp(right, op, left)
        case ast.UnaryOp(ast.USub() | ast.Not(), operand):
            yield f"drops {operator_text(node.op)}", operand
        case ast.Compare(left, [op], [right]):
            yield (
                f"{operator_text(op)} -> {operator_text(SWAPPED[type(op)]())}",
                ast.Compare(left, [SWAPPED[type(op)]()], [right]),
            )
            if type(op) in TURNED:
                other = TURNED[type(op)]
                yield (
                    f"{operator_text(op)} -> {operator_text(other())}",
                    ast.Compare(left, [other()], [right]),
                )
        case ast.BoolOp(op, values):
            yield (
                f"{operator_text(op)} -> {operator_text(SWAPPED[type(op)]())}",
                ast.BoolOp(SWAPPED[type(op)](), values),
            )
        case ast.Constant(bool() as value):
            yield f"{value} -> {not value}", ast.Constant(not value)
        case ast.Constant(int() as value):
            yield f"{value} -> {value + 1}", ast.Constant(value + 1)
        case ast.Constant(float() as value):
            yield f"{value} -> {2 * value or 1.0}", ast.Constant(2 * value or 1.0)
        case ast.IfExp(test, body, orelse):
            yield "turns the condition", ast.IfExp(test, orelse, body)
        case ast.Name(name, ast.Load()) if name in TWINS and name not in ("x", "y"):
            yield f"{name} -> {TWINS[name]}", ast.Name(TWINS[name], ast.Load())
        case ast.Attribute(value, name, ast.Load()) if name in TWINS:
            yield f".{name} -> .{TWINS[name]}", ast.Attribute(value, TWINS[name], ast.Load())
        case ast.Call(func, arguments, keywords):
            yield from mistaken_calls(node, func, arguments, keywords)
        case ast.Slice(lower, upper, step) if upper is not None and lower is None:
            yield "drops the slice's end", ast.Slice(lower, None, step)
        case ast.AugAssign(target, op, value) if type(op) in SWAPPED:
            other = SWAPPED[type(op)]
            yield (
                f"{operator_text(op)}= -> {operator_text(other())}=",
                ast.AugAssign(target, other(), value),
            )
            yield "drops the statement", None
        case ast.Assign([ast.Subscript() | ast.Attribute()], _):
            yield "drops the statement", None
        case ast.Assign([ast.Name(name)], value) if any(
            isinstance(n, ast.Name) and n.id == name for n in ast.walk(value)
        ):
            yield "drops the statement", None
        case ast.Expr(ast.Call()):
            yield "drops the statement", None
        case ast.Break() | ast.Continue():
            yield "drops the statement", None


def mistaken_calls(
    node: ast.Call, func: ast.expr, arguments: list[ast.expr], keywords: list[ast.keyword]
) -> Iterator[tuple[str, ast.AST | None]]:
    """Mistakes in a call: two arguments change places; a named one, or the call, is forgotten."""
    plain = not any(isinstance(a, ast.Starred) for a in arguments) and not at_oracle(func)
    for i, (one, other) in enumerate(pairwise(arguments)):
        alike = type(one) is type(other) and ast.dump(one) != ast.dump(other)
        if plain and alike and isinstance(one, ast.Name | ast.Attribute):
            turned = [*arguments]
            turned[i], turned[i + 1] = other, one
            yield f"swaps arguments {i + 1} and {i + 2}", ast.Call(func, turned, keywords)
    for i, keyword in enumerate(keywords):
        if keyword.arg is not None:
            rest = keywords[:i] + keywords[i + 1 :]
            yield f"drops {keyword.arg}=", ast.Call(func, arguments, rest)
    if isinstance(func, ast.Attribute) and func.attr in FORGOTTEN:
        yield f"drops .{func.attr}()", func.value
    if isinstance(func, ast.Name) and func.id == "range" and len(arguments) == 1:
        less = ast.BinOp(arguments[0], ast.Sub(), ast.Constant(1))
        yield "range loses its last turn", ast.Call(func, [less], keywords)


def at_oracle(func: ast.expr) -> bool:
    """Whether an oracle is called, where x in y's place has another shape and fails at once."""
    return isinstance(func, ast.Attribute) and ast.unparse(func.value) in ("o", "oracle", "torch")


def operator_text(op: ast.AST) -> str:
    """An operator as Python writes it."""
    names = {"USub": "-", "Not": "not"}
    if type(op).__name__ in names:
        return names[type(op).__name__]
    if isinstance(op, ast.operator):
        return ast.unparse(ast.BinOp(ast.Name("a"), op, ast.Name("b")))[2:-2]
    if isinstance(op, ast.boolop):
        return ast.unparse(ast.BoolOp(op, [ast.Name("a"), ast.Name("b")]))[2:-2]
    return ast.unparse(ast.Compare(ast.Name("a"), [op], [ast.Name("b")]))[2:-2]  # type: ignore[list-item]


def mutants(file: str) -> list[Mutant]:
    """Every mistake this script knows of in one file."""
    text = (ROOT / file).read_bytes()
    tree = ast.parse(text)
    starts = [0, 0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    known = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    known |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    known |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    found: dict[str, Mutant] = {}
    conditions = {id(n.test) for n in ast.walk(tree) if isinstance(n, ast.If | ast.While)}
    for node in computing_nodes(tree):
        turned = [("turns the condition", ast.UnaryOp(ast.Not(), node))]  # type: ignore[arg-type]
        for what, instead in [*mistakes(node), *(turned if id(node) in conditions else [])]:
            if isinstance(instead, ast.Name) and instead.id not in known:
                continue  # a NameError would say nothing of the tests
            if isinstance(instead, ast.Attribute) and instead.attr not in known | EVERYWHERE:
                continue
            new = text_of(node, instead)
            begin = starts[node.lineno] + node.col_offset  # type: ignore[attr-defined]
            end = starts[node.end_lineno] + node.end_col_offset  # type: ignore[attr-defined]
            changed = text[:begin] + new.encode() + text[end:]
            line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
            name = f"{file}:{line}:{column}: {what}"
            found.setdefault(
                name, Mutant(name, file, line, definition_around(tree, line), changed.decode())
            )
    return list(found.values())


def definition_around(tree: ast.Module, line: int) -> tuple[int, int]:
    """The first and last line of the file's definition that has this line."""
    for node in tree.body:
        if node.lineno <= line <= (node.end_lineno or node.lineno):
            return node.lineno, node.end_lineno or node.lineno
    return line, line


def text_of(node: ast.AST, instead: ast.AST | None) -> str:
    """The text to put in the node's place."""
    if instead is None:
        return "pass"
    text = ast.unparse(ast.fix_missing_locations(instead))
    return text if isinstance(instead, ast.Slice | ast.AugAssign) else f"({text})"


def reach(
    folder: Path, jobs: int
) -> tuple[dict[str, dict[str, list[int]]], list[str], list[float]]:
    """Which tests reach which line: {file: {line: numbers of tests}}, the tests, their seconds.

    The folder keeps what was found for the next time.
    """
    file, mine = folder / "reach.json", folder / "coveragerc"  # the file that `look` writes first
    if not file.exists():
        if folder.exists() and any(folder.iterdir()) and not mine.exists():
            sys.exit(f"--work {folder}: it has other files; write a new folder")
        shutil.rmtree(folder, ignore_errors=True)
        file.write_text(json.dumps(look(folder, jobs)))
    kept = json.loads(file.read_text())
    return kept["lines"], kept["tests"], kept["seconds"]


def look(folder: Path, jobs: int) -> dict[str, Any]:
    """Runs the whole suite once under coverage, in a copy of the checkout.

    Tests are followed into the processes that they start. Tests that fail are left out.
    """
    import coverage

    folder.mkdir(parents=True)
    tree = copy_checkout(folder)
    rc = folder / "coveragerc"
    rc.write_text(
        f"[run]\ndata_file = {folder}/data\nparallel = true\ncontext = ${{REACH_TEST-}}\n"
        f"source = {tree}/algorithms,{tree}/tasks,{tree}/bench\n"
    )
    (folder / "sitecustomize.py").write_text("import coverage\ncoverage.process_startup()")
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-m", "not slurm"],
        cwd=tree, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    files = sorted({line.split("::")[0] for line in listed.splitlines() if "::" in line})
    shares = [files[j::jobs] for j in range(jobs)]
    environment = os.environ | {
        "COVERAGE_PROCESS_START": str(rc),
        "PYTHONPATH": f"{folder}{os.pathsep}{tree}",
        "COVERAGE_CORE": "ctrace",
    }
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--reached", str(folder / f"times{j}"), *share],
            cwd=tree, env=environment,
        )
        for j, share in enumerate(shares)
    ]  # fmt: skip
    for process in started:
        process.wait()
    times: dict[str, float] = {}
    for j in range(jobs):
        times |= json.loads((folder / f"times{j}").read_text())
    tests = sorted(times)
    number = {name: i for i, name in enumerate(tests)}
    data = coverage.Coverage(config_file=str(rc))
    data.combine([str(folder)])
    lines: dict[str, dict[str, list[int]]] = {}
    kept = data.get_data()
    for file in kept.measured_files():
        here = lines.setdefault(str(Path(file).relative_to(tree)), {})
        for line, contexts in kept.contexts_by_lineno(file).items():
            here[str(line)] = sorted(number[c] for c in contexts if c in number)
    return {"lines": lines, "tests": tests, "seconds": [times[t] for t in tests]}


def run_under_coverage(out: Path, files: list[str]) -> None:
    """Runs these test files, in one of the processes of `look`, with each test as a context.

    The seconds of each test that passes are written to `out`.
    """
    import coverage
    import pytest

    measuring = coverage.Coverage.current()
    assert measuring is not None
    times: dict[str, float] = {}
    failed: set[str] = set()

    class Following:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if not report.passed:
                failed.add(report.nodeid)

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
            os.environ["REACH_TEST"] = item.nodeid
            measuring.switch_context(item.nodeid)
            begin = time.perf_counter()
            yield
            times[item.nodeid] = time.perf_counter() - begin

    quiet = ["-q", "-n", "0", "--no-header", "-p", "no:cacheprovider", "-m", "not slurm"]
    pytest.main([*quiet, *files], plugins=[Following()])
    print(f"{len(failed)} tests fail, or are skipped, and are left out", *sorted(failed), sep="\n")
    out.write_text(json.dumps({name: t for name, t in times.items() if name not in failed}))


def copy_checkout(folder: Path) -> Path:
    """A copy of the checkout as it stands, compiled, beside a link to the real one's shared/."""
    tree = folder / "tree"
    names = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"],
        capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tree, check=True)
    author = ["-c", "user.name=m", "-c", "user.email=m@localhost"]
    subprocess.run(["git", *author, "commit", "-qm", "as it is"], cwd=tree, check=True)
    if (ROOT.parent / "shared").exists():
        (folder / "shared").symlink_to((ROOT.parent / "shared").resolve())
    subprocess.run([sys.executable, "-m", "compileall", "-q", "."], cwd=tree, check=False)
    return tree


def worker(asked: Any, answers: Any, folder: str, baseline: list[str]) -> None:
    """Tries the mutants that are asked of it, one after the other, in a copy of its own.

    baseline: tests that must pass without any mistake; the first answer says so if they do not.
    """
    tree = copy_checkout(Path(folder))
    os.chdir(tree)
    sys.path[:0] = [str(tree)]
    os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    os.environ.pop("COVERAGE_PROCESS_START", None)
    sys.dont_write_bytecode = True
    import anyio.pytest_plugin  # noqa: F401
    import hydra.extra.pytest_plugin  # noqa: F401
    import numpy  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import torch
    import torchvision  # noqa: F401
    import xdist.plugin  # noqa: F401

    torch.set_num_threads(1)
    torch.func.jacrev(torch.sin)(torch.zeros(1))  # imports much at its first use
    if baseline:
        verdict, by, _ = try_tests(baseline, 10 * LIMIT)
        if verdict == "noticed":
            answers.put(("", verdict, f"{by} fails without any mistake", 0.0))
            return
    while (task := asked.get()) is not None:
        mutant, tests, limit = task
        path = tree / mutant.file
        original = path.read_text()
        path.write_text(mutant.source)
        for stale in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            stale.unlink()
        try:
            answers.put((mutant.name, *try_tests(tests, limit)))
        finally:
            path.write_text(original)


def try_tests(tests: list[str], limit: float) -> tuple[str, str, float]:
    """Runs the tests in a fork; returns the verdict, the test that noticed, and the seconds.

    The verdict is "noticed" where a test fails or does not end in time, and "survived" where all
    pass.
    """
    with tempfile.NamedTemporaryFile(prefix="mutant-", delete=False) as made:
        report = Path(made.name)
    begin = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.setsid()
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        os._exit(run_tests(tests, report))
    while time.perf_counter() - begin < limit:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            spent = time.perf_counter() - begin
            code = os.waitstatus_to_exitcode(status)
            failed = report.read_text()
            report.unlink()
            if code == 0:
                return "survived", f"{len(tests)} tests", spent
            return "noticed", failed or f"exit {code}", spent
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    report.unlink()
    return "noticed", f"does not end in {limit:.0f} s", limit


def run_tests(tests: list[str], report: Path) -> int:
    """Runs tests up to the first that fails, whose name goes to `report`; returns the exit code."""
    import pytest

    class Failing:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                out.write_text(report.nodeid)

        pytest_collectreport = pytest_runtest_logreport

    out = report
    quiet = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--no-header", "-m", "not slurm"]
    quiet += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hydra is there already
    return int(pytest.main([*quiet, *tests], plugins=[Failing()]))


def tests_for(
    mutant: Mutant, lines: dict[str, Any], tests: list[str], seconds: list[float], width: list[int]
) -> list[str]:
    """The tests that reach the mutant's line, those that reach the fewest lines first.

    They are cut at the time limit. A test that reaches no line, as it only reads signatures, is
    among the first. width: how many lines each test reaches.
    """
    file = lines.get(mutant.file, {})
    here = set(file.get(str(mutant.line), []))
    if not here or at_import(mutant):  # coverage gives what is read at import to no test
        a, b = mutant.within
        here |= {i for line in range(a, b + 1) for i in file.get(str(line), [])}
        here |= {i for i, name in enumerate(tests) if "default" in name or "setting" in name}
    found: list[str] = []
    spent = 0.0
    for i in sorted(here, key=lambda i: (width[i], seconds[i])):
        if spent + seconds[i] > LIMIT and found:
            continue
        found.append(tests[i])
        spent += seconds[i]
    return found


def at_import(mutant: Mutant) -> bool:
    """Whether the line is read at import: only a test that starts a process reaches such lines."""
    for node in ast.walk(ast.parse((ROOT / mutant.file).read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last = node.end_lineno or node.lineno
            if node.body[0].lineno <= mutant.line <= last:
                return False
    return True


def sources(names: list[str]) -> list[str]:
    """The Python files that these names stand for; ends this process if one is not there."""
    found = []
    for name in names:
        path = ROOT / name
        if not path.exists():
            sys.exit(f"mutate: {name} is not there: write files and folders of this checkout")
        inside = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        found += [str(p.relative_to(ROOT)) for p in inside if p.name != "__init__.py"]
    return found


def summarise(kept: dict[str, Any]) -> dict[str, Any]:
    """How many mutants were made, were noticed, and change nothing: by file, and in all."""
    by_file: dict[str, dict[str, int]] = {}
    for name, entry in kept["mutants"].items():
        row = by_file.setdefault(name.split(":")[0], dict.fromkeys(("made", "noticed", "same"), 0))
        row["made"] += 1
        row["noticed"] += entry["verdict"] == "noticed"
        row["same"] += "equivalent" in entry
    total = {key: sum(row[key] for row in by_file.values()) for key in ("made", "noticed", "same")}
    return {"total": total, "files": dict(sorted(by_file.items()))}


def print_report(kept: dict[str, Any]) -> None:
    """Prints the counts by file, and the survivors that might change something."""
    for file, row in kept["summary"]["files"].items():
        print(f"{file:45} {row['noticed']:4} of {row['made']:4} noticed, {row['same']} equivalent")
    total = kept["summary"]["total"]
    print(
        f"{'all':45} {total['noticed']:4} of {total['made']:4} noticed, {total['same']} equivalent"
    )
    for name, entry in sorted(kept["mutants"].items()):
        if entry["verdict"] == "survived" and "equivalent" not in entry:
            print("survivor", name, "|", entry["by"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", nargs="+", default=FILES, help="files or folders to change")
    parser.add_argument("--tests", nargs="+", help="test files that every mutant is tried with")
    parser.add_argument("--sample", type=int, help="so many mutants, drawn at random; default: all")
    parser.add_argument("--seed", type=int, default=0, help="the sample's")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--work",
        type=Path,
        default=ROOT / "runs" / "mutations",
        help="the folder that keeps which tests reach which line; a new one, or one of before",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "mutations.json")
    parser.add_argument("--again", action="store_true", help="try survivors once more")
    parser.add_argument(
        "--named", nargs=2, metavar=("ID", "REASON"), help="note that a mutant changes nothing"
    )
    parser.add_argument("--list", action="store_true", help="only print what would be tried")
    parser.add_argument("--reached", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.reached:
        run_under_coverage(Path(args.reached[0]), args.reached[1:])
        return
    kept: dict[str, Any] = {"summary": {}, "mutants": {}}
    if args.out.exists():
        kept = json.loads(args.out.read_text())
    if args.named:
        kept["mutants"][args.named[0]]["equivalent"] = args.named[1]
        save(args.out, kept)
        return
    everything = [m for file in sources(args.files) for m in mutants(file)]
    there = {m.name for m in everything}
    files = set(sources(args.files))
    for name in [n for n in kept["mutants"] if n.split(":")[0] in files and n not in there]:
        del kept["mutants"][name]  # its line has changed since
    if args.sample and args.sample < len(everything):
        everything = random.Random(args.seed).sample(everything, args.sample)
    if args.list:
        print(*(m.name for m in everything), sep="\n")
        return
    lines: dict[str, dict[str, list[int]]] = {}
    tests: list[str] = []
    seconds: list[float] = []
    width: list[int] = []
    if not args.tests:
        lines, tests, seconds = reach(args.work.resolve(), args.jobs)
        width = [0] * len(tests)
        for here in lines.values():
            for numbers in here.values():
                for i in numbers:
                    width[i] += 1
    todo = []
    for m in everything:
        entry = kept["mutants"].get(m.name)
        if entry is None or (args.again and entry["verdict"] == "survived"):
            todo.append((m, args.tests or tests_for(m, lines, tests, seconds, width)))
    kept["commit"] = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()  # the code that the newest of them were tried with
    print(f"{len(everything)} mutants, {len(todo)} to try", flush=True)
    try_all(args, kept, todo)
    save(args.out, kept)
    print_report(kept)


def try_all(args: argparse.Namespace, kept: dict[str, Any], todo: list[Any]) -> None:
    """Lets workers try the mutants, and writes each answer as it comes.

    todo: pairs of a mutant and the tests to try it with.
    """
    making = get_context("spawn")
    asked, answers = making.Queue(), making.Queue()
    with tempfile.TemporaryDirectory() as folder:
        workers = []
        for j in range(args.jobs):
            inside = Path(folder) / str(j)
            inside.mkdir()
            workers.append(
                making.Process(target=worker, args=(asked, answers, str(inside), args.tests or []))
            )
            workers[-1].start()
        waiting = 0
        for m, tests in todo:
            if tests:
                asked.put((m, tests, 3 * LIMIT))
                waiting += 1
            else:
                kept["mutants"][m.name] = {"verdict": "survived", "by": "no test", "seconds": 0.0}
        for _ in workers:
            asked.put(None)
        for i in range(waiting):
            while True:
                with suppress(queue.Empty):
                    name, verdict, by, spent = answers.get(timeout=5)
                    break
                if not any(process.is_alive() for process in workers):
                    sys.exit("all workers have ended before their work: look above for the reason")
            if not name:
                for process in workers:
                    process.terminate()
                sys.exit(by)
            kept["mutants"][name] = {"verdict": verdict, "by": by, "seconds": round(spent, 1)}
            print(f"{i + 1}/{waiting} {verdict} {spent:5.1f} s {name} | {by}", flush=True)
            save(args.out, kept)
        for process in workers:
            process.join()


def save(out: Path, kept: dict[str, Any]) -> None:
    """Writes the report, whole or not at all."""
    kept["summary"] = summarise(kept)
    kept["mutants"] = dict(sorted(kept["mutants"].items()))
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    part.write_text(json.dumps(kept, indent=1) + "\n")
    part.replace(out)


if __name__ == "__main__":
    main()

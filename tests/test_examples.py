"""The files of examples/ do what they say: they run, and their numbers are those of the text."""

import importlib.util
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from nbclient import NotebookClient

import bench
from bench import Diverged, Solution, solve
from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"
NEAR = 1e-3
# how many steps a method takes until it is where it ends; others: 100
STEPS = {
    "fsobo": 500,
    **dict.fromkeys(("soba", "saba", "srba", "spaba", "sffba", "mseba", "sogd"), 600),
    **dict.fromkeys(
        ("af2obo", "aobo", "bome", "f2obo", "f2sa", "fsla", "gpbgd", "mrbo", "penalty", "sf2obo",
         "sobbo", "sobow", "sustain", "trhg", "ttsa"), 250,
    ),
}  # fmt: skip
# how far from the closed form the methods end whose docstrings say why they may (their caveats)
FAR: Mapping[str, float] = {
    "af2obo": 0.00952,
    "aid_fp": 0.106,
    "aid_neumann": 0.0985,
    "anil": 0.108,
    "aobo": 0.0118,
    "bome": 0.229,
    "bsa": 0.101,
    "bsg1": 37.9,
    "bvfsm": 0.352,
    "f2sa": 0.107,
    "fo_itd": 0.845,
    "fsla": 0.557,
    "itd": 0.106,
    "maml": 0.15,
    "mrbo": 0.169,
    "oagd": math.inf,
    "obbo": 0.155,
    "penalty": 0.243,
    "pzobo": 0.106,
    "reverse": 0.106,
    "sobbo": 0.154,
    "stocbio": 0.0985,
    "sustain": 0.182,
    "trhg": 0.18,
    "ttsa": 0.00815,
    "upper_only": 0.845,
    "vpbgd": 17.4,
    "vrbo": 0.166,
}
DIVERGES = "gpbgd"  # with the step size that it has by default


def example(name: str) -> ModuleType:
    """A script of examples/ as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # types of fields are looked up there
    spec.loader.exec_module(module)
    return module


RIDGE = example("ridge")
NAMES = sorted(  # black boxes ask for no gradient of f
    name
    for name, method in bench.methods().items()
    if method.kind == "bilevel" and method.cost is not None and method.cost.calls["grad_f"]
    if not method.on_stream
)


def ended(name: str) -> Solution:
    """A method on ridge regression with the settings that it has by default."""
    problem = RIDGE.ridge()
    x0, y0 = problem.A.new_zeros(()), problem.A.new_zeros(10)
    more = {
        # without data there are no rows to cut
        **{key: {"blocks": 1} for key in ("saba", "sffba", "mseba")},
        "hoag": {"T": 50},  # else most of the time goes to tolerances below rounding
    }.get(name, {})
    steps = STEPS.get(name, 100)
    return solve(problem.upper, problem.lower, x0, y0, name, steps=steps, every=steps, **more)


@pytest.mark.parametrize(
    ("name", "more", "near"),
    [
        ("itd", {"T": 80}, NEAR), ("reverse", {"T": 80, "K": 80}, NEAR),
        ("maml", {"T": 60}, NEAR), ("aid_fp", {"K": 100}, NEAR),
        ("aid_neumann", {"K": 100}, NEAR), ("stocbio", {"Q": 100}, NEAR),
        ("obbo", {"K": 80}, NEAR), ("oagd", {"eta": 0.05, "Q": 100}, NEAR),
        ("pzobo", {"T": 30}, 0.03),  # its steps are slow: three times as near, by as large a T
    ],
)  # fmt: skip
def test_what_a_caveat_says_to_raise_mends_it(
    name: str, more: dict[str, float], near: float
) -> None:
    """It stays near the best x, which without that it leaves for where FAR has it."""
    problem = RIDGE.ridge()
    x0, y0 = problem.A.new_tensor(problem.best() + 0.05), problem.A.new_zeros(10)

    def away(**settings: float) -> float:
        found = solve(problem.upper, problem.lower, x0, y0, name, steps=48, every=48, **settings)
        return abs(float(found.x) - problem.best())

    assert away(**more) < near
    assert away(**{key: value for key, value in more.items() if key == "eta"}) > 3 * near
    assert FAR[name] > 3 * near


@pytest.mark.parametrize("name", NAMES)
def test_ridge_regression_comes_to_its_closed_form(name: str) -> None:
    """Every method comes within 1e-3 of the best x; or its docstring says why it may not, and then
    how far away it ends is what is recorded above."""
    if name == DIVERGES:
        with pytest.raises(Diverged, match="try smaller step sizes"):
            ended(name)
        assert bench.methods()[name].caveat
        return
    away = abs(float(ended(name).x) - RIDGE.ridge().best())
    if name not in FAR:
        assert away < NEAR
        return
    assert bench.methods()[name].caveat
    assert FAR[name] > NEAR
    if FAR[name] == math.inf:
        assert away > 1e3
        return
    assert FAR[name] / 1.5 < away < FAR[name] * 1.5


def test_ridge(capsys: pytest.CaptureFixture[str]) -> None:
    distances = RIDGE.main(methods=("hoag", "aid_cg"), steps=200)
    assert max(distances.values()) < NEAR
    assert capsys.readouterr().out.count("off by") == 2


def test_reweighting_beats_the_validation_set_alone(capsys: pytest.CaptureFixture[str]) -> None:
    gains = example("reweight").main(["--steps", "40"])
    assert len(gains) == 5
    assert min(gains) > 0
    found = re.search(r"gain (\S+), 95% interval \[(\S+), (\S+)\]", capsys.readouterr().out)
    assert found is not None
    mean, low, high = map(float, found.groups())
    assert 0 < low < mean < high
    assert mean == pytest.approx(sum(gains) / 5, abs=1e-3)


def test_a_method_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "plot.png"
    own = example("own_method")
    ends = own.main(["--plot", str(plot), "--seeds", "2", "--steps", "20"])
    assert set(ends) == {"one_step", *own.RIVALS}
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "grad_g 100" in capsys.readouterr().out


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is executed by a kernel, as `jupyter execute` does; its first cell is the README's."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # two threads would wait for each other
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    shown = [block.strip() for block in blocks if "from bench import solve" in block]
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert shown in ([], [cells[0].source])
    resources = {"metadata": {"path": str(EXAMPLES)}}
    NotebookClient(notebook, timeout=300, resources=resources).execute()
    texts = ["".join(out.get("text", "") for out in cell.outputs) for cell in cells]
    assert "grad_g" in texts[0]
    distances = [float(x) for x in re.findall(r"off by (\S+)", texts[2])]
    assert len(distances) == 3
    assert max(distances) < NEAR
    assert "conjugate gradients" in texts[3]

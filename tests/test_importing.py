"""Starting is quick: torch is imported without the collector, and slow packages where needed."""

import subprocess
import sys

SLOW = ("scipy", "sklearn", "wandb", "matplotlib", "pandas", "torchvision", "torch._dynamo")


def test_torch_is_imported_without_the_collector_and_slow_packages_are_not() -> None:
    """In a process of its own, since this one has imported everything."""
    code = (
        "import gc, sys\n"
        "from bench.runs.importing import import_torch\n"
        "seen = []\n"
        "gc.callbacks.append(lambda phase, info: seen.append('torch' in sys.modules))\n"
        "import_torch()\n"
        "during = any(seen)\n"
        "import bench.runs.launch, bench.numerics.sets, tasks.toy, algorithms.bilevel.bome\n"
        "kept = gc.get_freeze_count()\n"
        "import_torch()\n"
        f"slow = [name for name in {SLOW} if name in sys.modules]\n"
        "print(during, gc.isenabled(), kept > 100_000, gc.get_freeze_count() == kept, slow)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False True True True []"

#!/usr/bin/env bash
# Sends to Weights & Biases what runs wrote offline, or could not send: scripts/wandb_sync.sh [RUNS]
#
# A run that was resumed has a folder for each of its parts, all with one id. They are given to W&B
# together, which sends them in the order in which they were begun. W&B marks what it has sent, so
# this script can be called again.
set -euo pipefail
root=${1:-${BENCH_RUNS:-runs}}
[[ -d $root ]] || { echo "wandb_sync: $root is not there: write scripts/wandb_sync.sh RUNS" >&2; exit 2; }
wandb=${WANDB:-$(command -v wandb || echo "$(dirname "$0")/../.venv/bin/wandb")} # where no environment is active
shopt -s nullglob
failed=0
while IFS= read -r -d '' folder; do
  parts=("$folder"/offline-run-*/ "$folder"/run-*/)
  ((${#parts[@]})) || continue
  "$wandb" sync --yes --include-online "${parts[@]}" ||
    { echo "wandb_sync: $folder was not sent" >&2; failed=1; }
done < <(find "$root" -mindepth 4 -maxdepth 4 -type d -name wandb -print0 | sort -z)
exit $failed

#!/usr/bin/env bash
# The whole of Table 1 on one GPU: features, then tuning, then the table, in lanes that run beside each other.
#   DATA=~/data bash tools/table_lease.sh RESULTS
# RESULTS gets few files, refreshed every 30 seconds: records.tar.gz (jsonl/ and the trials), tuning.jsonl, tuned.toml,
# logs.txt, state.txt, and at the end table1.md. The same command again goes on where it stopped: $WORK keeps everything.
# Afterwards: tuned.toml belongs to src/dresfl/experiments/reproduce/, jsonl/ and tuning.jsonl belong to results/.
# Run it in the root of the source tree. The defaults are for a GPU of 140 GB and 16 CPU cores; all can be set from outside.
set -um   # m: background commands are to hear SIGINT
main() {  # read as a whole before it begins
RESULTS=${1:?usage: table_lease.sh RESULTS}
DATA=${DATA:-$HOME/data}                # torchvision's layout, and vgg19-features.pth
WORK=${WORK:-runs/table}                # runs, records, trials
PY=${PY:-python}
DEVICE=${DEVICE:-cuda}
TOTAL=${TOTAL:-1560}                    # seconds for everything; what still runs then is interrupted (DReS-FL cells checkpoint)
SMALL=${SMALL:-mnist,fashion,emnist}    # lane 1
LARGE=${LARGE-cifar10,cifar100,svhn}    # lane 2; empty: no such lane
SEEDS=${SEEDS:-5}
ROUNDS=${ROUNDS:-0}                     # of the table; 0: the recipes'
TUNE_ROUNDS=${TUNE_ROUNDS:-0}           # of the trials; 0: a third of the recipes'
J_SMALL=${J_SMALL:-6} J_SMALL_OLD=${J_SMALL_OLD:-3} J_LARGE=${J_LARGE:-5} J_LARGE_OLD=${J_LARGE_OLD:-2} J_HEADS=${J_HEADS:-2}   # GPU memory: a head of 4096 about 30 GB, a VGG19 worker 7 to 10, a 28x28 worker about 1
NEW=${NEW:-dresfl,like-fedavg,like-fedavg-is,like-scaffold,like-centralised,dresfl-linear,dresfl-hidden}
OLD=${OLD:-dresfl-paper,fedavg,fedavg-is,fedavg-is-unbiased,scaffold,centralised}   # the paper's recipe on the 28x28 sets
OLD_LARGE=${OLD_LARGE:-fedavg,fedavg-is,scaffold,centralised}                        # and on the VGG19 sets
HEADS=${HEADS-$LARGE}                   # dresfl-paper with heads of 4096, one seed each; empty: none
KEEP=${KEEP:-dresfl-paper,fedavg,fedavg-is,fedavg-is-unbiased,centralised,dresfl,scaffold} # methods whose old records (results/jsonl) count if their settings are today's

export PYTHONPATH=$PWD/src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
export DRESFL_COMMIT=${DRESFL_COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
mkdir -p "$RESULTS" "$WORK/jsonl"; WORK=$(realpath "$WORK"); export DRESFL_CACHE=${DRESFL_CACHE:-$WORK/features}; mkdir -p "$DRESFL_CACHE"
exec 9>"$DRESFL_CACHE/shared.lock"; flock -s 9   # the transformed features stay as long as this script lives
BEGIN=$(date +%s); END=$((BEGIN + TOTAL))
say() { echo "$(date -u +%H:%M:%S) +$(($(date +%s) - BEGIN)) s  $*" | tee -a "$WORK/stages.log"; }
left() { local n=$((END - $(date +%s))); echo $((n > 1 ? n : 1)); }
# stage NAME COMMAND…: runs it until the end of the time at most, with its output in a log of its own
stage() {
  local name=$1; shift
  say "$name: begins"
  timeout -s INT -k 45 "$(left)" "$@" >>"$WORK/$name.log" 2>&1
  local rc=$?
  say "$name: ends with $rc"
  return $rc
}
# reproduce NAME ARGUMENTS…: up to three times, since finished cells are kept and a failed one may find more memory later
reproduce() {
  local name=$1 try; shift
  for try in 1 2 3; do
    stage "$name" "$PY" -m dresfl reproduce "$@" --data "$DATA" --device "$DEVICE" && return 0
    [ "$(left)" -gt 20 ] || return 1
  done
  return 1
}

publish() {
  for t in "$WORK"/tune-*/; do [ -d "$t" ] && cat "$t"tuning.jsonl; done >"$RESULTS/tuning.jsonl" 2>/dev/null
  { echo '# What `dresfl reproduce tune` chose, by data set and method; the recipes hold everything else.'
    for t in "$WORK"/tune-*/; do [ -f "$t"tuned.toml ] && tail -n +2 "$t"tuned.toml; done; } >"$RESULTS/tuned.toml"
  tar -C "$WORK" -czf "$RESULTS/.records.tmp" jsonl $(cd "$WORK" && ls -d tune-*/tuning 2>/dev/null) $(cd "$WORK" && ls runs/*/dresfl-paper/*/metrics.jsonl 2>/dev/null) 2>/dev/null
  mv "$RESULTS/.records.tmp" "$RESULTS/records.tar.gz"
  tail -n 400 "$WORK"/*.log >"$RESULTS/logs.txt" 2>/dev/null
  { nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2>/dev/null; free -g | sed -n 2p; df -h "$WORK" | tail -1
    echo "records: $(ls "$WORK/jsonl" | wc -l), trials: $(ls "$WORK"/tune-*/tuning/*/*/*.jsonl 2>/dev/null | wc -l)"; } >"$RESULTS/state.txt" 2>&1
}

say "begins: $DEVICE, $TOTAL s, commit $DRESFL_COMMIT, data in $DATA"
if [ "$DEVICE" = cuda ] && command -v nvidia-cuda-mps-control >/dev/null; then
  export CUDA_MPS_PIPE_DIRECTORY=$WORK/mps CUDA_MPS_LOG_DIRECTORY=$WORK/mps; mkdir -p "$WORK/mps"
  nvidia-cuda-mps-control -d && say "MPS runs"
fi
# old records that are still cells of today's recipes are not run again
"$PY" - "$WORK" "$KEEP" <<'PYTHON' | while read -r line; do say "$line"; done
import shutil, sys
from pathlib import Path
from dresfl.errors import DresError
from dresfl.experiments import reproduce as paper
from dresfl.experiments.reproduce.cells import finished
out, keep = Path(sys.argv[1]), sys.argv[2].split(",")
old, kept = Path("results"), 0
for cell in paper.matrix(paper.TABLE_DATASETS, [m for m in paper.METHODS if m in keep], seeds=5, with_infeasible=True, perturbations=3):
    try:
        if finished(cell, old) and not cell.jsonl(out).exists():
            shutil.copy(cell.jsonl(old), cell.jsonl(out)); kept += 1
    except DresError:
        pass
print(f"{kept} old records are still valid and kept")
PYTHON
( while sleep 30; do publish; say "state: $(tr '\n' ' ' <"$RESULTS/state.txt")"; done ) & LOOP=$!
trap 'kill $LOOP 2>/dev/null' EXIT

features() {  # the VGG19 features that lane 2 needs: one process a data set
  local pids=() set
  for set in ${LARGE//,/ }; do
    OMP_NUM_THREADS=4 stage "features-$set" "$PY" -c "
import sys
from pathlib import Path
from dresfl.experiments.prepare import load_split
from dresfl.experiments.reproduce import recipe
split = load_split(recipe(sys.argv[1], 'dresfl', device=sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
print(split.train.inputs.shape, split.test.inputs.shape)" "$set" "$DEVICE" "$DATA" "$DRESFL_CACHE/shared" & pids+=($!)
  done
  wait "${pids[@]}"
}
lane() {  # lane NAME SETS JOBS: tune, then the rows that need it
  reproduce "tune-$1" tune --datasets "$2" --methods "$NEW" --rounds "$TUNE_ROUNDS" --jobs "$3" --out "$WORK/tune-$1"
  reproduce "table-$1" table1 --datasets "$2" --methods "$NEW" --tuned "$WORK/tune-$1/tuned.toml" --seeds "$SEEDS" --rounds "$ROUNDS" --engine direct --jobs "$3" --replace --out "$WORK"
}
old() { reproduce "old-$1" table1 --datasets "$2" --methods "$4" --seeds "$SEEDS" --rounds "$ROUNDS" --engine direct --jobs "$3" --replace --out "$WORK"; }

PIDS=()
if [ "$DEVICE" = cuda ]; then  # the hidden mode's fast path gives the CPU's bits? Beside the others: its timings here mean little
  ( stage check-hidden timeout 180 "$PY" -m dresfl.experiments.bench.hidden --device cuda --check --networks mlp conv head --schedules S4 --rounds 500 || say "HIDDEN CHECK FAILED: see check-hidden in logs.txt" ) & PIDS+=($!)
fi
lane small "$SMALL" "$J_SMALL" & PIDS+=($!)
old small "$SMALL" "$J_SMALL_OLD" "$OLD" & PIDS+=($!)
if [ -n "$LARGE" ]; then
  ( features; lane large "$LARGE" "$J_LARGE" & one=$!; old large "$LARGE" "$J_LARGE_OLD" "$OLD_LARGE" & wait $one $! ) & PIDS+=($!)
fi
if [ -n "$HEADS" ]; then  # their own features: not mirrored
  ( reproduce heads figure3 --datasets "$HEADS" --methods dresfl-paper --seeds 1 --rounds "$ROUNDS" --engine direct --jobs "$J_HEADS" --replace --out "$WORK" ) & PIDS+=($!)
fi
wait "${PIDS[@]}"
"$PY" -m dresfl reproduce table1 --render-only --out "$WORK" >"$WORK/render.log" 2>&1 && cp "$WORK"/table1.md "$RESULTS/"
kill $LOOP 2>/dev/null
publish
say "ends: $(ls "$WORK/jsonl" | wc -l) records"
cp "$WORK/stages.log" "$RESULTS/"
}
main "$@"; exit

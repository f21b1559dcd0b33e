#!/usr/bin/env bash
# tables.sh - the tables of docs/benchmarks.md, measured on this machine's GPU. Bash, coreutils, python3 and the driver are enough.
#
#   tests/gpu/tables.sh DIR [TABLE ...]     # DIR: a build folder, or what `dev bundle` makes
#
# Tables, the most important first, and all of them where none is named: part_filled host vram prefill_host prefill_vram part_empty
# formats less shared zipf long ahead warm start. The last needs START_FOLDER, a model that tests/tools/make_model.py wrote.
# One command after another, as the page has them, each with --json: what it printed is left in OUT (a new folder in /tmp), its rows are
# shown when it has ended, and all rows in the end, also when TERM comes before. A command may take LIMIT (400) seconds.
# MODEL=synthetic:tiny BACKEND=cpu tries this script where there is no GPU.
set -euo pipefail
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1
die() { printf 'tables.sh: %s\n' "$*" >&2; exit 1; }

all="part_filled host vram prefill_host prefill_vram part_empty formats less shared zipf long ahead warm start"
[ $# -gt 0 ] || die "usage: tests/gpu/tables.sh DIR [TABLE ...], tables: $all"
dir=$(realpath "$1") out=$(realpath "${OUT:-$(mktemp -d /tmp/expertd-gpu-tables.XXXXXX)}")
shift
read -ra tables <<<"${*:-$all}"
for table in "${tables[@]}"; do [[ " $all " == *" $table "* ]] || die "no table '$table', there are: $all"; done
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
expertd=$dir/daemon/expertd
[ -f "$expertd" ] || expertd=$dir/bin/expertd
[ -f "$expertd" ] || die "there is no expertd in $dir"
backend=${BACKEND:-cuda}
mkdir -p "$out"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
names=() failed=() pin=() child="" name=""

# show NAME...: rows of their JSON.
show() {
    python3 - "$out" "$@" <<'END'
import json
import sys

COLUMNS = ("tokens/s", 9, 2), ("bound", 9, 2), ("reached", 7, 0), ("hit", 5, 0), ("host GB", 7, 3), ("cpu GB", 7, 3), ("ahead", 6, 3), ("wasted", 6, 3), \
    ("right", 5, 0), ("between", 7, 0), ("VRAM MiB", 8, 0), ("first ms", 8, 1), ("all s", 7, 3), ("link", 5, 1), ("DRAM", 5, 1)
print(f"{'':38}" + "".join(f" {name:>{width}}" for name, width, _ in COLUMNS) + "  answers")


def times(value, factor):
    return None if value is None else value * factor


for name in sys.argv[2:]:
    try:
        with open(f"{sys.argv[1]}/{name}.json", encoding="utf-8") as f:
            doc = json.load(f)
    except (OSError, ValueError):
        print(f"{name:14} nothing was measured, see {sys.argv[1]}/{name}.log")
        continue
    for p in doc["points"]:
        rate, bound, reached = p["decode_tokens_per_s"], p["bound_tokens_per_s"], p["reached"]
        prompts = rate is None
        if prompts:
            rate, reached = p["prefill_tokens_per_s"], p["prefill_reached"]
            bound = rate / reached if reached else None
        label = " ".join([f"{name:14} {p['sequences']} x {p['prompt_tokens']}", *(["prefill"] if prompts else []), *p["settings"].values()])
        a_token = 1e-9 / p["sequences"]
        values = (rate, bound, times(reached, 100), times(p["hit_rate"], 100), times(p["host_bytes_per_step"], a_token),
                  times(p["cpu_bytes_per_step"], a_token), times(p["read_ahead_useful_bytes_per_step"], a_token),
                  times(p["read_ahead_wasted_bytes_per_step"], a_token), times(p["read_ahead_right"], 100), p["between_steps_us"],
                  times(p["vram_used_bytes"], 2 ** -20), p["ttft_ms"], p["total_s"], p["link_gbps"], doc["dram_read_gbps"])
        print(f"{label:38}" + "".join(f" {'-' if v is None else format(v, f'.{digits}f'):>{width}}"
                                     for v, (_, width, digits) in zip(values, COLUMNS)) + f"  {p['answers']}")
END
}

# run COMMAND...: its output into a file of a name of its own; not in the foreground, so that a signal is heard meanwhile.
run() {
    local status=0
    n=$((n + 1)) name=$table.$n
    echo "== $name: ${*/#$expertd/expertd}" | tee "$out/$name.log"
    timeout -k 10 "${LIMIT:-400}" "$@" </dev/null >"$out/$name.json" 2>>"$out/$name.log" &
    child=$!
    wait "$child" || status=$?
    [ "$status" != 0 ] || return 0
    failed+=("$name")
    [ "$status" != 124 ] || echo "no end within ${LIMIT:-400} s"
    tail -n +2 "$out/$name.log" | tail -n 5
}

bench() {
    run "${pin[@]}" "$expertd" bench "$@" --json
    names+=("$name")
    show "$name"
}

B() { bench "${MODEL:-synthetic:qwen3-30b-a3b}" --engine.backend="$backend" --model.max_model_len=4096 --model.dtype=q8_0 "$@"; }

measure() {
    local each file=$tmp/$1.stats
    n=0 pin=()
    case $1 in
    part_filled)
        B --sweep model.skew=balanced,zipf --sweep memory.expert_vram_share=25%,50%,75%,100% --lengths 128 --concurrency 1 --tokens 200
        ;;
    host)
        B --memory.expert_vram_share=0 --model.max_model_len=1024 --lengths 128 --concurrency 1,8,32,256 --tokens 14 --engine.max_num_seqs=256
        B --model.dtype=bf16 --memory.expert_vram_share=0 --lengths 128 --concurrency 1 --tokens 24
        ;;
    vram) B --lengths 128 --concurrency 1,8,32 --tokens 64 ;;
    prefill_host)
        B --memory.expert_vram_share=0 --memory.vram_budget=12GiB --engine.max_num_seqs=8 --lengths 512,2048 --concurrency 1,8 --tokens 2
        ;;
    prefill_vram) B --engine.max_num_seqs=8 --lengths 2048 --concurrency 1,8 --tokens 2 ;;
    part_empty)
        B --sweep model.skew=balanced,zipf --sweep memory.expert_vram_share=25%,50%,75% --lengths 128 --concurrency 1 --tokens 48 --pager.warm_start=no
        ;;
    formats)
        for each in qwen3-30b-a3b:q4_k qwen3-30b-a3b:fp8 gpt-oss-20b:mxfp4 deepseek-v2-lite:q8_0; do
            bench "${MODEL:-synthetic:${each%:*}}" --engine.backend="$backend" --model.max_model_len=4096 --model.dtype="${each#*:}" \
                --engine.max_num_seqs=8 --lengths 128 --concurrency 1,8 --tokens 32 --sweep memory.expert_vram_share=0,100%
        done
        ;;
    less)
        B --engine.max_num_seqs=8 --sweep memory.expert_vram_share=100%,28% --lengths 2048 --concurrency 8 --tokens 32
        B --engine.max_num_seqs=8 --memory.expert_vram_share=28% --engine.deterministic=no --lengths 2048 --concurrency 8,8 --tokens 32
        B --model.dtype=bf16 --engine.max_num_seqs=8 --sweep memory.expert_vram_share=100%,35% --lengths 2048 --concurrency 8 --tokens 32
        ;;
    shared)
        ! command -v taskset >/dev/null || pin=(taskset -c 0-15)
        B --engine.deterministic=no --memory.expert_vram_share=0 --lengths 128 --concurrency 1,1,8,8,32,32 --tokens 40
        B --memory.expert_vram_share=0 --lengths 128 --concurrency 1,8,32 --tokens 12
        ;;
    zipf) # of "Prompts with less than half of the VRAM"
        set -- --engine.max_num_seqs=8 --model.skew=zipf --pager.stats_file="$file" --lengths 2048 --concurrency 8,8 --tokens 32
        B "$@" --memory.expert_vram_share=28%
        B "$@" --memory.expert_vram_share=100%
        B "$@" --memory.expert_vram_share=28% --engine.deterministic=no
        ;;
    long)
        set -- --model.max_model_len=32768 --engine.max_num_seqs=1 --lengths 30000 --concurrency 1 --tokens 64
        B "$@"
        B "$@" --kv.kv_budget=1536MiB --kv.swap_space=4GiB
        set -- --model.max_model_len=131072 --engine.max_num_seqs=1 --lengths 130000 --concurrency 1 --tokens 48
        B "$@"
        B "$@" --kv.kv_budget=6200MiB --kv.swap_space=10GiB
        ;;
    ahead)
        for each in balanced zipf; do
            B --lengths 128 --concurrency 1 --tokens 100 --model.skew=$each --pager.stats_file="$file.$each" --pager.stats_interval=86400 \
                --sweep memory.expert_vram_share=25%,50%,75% --sweep pager.read_ahead=no,auto
        done
        ;;
    warm) # a table of its own kind, without JSON
        for each in cold warm; do
            run "$expertd" bench "${MODEL:-synthetic:qwen3-30b-a3b}" --engine.backend="$backend" --model.dtype=q8_0 --model.skew=zipf \
                --model.max_model_len=4096 --engine.max_num_seqs=1 --memory.expert_vram_share=40% --pager.stats_file="$file" --lengths 128 --tokens 400 --hits 16
            cat "$out/$name.json"
        done
        ;;
    start)
        [ -n "${START_FOLDER:-}" ] || { echo "== start: left out, START_FOLDER is not given (tests/tools/make_model.py FOLDER)" && return; }
        for each in --memory.expert_vram_share=0 --memory.expert_vram_share=100% --memory.host_tier=pool; do
            run python3 tests/tools/start_time.py "$expertd" "$START_FOLDER" --engine.backend="$backend" --model.max_model_len=4096 "$each"
            cat "$out/$name.json"
        done
        ;;
    esac
}

report() {
    printf '\nhit: %% of the expert bytes found in VRAM. host, cpu GB: read by the GPU over the link, and by the CPU, a token.
ahead, wasted, right: of that GB read ahead, others read for nothing, and %% of the guesses. between: us of the host between two steps.
VRAM as the driver counts it. first ms: until the first token. all s: until the last. link, DRAM: GB/s, probed in that run.\n'
    [ ${#names[@]} -eq 0 ] || show "${names[@]}"
    echo "${#failed[@]} commands failed${failed[*]:+: ${failed[*]}}"
    [ ${#failed[@]} -eq 0 ]
}

trap 'kill ${child:+"$child"} || true; failed+=("$name, stopped"); report || true; exit 1' INT TERM
echo "what each command prints is in $out"
for table in "${tables[@]}"; do measure "$table"; done
report

#!/usr/bin/env bash
# check.sh - whether expertd computes right on this machine's GPU. Bash, coreutils, python3 and the driver are enough.
#
#   tests/gpu/check.sh DIR [PART ...]     # DIR: a build folder, or what `dev bundle` makes
#
# Parts, all of them where none is named: kerncheck golden golden_cpu identity tiers alone memcheck racecheck. The last two need
# compute-sanitizer, racecheck also RACECHECK_LIB: the libexpertd_cuda.so of a build with -Dgpu_racecheck=true.
# A part is one process or more. GPU_JOBS (6) of them run at once, since most of their time is the start; tiers, which judges rates,
# runs alone. What each of them prints is left in OUT (a new folder in /tmp). Each has a time limit; LIMIT is another one for all, in seconds.
# BACKEND=cpu tries this script where there is no GPU. Exit status 1: something failed, or nothing passed.
set -euo pipefail
export LC_ALL=C PATH="$PATH:/usr/local/cuda/bin"
die() { printf 'check.sh: %s\n' "$*" >&2; exit 1; }

all="kerncheck golden golden_cpu identity tiers alone memcheck racecheck"
[ $# -gt 0 ] || die "usage: tests/gpu/check.sh DIR [PART ...], parts: $all"
dir=$(realpath "$1") out=$(realpath "${OUT:-$(mktemp -d /tmp/expertd-gpu-check.XXXXXX)}")
shift
read -ra parts <<<"${*:-$all}"
for part in "${parts[@]}"; do [[ " $all " == *" $part "* ]] || die "no part '$part', there are: $all"; done
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export EXPERTD_SOURCE_ROOT=$PWD PYTHONDONTWRITEBYTECODE=1
backend=${BACKEND:-cuda}
mkdir -p "$out"
race=$(mktemp -d)
trap 'rm -rf "$race"' EXIT

program() { # NAME: where a build folder or a bundle has it
    local at
    for at in tests/golden tests/kern daemon tests bin; do
        if [ -f "$dir/$at/$1" ]; then echo "$dir/$at/$1" && return; fi
    done
    die "there is no $1 in $dir"
}
expertd=$(program expertd) test_golden=$(program test_golden) kerncheck=$(program kerncheck)
test_identity=$(program test_identity) test_tiers=$(program test_tiers)
# Where kernels/cuda_loader.c finds it from these programs.
[ "$backend" = cpu ] || [ -f "$dir/kernels/cuda/libexpertd_cuda.so" ] || [ -f "$dir/lib/expertd/libexpertd_cuda.so" ] ||
    die "there is no libexpertd_cuda.so in $dir: it was built without CUDA"

declare -A job=() begun=() ended=() cases=() passed=() FAILED=() skipped=()
failures=()

# start PART NAME SECONDS COMMAND...: as soon as there is room; it is ended after SECONDS.
start() {
    local part=$1 name=$2 limit=${LIMIT:-$3} now
    shift 3
    while [ ${#job[@]} -ge "${GPU_JOBS:-6}" ]; do finish_one; done
    now=${EPOCHREALTIME/./} # microseconds
    timeout -k 10 "$limit" "$@" </dev/null >"$out/$part.$name.log" 2>&1 &
    job[$!]="$part $name $limit $now"
    begun[$part]=${begun[$part]:-$now}
}

finish_all() { while [ ${#job[@]} -gt 0 ]; do finish_one; done; }

finish_one() {
    local pid status=0 part name limit at log line last="" verdict=passed n=0
    wait -n -p pid || status=$?
    if [ -z "${pid:-}" ]; then # those that a signal ended bash forgets here, but knows when asked
        for pid in "${!job[@]}"; do break; done
        status=0 && wait "$pid" || status=$?
    fi
    read -r part name limit at <<<"${job[$pid]}"
    unset "job[$pid]"
    ended[$part]=${EPOCHREALTIME/./} log=$out/$part.$name.log
    while IFS= read -r line || [ -n "$line" ]; do
        # Left out: a summary behind the line that matters, and the daemon's log.
        [[ -z $line || $line =~ ^[0-9]+\ models,\ |^[-0-9]{10}T ]] || last=$line
        if [[ $line =~ ([0-9]+)\ vectors\ and\ ([0-9]+)\ random ]]; then
            n=$((n + BASH_REMATCH[1] + BASH_REMATCH[2]))
        elif [[ $line =~ \ (ok|FAIL)(:|$)|equal\ to\ alone|\ SUMMARY:\  ]]; then
            n=$((n + 1))
        fi
    done <"$log"
    case $part:$status in # 77 is no backend: it was asked for, so that is a failure
    memcheck:0 | racecheck:0) [[ $last =~ SUMMARY:\ 0\ (errors|hazards) ]] || verdict=FAILED ;;
    *:0) ;;
    golden*:1) if [[ $last == *" left out: "* ]]; then verdict=skipped; else verdict=FAILED; fi ;;
    *:124) verdict=FAILED last="no end within $limit s; last: $last" ;;
    *:137) verdict=FAILED last="killed, for memory or after $limit s; last: $last" ;;
    *) verdict=FAILED last="exit status $status: $last" ;;
    esac
    [[ ! $last =~ (error [^ ]+).*(router [0-9]+ of [0-9]+).*greedy\ ([0-9]+)\ tokens,\ (.*)\ wrong,\ (.*ties) ]] ||
        last="${BASH_REMATCH[1]}, ${BASH_REMATCH[2]}, greedy ${BASH_REMATCH[4]} of ${BASH_REMATCH[3]}, ${BASH_REMATCH[5]}"
    cases[$part]=$((${cases[$part]:-0} + n))
    note "$part" "$name" "$((ended[$part] - at))" "$verdict" "$last"
    [ "$verdict" != FAILED ] || { tail -n 60 "$log" && echo "-- all of it: $log"; }
}

note() { # PART NAME MICROSECONDS VERDICT WORDS
    local -n counter=$4
    counter[$1]=$((${counter[$1]:-0} + 1))
    printf -v line '%-10s %-26s %6s s  %-7s  %s' "$1" "$2" "$(seconds "$3")" "$4" "$5"
    echo "$line"
    [ "$4" != FAILED ] || failures+=("$line")
}

seconds() { echo $(($1 / 1000000)).$(($1 / 100000 % 10)); }

report() {
    local part p=0 f=0 s=0
    printf '\n%-10s %8s %7s %7s %8s %7s\n' part seconds passed failed skipped cases
    for part in "${parts[@]}"; do
        printf '%-10s %8s %7d %7d %8d %7d\n' "$part" "$(seconds $((${ended[$part]:-0} - ${begun[$part]:-0})))" \
            "${passed[$part]:=0}" "${FAILED[$part]:=0}" "${skipped[$part]:=0}" "${cases[$part]:-0}"
        p=$((p + passed[$part])) f=$((f + FAILED[$part])) s=$((s + skipped[$part]))
    done
    [ "$f" = 0 ] || printf '%s\n' "${failures[@]}"
    echo "$p passed, $f failed, $s skipped"
    [ "$f" = 0 ] && [ "$p" -gt 0 ]
}

stop() {
    local pid part name at
    for pid in "${!job[@]}"; do
        kill "$pid" || true
        read -r part name _ at <<<"${job[$pid]}"
        ended[$part]=${EPOCHREALTIME/./}
        note "$part" "$name" $((ended[$part] - at)) FAILED "this script was stopped before its end"
    done
    report || true
    exit 1
}
trap stop INT TERM

golden() { # PART OPTIONS...
    local part=$1 folder
    shift
    for folder in tests/data/golden/*/ config/demo/; do
        folder=${folder%/}
        start "$part" "${folder##*/}" 120 "$test_golden" --backend="$backend" --kv=f32 "$@" "$folder"
    done
}

sanitize() { # TOOL NAME COMMAND...
    start "$1" "$2" 540 compute-sanitizer --tool "$1" --error-exitcode 9 "${@:3}"
}

# Fills pages, reads experts ahead and uses the stages of the streaming kernel again and again.
small=(bench synthetic:tiny --engine.backend=cuda --memory.page_size=64KiB --memory.expert_vram_share=50% --model.max_model_len=256
    --engine.max_num_seqs=4 --lengths 40)

run_part() {
    case $1 in
    kerncheck) start "$1" all 480 "$kerncheck" --backend "$backend" --rounds 20 --vectors tests/data/kern/vectors.txt ;;
    golden)
        golden "$1"
        start "$1" qwen3-q8_0 120 "$test_golden" --backend="$backend" --kv=q8_0 tests/data/golden/qwen3
        ;;
    golden_cpu) golden "$1" --cpu-experts ;;
    identity) # the models of tests/golden/meson.build
        local model
        for model in qwen3_moe deepseek_v3-published-head glm4_moe qwen3_next lfm2_moe granitemoehybrid nemotron_h kimi_linear step3p5 \
            deepseek_v32-published-head exaone_moe gemma4_text; do
            start "$1" "$model" 400 "$test_identity" --backend="$backend" "tests/data/golden/$model"
        done
        for model in gpt_oss glm_moe_dsa llama4_text; do # of which nothing would be preempted with K and V in f16
            start "$1" "$model-f32" 400 "$test_identity" --backend="$backend" --kv=f32 "tests/data/golden/$model"
        done
        for model in config/demo tests/data/golden/deepseek_v3-published-head tests/data/golden/deepseek_v32-published-head; do
            start "$1" "${model##*/}-q8_0" 400 "$test_identity" --backend="$backend" --kv=q8_0 "$model"
        done
        ;;
    tiers)
        finish_all
        start "$1" demo 500 "$test_tiers" --backend="$backend"
        finish_all
        ;;
    alone)
        local share
        for share in 100% 40%; do
            start "$1" "demo-$share" 300 python3 tests/api/same_alone.py "$expertd" config/demo --engine.backend="$backend" \
                --memory.expert_vram_share="$share"
        done
        ;;
    memcheck)
        sanitize "$1" demo "$test_golden" --backend=cuda config/demo
        sanitize "$1" qwen3_next "$test_golden" --backend=cuda --kv=f16 --cases=3 --tokens=3 tests/data/golden/qwen3_next
        sanitize "$1" lfm2_moe "$test_golden" --backend=cuda --kv=f16 --cases=3 --tokens=3 tests/data/golden/lfm2_moe
        sanitize "$1" granitemoehybrid "$test_golden" --backend=cuda --kv=f16 --cases=3 --tokens=3 tests/data/golden/granitemoehybrid
        sanitize "$1" deepseek_v32 "$test_golden" --backend=cuda --kv=f16 --cases=3 --tokens=3 tests/data/golden/deepseek_v32-published-head
        sanitize "$1" qwen3-q8_0 "$test_golden" --backend=cuda --kv=q8_0 --cases=3 --tokens=3 tests/data/golden/qwen3
        sanitize "$1" bench "$expertd" "${small[@]}" --concurrency 1 --tokens 12
        ;;
    racecheck) # the loader looks beside the program only: programs of their own beside that library
        mkdir -p "$race/bin" "$race/lib/expertd"
        cp "$test_golden" "$expertd" "$race/bin/"
        cp "$RACECHECK_LIB" "$race/lib/expertd/libexpertd_cuda.so"
        local lib model
        for lib in "$dir"/lib/*.so*; do [ ! -f "$lib" ] || ln -s "$lib" "$race/lib/"; done
        for model in config/demo tests/data/golden/qwen3_moe tests/data/golden/qwen3_next tests/data/golden/granitemoehybrid \
            tests/data/golden/deepseek_v32-published-head; do
            sanitize "$1" "${model##*/}" "$race/bin/test_golden" --backend=cuda --kv=f16 --cases=3 --tokens=3 "$model"
        done
        sanitize "$1" qwen3-q8_0 "$race/bin/test_golden" --backend=cuda --kv=q8_0 --cases=3 --tokens=3 tests/data/golden/qwen3
        sanitize "$1" bench "$race/bin/expertd" "${small[@]}" --concurrency 1,3 --tokens 4
        ;;
    esac
}

echo "what each process prints is in $out"
for part in "${parts[@]}"; do
    why=""
    case $part in memcheck | racecheck)
        command -v compute-sanitizer >/dev/null || why="compute-sanitizer is not in the PATH"
        [ "$part" != racecheck ] || [ -f "${RACECHECK_LIB:-}" ] ||
            why="RACECHECK_LIB is not given: the libexpertd_cuda.so of 'meson setup build-race -Dgpu_racecheck=true'"
        [ "$backend" = cuda ] || why="they watch kernels of a GPU" ;;
    esac
    if [ -n "$why" ]; then note "$part" - 0 skipped "$why"; else run_part "$part"; fi
done
finish_all
report

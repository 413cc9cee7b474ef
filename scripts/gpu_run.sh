#!/usr/bin/env bash
# Proves and clocks the CUDA backend on a machine that is reached by copying a folder and running one command.
#
#   scripts/gpu_run.sh pack FOLDER [PROFILE]
#                                      builds the binary and the tests of the CUDA backend (profile release, or dev), puts
#                                      them with this script into FOLDER
#   FOLDER/gpu_run.sh run [OUTPUT [SECONDS]]
#                                      on the GPU machine: doctor, conformance, steps, planted faults, memory checker, gates
#                                      with their clocks; a table last; records and logs into OUTPUT, else into the folder
#                                      that OUT names, else into ./gpu-run. It ends within SECONDS (530): steps that then
#                                      have not begun are named in the table as not run
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)

pack() {
    local folder=$1 profile=${2:-release} root
    root=$(cd "$here/.." && pwd)
    mkdir -p "$folder"
    cd "$root" || exit
    cargo build --workspace --profile "$profile" --bin tare || exit
    # The tests' path is the last word of cargo's line on them.
    local tests
    tests=$(cargo test --workspace --profile "$profile" --test cuda --no-run 2>&1 | sed -n 's/.*Executable .*(\(.*cuda-[0-9a-f]*\))$/\1/p')
    [ -n "$tests" ] || { echo "the tests did not build" >&2; exit 1; }
    local binary=${CARGO_TARGET_DIR:-target}/${profile/dev/debug}/tare
    strip -o "$folder/tare" "$binary"
    strip -o "$folder/cuda-tests" "$tests"
    cp "$here/gpu_run.sh" "$folder/gpu_run.sh"
    du -h "$folder"/*
}

run() {
    out=${1:-${OUT:-$PWD/gpu-run}}
    ends=$((SECONDS + ${2:-530}))
    mkdir -p "$out/records"
    export TARE_HOME=${TARE_HOME:-/tmp/tare-home}
    # The tests keep compiled kernels in a folder of their own: here it is the one that the binary fills.
    mkdir -p "$TARE_HOME/kernels"
    ln -sfn "$TARE_HOME/kernels" "${TMPDIR:-/tmp}/tare-test-kernels"
    # Where toolkits keep the run-time compiler when the loader does not know it.
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64:/usr/local/cuda/targets/x86_64-linux/lib
    export PATH=$PATH:/usr/local/cuda/bin
    rows=()

    if command -v nvidia-smi > /dev/null; then step smi 20 nvidia-smi; fi
    step doctor 60 "$here/tare" doctor --backend cuda
    step conformance 240 "$here/tare" doctor --backend cuda --conformance
    step tests 240 "$here/cuda-tests" --ignored gpu_steps gpu_models --test-threads 1
    step mutate 120 "$here/tare" mutate --backend cuda -m 'synthetic:qwen3-tiny?format=w4g128'
    if command -v compute-sanitizer > /dev/null; then
        for tool in memcheck racecheck; do
            step "$tool" 120 compute-sanitizer --tool "$tool" --error-exitcode 9 \
                "$here/cuda-tests" --ignored gpu_steps --test-threads 1
        done
    fi
    # The processors judge what the device clocks, which is most of the time: what is judged longest comes last.
    for model in qwen3-tiny?format=w4g128 qwen3-tiny?format=bf16 qwen3-0.6b?format=w4g128 qwen3-0.6b?format=bf16 \
        qwen3-0.6b?format=q8_0; do
        clock "$model" -p 128 -n 65 -r 5
    done
    for format in w4g128 bf16; do clock "qwen3-4b?format=$format" -p 128 -n 33 -r 3; done
    for format in w4g128 bf16; do clock "qwen3-0.6b?format=$format" -p 128 -n 33 -r 3 -d 384; done
    clock 'qwen3-4b?format=w4g128' -p 128 -n 33 -r 3 -d 384
    tar -czf "$out/records.tar.gz" -C "$out" records && rm -r "$out/records"
    cat "$out"/*.log > "$out/all.txt" && rm "$out"/*.log
    echo
    printf '%s\n' "${rows[@]}" | tee "$out/table.txt"
}

# Name, limit in seconds, command: its output goes into a log, its end into the table.
step() {
    local name=$1 limit=$2 began=$SECONDS
    shift 2
    local left=$((ends - began))
    if [ "$left" -lt 5 ]; then
        rows+=("$(printf '%-44s %s' "$name" 'not run: no time left')")
        return
    fi
    if [ "$left" -lt "$limit" ]; then limit=$left; fi
    echo "== $name: $*" > "$out/$name.log"
    timeout "$limit" "$@" >> "$out/$name.log" 2>&1
    local code=$?
    local word=passed
    [ "$code" -eq 0 ] || word="FAILED ($code)"
    rows+=("$(printf '%-44s %-12s %4d s' "$name" "$word" $((SECONDS - began)))")
    tail -n 12 "$out/$name.log"
}

# Model and work: the rates of the two phases follow in the table.
clock() {
    local model=$1 name
    shift
    name="clock-$(echo "$model-$*" | tr -c 'a-z0-9\n' '-' | tr -s '-')"
    step "$name" 240 "$here/tare" clock --backend cuda -m "synthetic:$model" "$@" -o "$out/records"
    [ -e "$out/$name.log" ] || return
    while read -r line; do rows+=("    $line"); done < <(grep -E '^ +(gate|prefill|decode|TTFT)' "$out/$name.log")
}

case ${1:-} in
    pack) pack "${2:?a folder to pack into}" "${3:-release}" ;;
    run) run "${2:-}" "${3:-}" ;;
    *) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

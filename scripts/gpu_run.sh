#!/usr/bin/env bash
# Proves and clocks the CUDA backend on a machine that is reached by copying a folder and running one command.
#
#   scripts/gpu_run.sh pack FOLDER [PROFILE]
#                                      builds the binary and the tests of the CUDA backend (profile release, or dev), puts
#                                      them with this script, the sources of llama.cpp and SmolLM2 in two parts into FOLDER
#   FOLDER/gpu_run.sh prove [OUTPUT [SECONDS]]
#                                      on the GPU machine: conformance, memory and race checker, every GPU test, 10,000 steps on
#                                      end, planted faults at the shape of 0.6B; a table last, logs into OUTPUT, else into the
#                                      folder that OUT names, else into ./gpu-run. It ends within SECONDS (530): steps that
#                                      then have not begun are named in the table as not run
#   FOLDER/gpu_run.sh run [OUTPUT [SECONDS]]
#                                      the same with a text, gates with their clocks and 10,000 steps in one request, and with
#                                      planted faults in a tiny model; records into OUTPUT too
#   FOLDER/gpu_run.sh keep             on the GPU machine: keeps the parts of SmolLM2 that lie beside this script; with
#                                      both of them there run has its text
#   FOLDER/gpu_run.sh replay [OUTPUT [SECONDS]]
#                                      on the GPU machine: steps taken apart into their launches, each against its floor
#   FOLDER/gpu_run.sh next [OUTPUT [SECONDS]]
#                                      on the GPU machine: what to attack next, with the documents that say so in OUTPUT; then
#                                      the same with a planted delay, which must show in its group
#   FOLDER/gpu_run.sh peer [OUTPUT [SECONDS]]
#                                      on the GPU machine: builds llama.cpp with CUDA (needs nvcc, cmake and ninja), judges
#                                      its tokens, puts what was built into OUTPUT as llama.cpp-cuda.tar.gz.aa and so on:
#                                      whoever carries these files in FOLDER need not build again
#   FOLDER/gpu_run.sh studies [OUTPUT [SECONDS [NAME...]]]
#                                      on the GPU machine: the peer as above, then campaigns with it: tuned, then the study;
#                                      all that begin with ladder-cuda when none is named
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
text_model=smollm2-135m.gguf
text_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
export TARE_HOME=${TARE_HOME:-/tmp/tare-home}

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
    "$binary" peers sources llama.cpp-cuda -o "$folder/llama.cpp.tar.gz" ||
        echo "without the sources of llama.cpp: peer and studies will not run there" >&2
    # Where one copy may not be as large as all of it.
    split -b 50m "target/assets/$text_model" "$folder/$text_model." ||
        echo "without $text_model (cargo xtask fetch): run will have no text there" >&2
    du -h "$folder"/*
}

# Output and seconds: what every command on the GPU machine begins with.
begin() {
    out=${1:-${OUT:-$PWD/gpu-run}}
    ends=$((SECONDS + ${2:-530}))
    mkdir -p "$out/records"
    # The tests keep compiled kernels in a folder of their own: here it is the one that the binary fills.
    mkdir -p "$TARE_HOME/kernels"
    ln -sfn "$TARE_HOME/kernels" "${TMPDIR:-/tmp}/tare-test-kernels"
    # Where toolkits keep the run-time compiler when the loader does not know it.
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64:/usr/local/cuda/targets/x86_64-linux/lib
    export PATH=$PATH:/usr/local/cuda/bin
    # Where Python packages of build tools put their programs.
    PATH=$PATH:$(python3 -c 'import sysconfig; print(sysconfig.get_path("scripts"))' 2> /dev/null)
    rows=()
}

# The table, the logs in one file, the records in another.
end() {
    if [ -n "$(ls "$out/records")" ]; then tar -czf "$out/records.tar.gz" -C "$out" records; fi
    rm -r "$out/records"
    cat "$out"/*.log > "$out/all.txt" && rm "$out"/*.log
    echo
    printf '%s\n' "${rows[@]}" | tee "$out/table.txt"
}

prove() {
    begin "$@"
    proofs
    for how in 'bf16 --class bf16-free' 'w4g128 --class w4a16-free'; do
        # shellcheck disable=SC2086
        step "mutate-0.6b-${how%% *}" 240 "$here/tare" mutate --backend cuda -m synthetic:qwen3-0.6b?format=$how
    done
    end
}

# What shows that the kernels are right, the shortest first. Tests of models on end are no part of what the checkers slow down.
proofs() {
    if command -v nvidia-smi > /dev/null; then step smi 20 nvidia-smi; fi
    step doctor 60 "$here/tare" doctor --backend cuda
    step conformance 240 "$here/tare" doctor --backend cuda --conformance
    local tool
    for tool in memcheck racecheck; do
        if command -v compute-sanitizer > /dev/null; then
            step "$tool" 120 compute-sanitizer --tool "$tool" --error-exitcode 9 \
                "$here/cuda-tests" --ignored gpu_steps --test-threads 1
        else
            rows+=("$(printf '%-44s %s' "$tool" 'not run: there is no compute-sanitizer here')")
        fi
    done
    step soak 120 "$here/cuda-tests" --ignored gpu_soak --test-threads 1
    step tests 240 "$here/cuda-tests" --ignored gpu_ --skip gpu_soak --skip gpu_times --test-threads 1
}

run() {
    begin "$@"
    proofs
    step mutate 120 "$here/tare" mutate --backend cuda -m 'synthetic:qwen3-tiny?format=w4g128'
    text
    # The processors judge what the device clocks, which is most of the time: what is judged longest comes last.
    for model in qwen3-tiny?format=w4g128 qwen3-tiny?format=bf16 qwen3-0.6b?format=w4g128 qwen3-0.6b?format=bf16 \
        qwen3-0.6b?format=q8_0; do
        clock "synthetic:$model" -p 128 -n 65 -r 5
    done
    for class in w4a16 w4a16-free; do clock 'synthetic:qwen3-tiny?format=w4g128' --class $class -p 16 -n 10001 -r 1; done
    for format in w4g128 bf16; do clock "synthetic:qwen3-4b?format=$format" -p 128 -n 33 -r 3; done
    for format in w4g128 bf16; do clock "synthetic:qwen3-0.6b?format=$format" -p 128 -n 33 -r 3 -d 384; done
    clock 'synthetic:qwen3-4b?format=w4g128' -p 128 -n 33 -r 3 -d 384
    end
}

keep() {
    mkdir -p "$TARE_HOME/parts"
    cp "$here/$text_model."?? "$TARE_HOME/parts/" || exit
    cat "$TARE_HOME/parts/$text_model."?? > "$TARE_HOME/$text_model"
    if ! echo "$text_sha256  $TARE_HOME/$text_model" | sha256sum --check --status; then
        rm "$TARE_HOME/$text_model"
        echo "$text_model is not whole yet: $(cd "$TARE_HOME/parts" && echo *)"
    fi
}

# A real model: the same text from the device as from the processors, and the gate of both classes on it.
text() {
    local model=$TARE_HOME/$text_model backend
    if [ ! -e "$model" ]; then
        rows+=("$(printf '%-44s %s' text "not run: $text_model was not carried here (keep)")")
        return
    fi
    for backend in cpu cuda; do
        # When none is named, each runs in a class of its own.
        step "text-$backend" 60 "$here/tare" run -m "$model" --backend $backend --class w4a16 -n 64 --json \
            'Name three colours of the sea.'
        grep -o '"ids":\[[^]]*\]' "$out/text-$backend.log" > "$out/text-$backend.ids"
    done
    # shellcheck disable=SC2016
    step text-is-the-same 5 sh -c '[ -s "$1" ] && cmp "$1" "$2"' - "$out/text-cpu.ids" "$out/text-cuda.ids"
    rm "$out"/text-*.ids
    for class in w4a16 w4a16-free; do clock "$model" --class $class -p 128 -n 65 -r 3; done
}

replay() {
    begin "$@"
    local how
    for how in '0.6b?format=bf16 --class bf16-free' '0.6b?format=w4g128 --class w4a16-free' \
        '4b?format=bf16 --class bf16-free' '4b?format=w4g128 --class w4a16-free' \
        '4b?format=bf16 --class bf16-free --phase prefill -p 2048' \
        '4b?format=w4g128 --class w4a16-free --phase prefill -p 2048'; do
        # shellcheck disable=SC2086
        step "replay-$(echo "$how" | tr -c 'a-z0-9\n' '-' | tr -s '-')" 90 "$here/tare" replay --backend cuda \
            -m synthetic:qwen3-$how
    done
    end
}

next() {
    begin "$@"
    local how name
    for how in '0.6b?format=bf16 --class bf16-free' '0.6b?format=w4g128 --class w4a16-free' \
        '4b?format=bf16 --class bf16-free' '4b?format=w4g128 --class w4a16-free'; do
        name=next-$(echo "$how" | tr -c 'a-z0-9\n' '-' | tr -s '-')
        # shellcheck disable=SC2086
        step "$name" 240 "$here/tare" next --backend cuda -m synthetic:qwen3-$how -o "$out/records"
        [ -e "$out/$name.log" ] || continue
        while read -r line; do rows+=("    $line"); done < <(grep -E '^(│|next:|decision|  withheld|  doubt)' "$out/$name.log")
    done
    for how in 'replay' 'next'; do
        step "$how-delayed" 240 "$here/tare" "$how" --backend cuda -m 'synthetic:qwen3-0.6b?format=bf16' --class bf16-free \
            --delay down=50
        while read -r line; do rows+=("    $line"); done < <(grep -E '^(│|next:|  planted)' "$out/$how-delayed.log")
    done
    step verify 60 "$here/tare" ledger verify "$out/records"
    end
}

peer() {
    begin "$@"
    build_peer
    step peer-check 120 "$here/tare" peers check llama.cpp-cuda -m 'synthetic:qwen3-0.6b?format=bf16' --written-as bf16
    local built=("$TARE_HOME"/peers/llama.cpp-cuda-*)
    [ -d "${built[0]}" ] &&
        tar -czf - -C "$TARE_HOME/peers" "${built[0]##*/}" | split -b 15m - "$out/llama.cpp-cuda.tar.gz."
    end
}

# Unpacks what was built before where it was carried along, and builds where that is of no use here.
build_peer() {
    if [ -e "$here/llama.cpp-cuda.tar.gz.aa" ]; then
        mkdir -p "$TARE_HOME/peers"
        cat "$here"/llama.cpp-cuda.tar.gz.* | tar -xzf - -C "$TARE_HOME/peers"
    fi
    step peer-install 500 "$here/tare" peers install llama.cpp-cuda --sources "$here/llama.cpp.tar.gz"
    cat "$TARE_HOME"/peers/llama.cpp-cuda-*/install.log > "$out/peer-build.log" 2> /dev/null
}

studies() {
    begin "$@"
    shift $(($# < 2 ? $# : 2))
    if [ $# -eq 0 ]; then
        set -- ladder-cuda-0.6b-bf16 ladder-cuda-4b-w4 ladder-cuda-4b-bf16 ladder-cuda-4b-w4-prefill \
            ladder-cuda-4b-bf16-prefill
    fi
    build_peer
    local name model format tuned=' '
    for name in "$@"; do
        case $name in *-4b-*) model=qwen3-4b ;; *) model=qwen3-0.6b ;; esac
        case $name in *-w4*) format=q4_0 ;; *) format=bf16 ;; esac
        if [ "${tuned/ $model-$format /}" = "$tuned" ]; then
            step "tune-$model-$format" 120 "$here/tare" peers tune llama.cpp-cuda \
                -m "synthetic:$model?format=$format" --written-as "$format" --seconds 8
            tuned+="$model-$format "
        fi
        step "study-$name" 500 "$here/tare" study "$name" -o "$out/records"
        while read -r line; do rows+=("    $line"); done < <(grep -E '^│|^  (keep|reject|no verdict|tare)' "$out/study-$name.log")
    done
    step verify 60 "$here/tare" ledger verify "$out/records"
    end
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
    name="clock-$(echo "${model##*[:/]}-$*" | tr -c 'a-z0-9\n' '-' | tr -s '-')"
    step "$name" 240 "$here/tare" clock --backend cuda -m "$model" "$@" -o "$out/records"
    [ -e "$out/$name.log" ] || return
    while read -r line; do rows+=("    $line"); done < <(grep -E '^ +(gate|prefill|decode|TTFT|device)' "$out/$name.log")
}

case ${1:-} in
    pack) pack "${2:?a folder to pack into}" "${3:-release}" ;;
    prove | run | keep | replay | next | peer | studies) "$@" ;;
    *) sed -n '2,/^set /{s/^# \{0,1\}//p}' "$0"; exit 2 ;;
esac

#!/bin/bash -eu
# Builds the fuzzers into $OUT, each with its corpus as a zip and its dictionary, with the compiler,
# flags and engine of the environment ($CC, $CFLAGS, $LIB_FUZZING_ENGINE). tools/fuzz sets them for
# a machine without Docker. ATTN_COMPILE_FAST: a sanitizer takes minutes for kernels that are
# inlined by force.
work=${WORK:-$(mktemp -d)}
cmake -S . -B "$work/build" -DCMAKE_BUILD_TYPE=None \
    -DCMAKE_C_FLAGS="${CFLAGS:-} -DATTN_COMPILE_FAST" \
    -DATTN_FUZZ=ON -DATTN_FUZZ_ENGINE="${LIB_FUZZING_ENGINE:--fsanitize=fuzzer}" \
    -DATTN_CUDA=OFF -DATTN_CLI=OFF -DATTN_TESTS=OFF -DATTN_EXAMPLES=OFF
cmake --build "$work/build" -j"$(nproc)"
for fuzzer in "$work"/build/fuzz_*; do
    name=${fuzzer##*/fuzz_}
    cp "$fuzzer" "$OUT/"
    [ ! -e "tests/fuzz/$name.dict" ] || cp "tests/fuzz/$name.dict" "$OUT/fuzz_$name.dict"
    rm -f "$OUT/fuzz_${name}_seed_corpus.zip"
    [ ! -d "tests/fuzz/corpus/$name" ] ||
        python3 -m zipfile -c "$OUT/fuzz_${name}_seed_corpus.zip" "tests/fuzz/corpus/$name"/*
done

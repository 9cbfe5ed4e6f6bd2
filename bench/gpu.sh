#!/bin/sh
# The engine on an NVIDIA GPU: `bench/gpu.sh pack` where there is a network, `bench/gpu.sh run` where there is a GPU.
#
# pack   puts what `run` needs into .cache/gpu (about 30 MB): llama-cpp-python's source without what the build does not
#        read, the vocabulary and template of the model's shape, and wheels for the Python that run will use.
# run    builds the binding for CUDA into .cache/gpu/site, makes the 4B shape, measures it with all layers on the GPU
#        and prints one JSON line. Needs nvcc, cmake, ninja and Python 3.10 or newer with pip and venv, but no network.
#        Under 9 min with 16 cores. PYTHON, CMAKE_ARGS and BENCH_MODEL may be set; CMAKE_ARGS="" builds for the CPU.
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^llama-cpp-python==\([^ ;]*\).*/\1/p' requirements/container.txt)
pack=.cache/gpu
model=${BENCH_MODEL:-qwen35-4b-q4_k_m}
needs="numpy jinja2 markupsafe diskcache typing-extensions gguf tqdm pyyaml requests urllib3 idna certifi
       charset-normalizer rich markdown-it-py mdurl pygments"
builds="scikit-build-core packaging pathspec"

pack() {
    python=${PYTHON:-.venv/bin/python} # pip asks the archive for its metadata, which takes scikit-build-core
    rm -rf "$pack"
    mkdir -p "$pack/wheels" "$pack/models/templates"
    "$python" -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation --dest "$pack" "llama-cpp-python==$version"
    # Python 3.12 unless told otherwise: the wheels must fit the Python of the machine with the GPU.
    "$python" -m pip download --quiet --no-deps --only-binary :all: --python-version "${PACK_PYTHON:-3.12}" \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 \
        --platform manylinux_2_17_x86_64 --dest "$pack/wheels" $needs $builds
    mkdir "$pack/source"
    tar -xzf "$pack"/llama_cpp_python-*.tar.gz -C "$pack/source" --strip-components 1
    rm "$pack"/llama_cpp_python-*.tar.gz
    cp "$pack/source/vendor/llama.cpp/models/ggml-vocab-qwen35.gguf" "$pack/models/"
    cp "$pack/source/vendor/llama.cpp/models/templates/Qwen3.5-4B.jinja" "$pack/models/templates/"
    rm -rf "$pack/source/.git"
    for unread in models docs tools tests benches examples media conversion gguf-py app; do
        rm -rf "$pack/source/vendor/llama.cpp/$unread"
    done
    tar -czf "$pack/source.tar.gz" -C "$pack" source
    rm -rf "$pack/source"
    du -sh "$pack"
}

run() {
    python=${PYTHON:-python3}
    started=$(date +%s)
    site=$PWD/$pack/site
    rm -rf "$pack/source" "$site"
    tar -xzf "$pack/source.tar.gz" -C "$pack"
    "$python" -m pip install --quiet --no-index --no-deps --target "$site" "$pack"/wheels/*.whl
    # Only the architecture at hand, and only llama.cpp's libraries: this is what keeps the build short.
    PYTHONPATH=$site \
    CMAKE_ARGS="-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_APP=OFF \
${CMAKE_ARGS--DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native}" \
    CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) CMAKE_GENERATOR=Ninja \
        "$python" -m pip install --quiet --no-index --no-deps --no-build-isolation --target "$site" "$pack/source"
    built=$(date +%s)
    if [ ! -d .cache/llama.cpp-models ]; then
        ln -s gpu/models .cache/llama.cpp-models
    fi
    export PYTHONPATH=$site:$PWD/container:$PWD
    "$python" -m tests.models.make_models .cache/models "$model" >&2
    made=$(date +%s)
    layers=-1
    if [ "${CMAKE_ARGS-unset}" = "" ]; then
        layers=0
    fi
    result=$("$python" -m bench "$model" --child --gpu-layers "$layers" --runs "${BENCH_RUNS:-3}" ${BENCH_QUICK:+--quick} | tail -n 1)
    ended=$(date +%s)
    printf '{"build_seconds": %d, "make_model_seconds": %d, "bench_seconds": %d, "model": "%s", "result": %s}\n' \
        $((built - started)) $((made - built)) $((ended - made)) "$model" "$result"
}

case ${1:-} in
    pack | run) "$1" ;;
    *) echo "usage: bench/gpu.sh pack|run" >&2; exit 2 ;;
esac

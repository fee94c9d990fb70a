#!/bin/sh
# The measuring tools at full size, on LLaMA-2-7B's shape: benchmarks/gpu/tools.sh FOLDER
# About twenty minutes on one H200, most of it eager decoding at 20 to 45 ms a step.
set -u
out=$1
bench() {
  name=$1
  shift
  python3 -m llmtrace bench "$@" --random-weights llama2-7b --out "$out/$name" || echo "$name: exit code $?"
}
bench ttft ttft --trials 100
bench itl-eager itl --trials 10
bench itl-compiled itl --trials 10 --compile
bench tgs-batch tgs --mechanism batch --concurrency 1,2,4,8 --requests 16 --max-new-tokens 32
bench tgs-continuous tgs --mechanism continuous --concurrency 1,4,8 --requests 8 --max-new-tokens 32 --attn sdpa
bench tgs-threads tgs --mechanism threads --concurrency 1,4,8 --requests 8 --max-new-tokens 32
bench tgs-open tgs --mechanism batch --rate 2,4 --concurrency 8 --requests 16 --max-new-tokens 32
bench kv kv --prompt-tokens 64 --max-new-tokens 64 --requests 12
bench kv-static kv --cache static --max-new-tokens 1024 --stop-after 64 --requests 0
bench settings compare-settings --trials 8 --warmup 1 --max-new-tokens 16
python3 benchmarks/agreement.py --random-weights llama2-7b --trials 8 --warmup 1 --max-new-tokens 32 \
  --batch 4 --threads 2 --json "$out/agreement.json" || echo "agreement: exit code $?"

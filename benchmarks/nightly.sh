#!/bin/bash
# The paper's tables on the pinned lane: cases, runs, report. Takes hours on two cores, and can be stopped and begun
# again at any time: what is done stays done.
#
#   benchmarks/nightly.sh [RESULTS [CASES]] [STEP...]     steps: small paper summaries ratios cost scaling closed report
#
# Small cases run in full. Paper-size cases are 12,500 to 13,000 tokens, so they run with gpu_configs/cpu-16k.yaml: in
# full for DPM and retrieval at the tight budget, and one case a domain for every summarising baseline, each of which
# pays a call an event there: raise PAPER_COUNT on faster hardware. The loose budget of a paper-size case does not fit
# its context either.
set -euo pipefail

results=${1:-benchmarks/results/longhorizon}
cases=${2:-.dpm/cases}
steps=${*:3}
steps=${steps:-small paper summaries ratios cost scaling closed report}
engine=${ENGINE:-vllm}
small_count=${SMALL_COUNT:-10}
paper_count=${PAPER_COUNT:-1}
concurrency=${CONCURRENCY:-30}
summaries=summarize_on_overflow,summarize_every_event
closed=summarize_on_overflow_closed_world,summarize_every_event_closed_world

for size in small paper; do
  for domain in mortgage claim prior_auth; do
    [ -e "$cases/$domain-$size" ] ||
      dpm bench generate --domain "$domain" --size "$size" --count 10 --out "$cases/$domain-$size"
  done
done
small=(--cases "$cases/mortgage-small" --cases "$cases/claim-small" --cases "$cases/prior_auth-small")
long_context=(--config "${PAPER_CONFIG:-gpu_configs/cpu-16k.yaml}")
paper=("${long_context[@]}" --cases "$cases/mortgage-paper" --cases "$cases/claim-paper" --cases "$cases/prior_auth-paper")

# report_on NAME SIZE: a report of every results folder of that size
report_on() {
  local found=() folder
  for folder in "$results"/{quality,cost,scaling}-"$2"; do
    [ -e "$folder/rows.jsonl" ] && found+=(--results "$folder")
  done
  [ ${#found[@]} -eq 0 ] || dpm bench report "${found[@]}" --out "$results/$1"
}

quality() { dpm bench quality --engine "$engine" --concurrency "$concurrency" "$@"; }

for step in $steps; do
  case $step in
    small)  # Table 1 on small cases, at the paper's three ratios
      quality "${small[@]}" --count "$small_count" --architectures "dpm,retrieval,$summaries" --ratios 20,5,2 \
        --out "$results/quality-small" ;;
    ratios)  # Figure 4: further ratios, on part of the cases
      quality "${small[@]}" --count 4 --architectures dpm,retrieval,summarize_every_event --ratios 10,7,3 \
        --out "$results/quality-small" ;;
    paper)  # Table 1 on paper-size cases, tight budget
      quality "${paper[@]}" --architectures dpm,retrieval --ratios 20 --concurrency 6 --out "$results/quality-paper" ;;
    summaries)
      quality "${paper[@]}" --count "$paper_count" --architectures "$summaries" --ratios 20 \
        --out "$results/quality-paper" ;;
    cost)  # Table 2: alone on the engine
      dpm bench cost --engine "$engine" "${small[@]}" --count "${COST_COUNT:-2}" --ratios 20,5,2 --out "$results/cost-small"
      dpm bench cost --engine "$engine" "${paper[@]}" --count 1 --ratios 20 --out "$results/cost-paper" ;;
    scaling)
      dpm bench scaling --engine "$engine" --cases "$cases/claim-paper" --events 4,8,16,32 --ratio 20 \
        "${long_context[@]}" --out "$results/scaling-paper" ;;
    closed)  # the summarising baselines under DPM's own grammar, which is more than the paper gave them
      quality "${small[@]}" --count "$small_count" --architectures "$closed" --ratios 20,5,2 \
        --out "$results/quality-small"
      quality "${paper[@]}" --count "$paper_count" --architectures "$closed" --ratios 20 --out "$results/quality-paper" ;;
    report)  # one report an engine: small cases and paper-size cases run on different ones
      report_on report small
      report_on report-paper paper ;;
    *) echo "error: no step $step" >&2; exit 2 ;;
  esac
done

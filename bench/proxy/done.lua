-- What wrk saw, as one line of numbers: requests, answers that were none, seconds, p50 and p99 in milliseconds.
function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format("seen %d %d %.6f %.4f %.4f\n", summary.requests, failed, summary.duration / 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end

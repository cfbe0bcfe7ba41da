-- Keys drawn uniformly: `keys.lua -- /prefix 100000` asks for /prefix0 to /prefix99999.
local threads = 0

function setup(thread)
  threads = threads + 1
  thread:set("seed", threads)
end

function init(args)
  math.randomseed(seed * 7919)
  prefix, keys = args[1], tonumber(args[2])
end

function request()
  return wrk.format(nil, prefix .. math.random(0, keys - 1))
end

function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format("seen %d %d %.6f %.4f %.4f\n", summary.requests, failed, summary.duration / 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end

-- One more report for any sysbench script: every second the cumulative latency histogram, so that exact percentiles of
-- any window can be had afterwards (sysbench itself gives one percentile for the whole run).

local ffi = require("ffi")
ffi.cdef [[
   extern char sb_latency_histogram[];
   void sb_histogram_print(sb_histogram_t *h);
]]
local latencies = ffi.cast("sb_histogram_t *", ffi.C.sb_latency_histogram)

function sysbench.hooks.report_intermediate(stat)
   print(string.format("second %.3f interval %.6f events %d errors %d", stat.time_total, stat.time_interval,
                       tonumber(stat.events), tonumber(stat.errors)))
   io.stdout:flush()
   ffi.C.sb_histogram_print(latencies)
   print("end")
   io.stdout:flush()
end

-- sysbench's oltp_read_write with the lab's report.

require("oltp_read_write")
dofile(debug.getinfo(1, "S").source:sub(2):match("(.*/)") .. "report.lua")

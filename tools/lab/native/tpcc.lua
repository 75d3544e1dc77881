-- TPC-C for sysbench: the nine tables and the five transactions of the standard (revision 5.11), without terminals, their
-- keying and their thinking times. --threads go as fast as they can; with --rate transactions arrive on their own.
--
-- Kept: the mix 45/43/4/4/4, NURand, one order in a hundred rolled back, 60 % of customers by last name, 15 % of payments
-- and 1 % of order lines from another warehouse. Left out: foreign keys, and the deferred queue of deliveries.

dofile(debug.getinfo(1, "S").source:sub(2):match("(.*/)") .. "report.lua")

sysbench.cmdline.options = {warehouses = {"Number of warehouses", 1}}

local DISTRICTS, CUSTOMERS, ITEMS, ORDERS, OPEN_ORDERS = 10, 3000, 100000, 3000, 900
local C_LAST, C_ID, C_ITEM = 173, 401, 5077
local PARTS = {"BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"}

local random = function(low, high) return sysbench.rand.uniform(low, high) end
local letters = function(count) return sysbench.rand.string(string.rep("@", count)) end
local digits = function(count) return sysbench.rand.string(string.rep("#", count)) end
local function skewed(a, c, low, high)
   return (bit.bor(random(0, a), random(low, high)) + c) % (high - low + 1) + low
end
local function last_name(n)
   return PARTS[math.floor(n / 100) % 10 + 1] .. PARTS[math.floor(n / 10) % 10 + 1] .. PARTS[n % 10 + 1]
end

local SCHEMA = {
   warehouse = [[w_id INT PRIMARY KEY, w_name VARCHAR(10), w_street VARCHAR(40), w_city VARCHAR(20), w_state CHAR(2),
      w_zip CHAR(9), w_tax DECIMAL(4,4), w_ytd DECIMAL(12,2)]],
   district = [[d_w_id INT, d_id INT, d_name VARCHAR(10), d_street VARCHAR(40), d_city VARCHAR(20), d_state CHAR(2),
      d_zip CHAR(9), d_tax DECIMAL(4,4), d_ytd DECIMAL(12,2), d_next_o_id INT, PRIMARY KEY (d_w_id, d_id)]],
   customer = [[c_w_id INT, c_d_id INT, c_id INT, c_first VARCHAR(16), c_middle CHAR(2), c_last VARCHAR(16),
      c_street VARCHAR(40), c_city VARCHAR(20), c_state CHAR(2), c_zip CHAR(9), c_phone CHAR(16), c_since DATETIME,
      c_credit CHAR(2), c_credit_lim DECIMAL(12,2), c_discount DECIMAL(4,4), c_balance DECIMAL(12,2),
      c_ytd_payment DECIMAL(12,2), c_payment_cnt INT, c_delivery_cnt INT, c_data VARCHAR(500),
      PRIMARY KEY (c_w_id, c_d_id, c_id), KEY names (c_w_id, c_d_id, c_last, c_first)]],
   history = [[h_c_id INT, h_c_d_id INT, h_c_w_id INT, h_d_id INT, h_w_id INT, h_date DATETIME, h_amount DECIMAL(6,2),
      h_data VARCHAR(24)]],
   new_orders = [[no_w_id INT, no_d_id INT, no_o_id INT, PRIMARY KEY (no_w_id, no_d_id, no_o_id)]],
   orders = [[o_w_id INT, o_d_id INT, o_id INT, o_c_id INT, o_entry_d DATETIME, o_carrier_id INT, o_ol_cnt INT,
      o_all_local INT, PRIMARY KEY (o_w_id, o_d_id, o_id), KEY customers (o_w_id, o_d_id, o_c_id, o_id)]],
   order_line = [[ol_w_id INT, ol_d_id INT, ol_o_id INT, ol_number INT, ol_i_id INT, ol_supply_w_id INT,
      ol_delivery_d DATETIME, ol_quantity INT, ol_amount DECIMAL(6,2), ol_dist_info CHAR(24),
      PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number)]],
   item = [[i_id INT PRIMARY KEY, i_im_id INT, i_name VARCHAR(24), i_price DECIMAL(5,2), i_data VARCHAR(50)]],
   stock = [[s_w_id INT, s_i_id INT, s_quantity INT, s_dist VARCHAR(240), s_ytd INT, s_order_cnt INT, s_remote_cnt INT,
      s_data VARCHAR(50), PRIMARY KEY (s_w_id, s_i_id)]],
}

local function fill(con, table_name, count, row)
   con:bulk_insert_init("INSERT INTO " .. table_name .. " VALUES ")
   for n = 1, count do con:bulk_insert_next(row(n)) end
   con:bulk_insert_done()
end

local function brand(count) return random(1, 10) == 1 and "ORIGINAL" .. letters(count - 8) or letters(count) end

local function address() return string.format("'%s','%s','%s','%s11111'", letters(24), letters(14), letters(2), digits(4)) end

local function fill_district(con, w, d)
   con:query(string.format("INSERT INTO district VALUES (%d,%d,'%s',%s,%.4f,30000,%d)", w, d, letters(8), address(),
      random(0, 2000) / 10000, ORDERS + 1))
   fill(con, "customer", CUSTOMERS, function(c)
      local name = last_name(c <= 1000 and c - 1 or skewed(255, C_LAST, 0, 999))
      return string.format("(%d,%d,%d,'%s','OE','%s',%s,'%s',NOW(),'%s',50000,%.4f,-10,10,1,0,'%s')", w, d, c, letters(12),
         name, address(), digits(16), random(1, 10) == 1 and "BC" or "GC", random(0, 5000) / 10000, letters(400))
   end)
   fill(con, "history", CUSTOMERS, function(c)
      return string.format("(%d,%d,%d,%d,%d,NOW(),10,'%s')", c, d, w, d, w, letters(18))
   end)
   local customer, lines = {}, {}
   for o = 1, ORDERS do customer[o], lines[o] = o, random(5, 15) end
   for o = ORDERS, 2, -1 do
      local other = random(1, o)
      customer[o], customer[other] = customer[other], customer[o]
   end
   local first_open = ORDERS - OPEN_ORDERS + 1
   fill(con, "orders", ORDERS, function(o)
      local carrier = o < first_open and tostring(random(1, 10)) or "NULL"
      return string.format("(%d,%d,%d,%d,NOW(),%s,%d,1)", w, d, o, customer[o], carrier, lines[o])
   end)
   con:bulk_insert_init("INSERT INTO order_line VALUES ")
   for o = 1, ORDERS do
      for n = 1, lines[o] do
         local is_done = o < first_open
         con:bulk_insert_next(string.format("(%d,%d,%d,%d,%d,%d,%s,5,%.2f,'%s')", w, d, o, n, random(1, ITEMS), w,
            is_done and "NOW()" or "NULL", is_done and 0 or random(1, 999999) / 100, letters(24)))
      end
   end
   con:bulk_insert_done()
   fill(con, "new_orders", OPEN_ORDERS, function(n) return string.format("(%d,%d,%d)", w, d, first_open + n - 1) end)
end

-- Every thread fills the warehouses of its own: thread 0 makes the tables beforehand, in the command's first part.
local function prepare()
   local con = sysbench.sql.driver():connect()
   con:query("SET unique_checks = 0, foreign_key_checks = 0")
   for name, columns in pairs(SCHEMA) do con:query("CREATE TABLE IF NOT EXISTS " .. name .. " (" .. columns .. ") ENGINE = InnoDB") end
   local threads = sysbench.opt.threads
   if sysbench.tid == 0 then
      fill(con, "item", ITEMS, function(i)
         return string.format("(%d,%d,'%s',%.2f,'%s')", i, random(1, 10000), letters(18), random(100, 10000) / 100, brand(38))
      end)
   end
   for w = 1 + sysbench.tid, sysbench.opt.warehouses, threads do
      con:query(string.format("INSERT INTO warehouse VALUES (%d,'%s',%s,%.4f,300000)", w, letters(8), address(),
         random(0, 2000) / 10000))
      fill(con, "stock", ITEMS, function(i)
         return string.format("(%d,%d,%d,'%s',0,0,0,'%s')", w, i, random(10, 100), letters(240), brand(38))
      end)
      for d = 1, DISTRICTS do fill_district(con, w, d) end
   end
end

sysbench.cmdline.commands = {prepare = {prepare, sysbench.cmdline.PARALLEL_COMMAND}}

-- The transactions -----------------------------------------------------------------------------------------------

local con
local function query(text, ...) return con:query(string.format(text, ...)) end
local function row(text, ...) return con:query_row(string.format(text, ...)) end

function thread_init() con = sysbench.sql.driver():connect() end
function thread_done() con:disconnect() end

local function any_warehouse() return random(1, sysbench.opt.warehouses) end
local function other_warehouse(home)
   if sysbench.opt.warehouses == 1 then return home end
   local w = random(1, sysbench.opt.warehouses - 1)
   return w >= home and w + 1 or w
end

-- The customer's number: given, or the middle one of those who share a last name.
local function pick_customer(w, d)
   if random(1, 100) > 60 then return skewed(1023, C_ID, 1, CUSTOMERS) end
   local name = last_name(skewed(255, C_LAST, 0, 999))
   local found = query("SELECT c_id FROM customer WHERE c_w_id = %d AND c_d_id = %d AND c_last = '%s' ORDER BY c_first", w, d, name)
   local ids = {}
   for n = 1, found.nrows do ids[n] = tonumber(found:fetch_row()[1]) end
   found:free()
   return ids[math.ceil(#ids / 2)]
end

local function new_order()
   local w, d = any_warehouse(), random(1, DISTRICTS)
   local c, count, is_refused = skewed(1023, C_ID, 1, CUSTOMERS), random(5, 15), random(1, 100) == 1
   local wanted, is_local = {}, 1
   for n = 1, count do
      local from = w
      if random(1, 100) == 1 then from = other_warehouse(w) end
      if from ~= w then is_local = 0 end
      wanted[n] = {item = skewed(8191, C_ITEM, 1, ITEMS), from = from, quantity = random(1, 10)}
   end
   if is_refused then wanted[count].item = 0 end
   table.sort(wanted, function(a, b) return a.item > b.item end) -- locks in one order; a refused item comes last
   query("BEGIN")
   local discount = row("SELECT c_discount, c_last, c_credit FROM customer WHERE c_w_id = %d AND c_d_id = %d AND c_id = %d", w, d, c)
   local w_tax = row("SELECT w_tax FROM warehouse WHERE w_id = %d", w)
   local o, d_tax = row("SELECT d_next_o_id, d_tax FROM district WHERE d_w_id = %d AND d_id = %d FOR UPDATE", w, d)
   query("UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = %d AND d_id = %d", w, d)
   query("INSERT INTO orders VALUES (%d,%d,%d,%d,NOW(),NULL,%d,%d)", w, d, o, c, count, is_local)
   query("INSERT INTO new_orders VALUES (%d,%d,%d)", w, d, o)
   for n, line in ipairs(wanted) do
      local price = row("SELECT i_price, i_name, i_data FROM item WHERE i_id = %d", line.item)
      if price == nil then
         query("ROLLBACK")
         return
      end
      local in_stock, info = row("SELECT s_quantity, SUBSTRING(s_dist, %d, 24) FROM stock WHERE s_w_id = %d AND s_i_id = %d FOR UPDATE",
         24 * d - 23, line.from, line.item)
      local left = tonumber(in_stock) - line.quantity
      if left < 10 then left = left + 91 end
      query("UPDATE stock SET s_quantity = %d, s_ytd = s_ytd + %d, s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + %d "
         .. "WHERE s_w_id = %d AND s_i_id = %d", left, line.quantity, line.from == w and 0 or 1, line.from, line.item)
      local amount = line.quantity * tonumber(price) * (1 + tonumber(w_tax) + tonumber(d_tax)) * (1 - tonumber(discount))
      query("INSERT INTO order_line VALUES (%d,%d,%d,%d,%d,%d,NULL,%d,%.2f,'%s')", w, d, o, n, line.item, line.from,
         line.quantity, amount, info)
   end
   query("COMMIT")
end

local function payment()
   local w, d = any_warehouse(), random(1, DISTRICTS)
   local c_w, c_d, amount = w, d, random(100, 500000) / 100
   if random(1, 100) > 85 then c_w, c_d = other_warehouse(w), random(1, DISTRICTS) end
   query("BEGIN")
   query("UPDATE warehouse SET w_ytd = w_ytd + %.2f WHERE w_id = %d", amount, w)
   row("SELECT w_name, w_street, w_city, w_state, w_zip FROM warehouse WHERE w_id = %d", w)
   query("UPDATE district SET d_ytd = d_ytd + %.2f WHERE d_w_id = %d AND d_id = %d", amount, w, d)
   row("SELECT d_name, d_street, d_city, d_state, d_zip FROM district WHERE d_w_id = %d AND d_id = %d", w, d)
   local c = pick_customer(c_w, c_d)
   if c == nil then
      query("ROLLBACK")
      return
   end
   local credit = row("SELECT c_credit, c_first, c_last, c_balance FROM customer WHERE c_w_id = %d AND c_d_id = %d AND c_id = %d FOR UPDATE",
      c_w, c_d, c)
   local note = ""
   if credit == "BC" then
      note = string.format(", c_data = LEFT(CONCAT('%d %d %d %d %d %.2f ', c_data), 500)", c, c_d, c_w, d, w, amount)
   end
   query("UPDATE customer SET c_balance = c_balance - %.2f, c_ytd_payment = c_ytd_payment + %.2f, c_payment_cnt = c_payment_cnt + 1%s "
      .. "WHERE c_w_id = %d AND c_d_id = %d AND c_id = %d", amount, amount, note, c_w, c_d, c)
   query("INSERT INTO history VALUES (%d,%d,%d,%d,%d,NOW(),%.2f,'payment')", c, c_d, c_w, d, w, amount)
   query("COMMIT")
end

local function order_status()
   local w, d = any_warehouse(), random(1, DISTRICTS)
   query("BEGIN")
   local c = pick_customer(w, d)
   if c ~= nil then
      row("SELECT c_balance, c_first, c_middle, c_last FROM customer WHERE c_w_id = %d AND c_d_id = %d AND c_id = %d", w, d, c)
      local o = row("SELECT o_id, o_carrier_id, o_entry_d FROM orders WHERE o_w_id = %d AND o_d_id = %d AND o_c_id = %d ORDER BY o_id DESC LIMIT 1",
         w, d, c)
      if o ~= nil then
         query("SELECT ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d FROM order_line WHERE ol_w_id = %d AND ol_d_id = %d AND ol_o_id = %d",
            w, d, o)
      end
   end
   query("COMMIT")
end

local function delivery()
   local w, carrier = any_warehouse(), random(1, 10)
   for d = 1, DISTRICTS do
      query("BEGIN")
      local o = row("SELECT no_o_id FROM new_orders WHERE no_w_id = %d AND no_d_id = %d ORDER BY no_o_id LIMIT 1 FOR UPDATE", w, d)
      if o ~= nil then
         query("DELETE FROM new_orders WHERE no_w_id = %d AND no_d_id = %d AND no_o_id = %d", w, d, o)
         local c = row("SELECT o_c_id FROM orders WHERE o_w_id = %d AND o_d_id = %d AND o_id = %d", w, d, o)
         query("UPDATE orders SET o_carrier_id = %d WHERE o_w_id = %d AND o_d_id = %d AND o_id = %d", carrier, w, d, o)
         query("UPDATE order_line SET ol_delivery_d = NOW() WHERE ol_w_id = %d AND ol_d_id = %d AND ol_o_id = %d", w, d, o)
         local total = row("SELECT SUM(ol_amount) FROM order_line WHERE ol_w_id = %d AND ol_d_id = %d AND ol_o_id = %d", w, d, o)
         query("UPDATE customer SET c_balance = c_balance + %s, c_delivery_cnt = c_delivery_cnt + 1 WHERE c_w_id = %d AND c_d_id = %d AND c_id = %d",
            total, w, d, c)
      end
      query("COMMIT")
   end
end

local function stock_level()
   local w, d = any_warehouse(), random(1, DISTRICTS)
   query("BEGIN")
   local next_order = tonumber((row("SELECT d_next_o_id FROM district WHERE d_w_id = %d AND d_id = %d", w, d)))
   row("SELECT COUNT(DISTINCT s_i_id) FROM order_line, stock WHERE ol_w_id = %d AND ol_d_id = %d AND ol_o_id >= %d AND ol_o_id < %d "
      .. "AND s_w_id = ol_w_id AND s_i_id = ol_i_id AND s_quantity < %d", w, d, next_order - 20, next_order, random(10, 20))
   query("COMMIT")
end

function event()
   local chance = random(1, 100)
   if chance <= 45 then new_order()
   elseif chance <= 88 then payment()
   elseif chance <= 92 then order_status()
   elseif chance <= 96 then delivery()
   else stock_level() end
end

function sysbench.hooks.before_restart_event() con:query("ROLLBACK") end

function sysbench.hooks.sql_error_ignorable(err)
   return err.sql_errno == 1213 or err.sql_errno == 1205 or err.sql_errno == 1020 -- deadlock, lock time-out, record changed
end

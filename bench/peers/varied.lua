-- For wrk: no two requests in a row have the same head. Path, trace and request id are others each time, as a browser's and
-- an API client's are; the rest of the head repeats, as theirs does. Made before the load begins, so that it costs nothing.
local made, turn = {}, 0
local count = 1024

function init(args)
  for number = 1, count do
    local headers = {}
    for name, value in pairs(wrk.headers) do headers[name] = value end
    headers["X-Request-Id"] = string.format("7b1c1a1e-7d2f-4d8e-9a3c-%012x", number)
    headers["traceparent"] = string.format("00-4bf92f3577b34da6a3ce929d%08x-00f067aa%08x-01", number, number)
    made[number] = wrk.format("GET", string.format("/items/%d?page=%d", number, number % 7), headers)
  end
end

function request()
  turn = turn % count + 1
  return made[turn]
end

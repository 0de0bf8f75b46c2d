"""What Redis does in one step, because two might be at it at once, and in one round trip, because every job needs it.

A script names every key that it touches, so that a reader of `Wire` sees them all. All of them may be repeated: the client
sends a command again whose answer was lost with its connection.
"""

from __future__ import annotations

from typing import Final

RENEW: Final = """
local holder = redis.call('get', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
"""KEYS lease; ARGV token, milliseconds. Only the holder may renew. A lease that ran out because Redis was away for too long is
taken back, unless somebody else has it by now."""

RELEASE: Final = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end
return 0
"""
"""KEYS lease; ARGV token. Only the holder may release."""

ACQUIRE: Final = """
if not redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
  and redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('set', KEYS[2], '1', 'EX', ARGV[3])
return 1
"""
"""KEYS lease, started; ARGV token, milliseconds, seconds that the mark of a start stays. 0: somebody else holds it."""

TAKE: Final = """
if redis.call('exists', KEYS[3]) == 1 then return {'ended'} end
if redis.call('exists', KEYS[4]) == 1 then return {'settled'} end
if not redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
  and redis.call('get', KEYS[1]) ~= ARGV[1] then return {'held'} end
redis.call('set', KEYS[2], '1', 'EX', ARGV[3])
if redis.call('hexists', KEYS[5], ARGV[4]) == 1 then return {'judged'} end
return {'open', redis.call('get', KEYS[6])}
"""
"""KEYS lease, started, ended, settled, votes, payload; ARGV token, milliseconds, seconds, name among the votes.

How a job begins: whether anybody still waits for it, its lease, and what is stored of it."""

HAND_ON: Final = """
if not redis.call('set', KEYS[1], ARGV[1], 'NX', 'EX', ARGV[3]) then return 0 end
redis.call('lpush', KEYS[2], ARGV[2])
return 1
"""
"""KEYS trajectory, queue; ARGV its payload, the job to judge it, seconds. 0: there was one already, and nothing is sent."""

PUT_GROUP: Final = """
if not redis.call('set', KEYS[1], ARGV[1], 'NX', 'EX', ARGV[3]) then return 0 end
redis.call('set', KEYS[2], ARGV[2], 'EX', ARGV[3])
return 1
"""
"""KEYS group, wanted; ARGV its payload, its run and the names that wait for votes as JSON, seconds. 0: there was one already."""

FINISH: Final = """
if ARGV[2] ~= '' then
  redis.call('hsetnx', KEYS[1], ARGV[1], ARGV[2])
  redis.call('expire', KEYS[1], ARGV[3])
end
if ARGV[4] ~= '' and redis.call('get', KEYS[5]) == ARGV[4] then redis.call('del', KEYS[5]) end
if redis.call('exists', KEYS[4]) == 0 then return 'missing' end
local wanted = redis.call('get', KEYS[2])
if not wanted then return 'unknown' end
wanted = cjson.decode(wanted)
for _, name in ipairs(wanted.names) do
  if redis.call('hexists', KEYS[1], name) == 0 then return 'missing' end
end
if redis.call('set', KEYS[3], '1', 'NX', 'EX', ARGV[3]) then
  redis.call('xadd', KEYS[6], 'MAXLEN', '~', ARGV[5], '*', 'group_id', ARGV[6], 'run_id', wanted.run_id)
end
return 'announced'
"""
"""KEYS votes, wanted, announced, group, lease, stream; ARGV name, votes, seconds, token, length of the stream, group.

How a job ends: votes that nobody has written before (none if empty), the lease (none without a token), and the one
announcement of a group of which nothing is missing. 'unknown': the group does not say what it waits for."""

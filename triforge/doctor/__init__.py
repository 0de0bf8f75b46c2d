"""What is wrong with an installation, and how to mend it: `triforge doctor`.

In: a deployment's addresses and, before a start, its document. Out: findings, one a check, each with the command or the
option that mends it. It changes nothing but one small object in the artifact store, which it deletes again.

installation   all checks in their order
local          what this machine shows: packages, disks, sandbox, model folders
stores         the database, the artifacts, Redis
services       what answers over the network: services, engines
"""

"""The faults of an installation and how to mend each: `triforge doctor`. It changes nothing.

installation   all checks in their order
local          this machine: packages, disks, sandbox, model folders
deployment     what answers over the network: database, artifacts, Redis, services
"""
